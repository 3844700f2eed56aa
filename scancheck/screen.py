"""A kernel's linear_scan judged on the card in one pass, nothing of its size made.

Reference, budget, second moment and comparison are those of the oracles, the bounds
and `scancheck.metrics`, fused: a thread has a lane, and what it keeps are sums. So a
case is judged in the time of one scan. Whatever is not a plain pass here is looked at
in full by the arrays of the other modules.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import storage_dtype
from scancheck.bounds.moment_system import MomentSystem
from scancheck.bounds.moments import RMS_OF_ROUNDING
from scancheck.bounds.rules import Rules, Store, rules_for, storage_error
from scancheck.bounds.scan_tables import coefficients, path_table
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FP32, FP64
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles import cuda_card
from scancheck.oracles.ball import INFLATION

FloatArray = NDArray[np.float64]
# Fields of Tally in judge_lanes.cu that are counts.
COUNTS = (
    "beyond",
    "wrong_kind",
    "nonfinite",
    "excused",
    "uncertified",
    "overflowing",
    "vacuous",
    "lost",
    "improbable",
)
FIELDS = 14  # of a tally, in judge_lanes.cu
NO_STORE = Store(u=0.0, eta=0.0, largest=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """One tensor against truth and budget, in sums."""

    name: str
    elements: int
    worst: float  # largest error / budget
    worst_index: tuple[int, ...] | None
    first_wrong: tuple[int, ...] | None  # earliest token first
    beyond: int  # error above the budget
    wrong_kind: int
    nonfinite: int
    excused: int
    uncertified: int
    overflowing: int
    vacuous: int  # right, but anything of the truth's size would be
    lost: int  # vacuous with an error that underflow's share of the budget may hide
    improbable: int  # error above lambda sqrt(v), where that is asked
    rho: float | None  # RMS error over its prediction, where that is asked

    @property
    def is_plain_pass(self) -> bool:
        """Whether nothing is left to look at."""
        odd = self.beyond + self.wrong_kind + self.nonfinite + self.excused
        return odd + self.uncertified + self.lost + self.improbable == 0


def can_screen(names: frozenset[str], contract: Contract, dtype: str) -> bool:
    """Whether `screen` takes such a case: decays given, computed in fp32 or fp64.

    Orders that a contract names have a sharper budget, which is not formed here.
    """
    rules = rules_for(contract, dtype)
    wide = rules.compute == (FP64 if dtype == "fp64" else FP32)
    plain = contract.log == "none" and rules.structure.order == "any"
    return wide and plain and {"a", "b"} <= names


def screen(
    tensors: Mapping[str, Any],
    got: Mapping[str, Any],
    contract: Contract,
    dtype: str,
    *,
    lambda_factor: float | None = None,
) -> dict[str, Screened]:
    """What a kernel returned for linear_scan, by output, on the current CUDA device.

    `tensors` a, b [B, T, D] and perhaps initial_state [B, D], `got` h and final_state:
    arrays of any kind CuPy takes, float32 or, for fp64, float64; those on the card are
    not copied. With `lambda_factor` the second moment is formed as well. Raises
    CaseInvalid where `can_screen` says no.
    """
    if not can_screen(frozenset(tensors), contract, dtype):
        raise CaseInvalid(
            f"screen: expected linear_scan with decays a, computed in fp32 or fp64, in "
            f"an order without a name; got {', '.join(tensors)} in {dtype}"
        )
    xp = cuda_card.arrays()
    stored = np.dtype(np.float64 if dtype == "fp64" else np.float32)
    a, b, h = (
        xp.asarray(x, dtype=stored) for x in (tensors["a"], tensors["b"], got["h"])
    )
    groups, steps, lanes = b.shape
    start = tensors.get("initial_state")
    start = None if start is None else _state(start)
    rules = rules_for(contract, dtype)
    probable = lambda_factor is not None and rules.comp == "none"
    count = groups * lanes
    tallies = xp.zeros((2, FIELDS, count))
    end = _state(got["final_state"])
    path = _path(rules, steps, xp, cuda_card.device_index())
    flags = (rules.trees, rules.comp != "none", _is_plain(rules))
    kind = "double" if dtype == "fp64" else "float"
    name = ", ".join([kind, *(str(flag).lower() for flag in flags), "4"])
    factor = lambda_factor if probable else None
    arguments = [
        *(_tensor(x) for x in (a, b, h)),
        *map(cuda_card.pointer, (start, end, path)),
        cuda_card.numbers(*coefficients(rules)),
        cuda_card.numbers(*MomentSystem(rules).coefficients),
        cuda_card.count(rules.state_every),
        _entering(rules),
        _judging(rules, storage_dtype(LINEAR_SCAN, "h", dtype), factor),
        _judging(rules, storage_dtype(LINEAR_SCAN, "final_state", dtype), factor),
        cuda_card.pointer(tallies),
        cuda_card.count(groups, steps, 1, lanes),
    ]
    cuda_card.launch("judge_lanes.cu", f"judge_lanes<{name}>", count, arguments)
    threads = min(count, 1024)
    sums = xp.empty((2, FIELDS + 2, threads))
    for tally, into in zip(tallies, sums, strict=True):
        addresses = [cuda_card.pointer(x) for x in (tally, into)]
        sizes = cuda_card.count(count), cuda_card.count(threads)
        cuda_card.launch("judge_lanes.cu", "add_tallies", threads, [*addresses, *sizes])
    found = cuda_card.on_cpu(sums)
    return {
        "h": _screened("h", found[0], (groups, steps, lanes), probable),
        "final_state": _screened("final_state", found[1], (groups, lanes), probable),
    }


@lru_cache(maxsize=8)
def _path(rules: Rules, steps: int, xp: Any, device: int) -> Any:
    """`path_table` on the card: counting additions takes longer than judging."""
    return xp.asarray(path_table(rules, steps))


def _state(x: Any) -> Any:
    """A state [B, D] on the card, in float64 and in C order."""
    xp = cuda_card.arrays()
    return xp.ascontiguousarray(cuda_card.float64(xp.asarray(x)))


def _tensor(x: Any) -> cuda_card.Argument:
    strides = [stride // x.itemsize for stride in x.strides]
    return cuda_card.count(cuda_card.address(x), *strides)


def _is_plain(rules: Rules) -> bool:
    """Whether nothing is cast and states are kept as computed."""
    return rules.state_u == 0.0 and rules.decay_cast is rules.drive_cast is None


def _entering(rules: Rules) -> cuda_card.Argument:
    """The struct Entering of the source."""
    decay, drive = rules.decay_cast or NO_STORE, rules.drive_cast or NO_STORE
    return cuda_card.numbers(
        rules.compute.smallest_normal if rules.flush else 0.0,
        *(decay.u, decay.eta, decay.largest),
        *(drive.u, drive.eta, drive.largest),
    )


def _judging(rules: Rules, stored: str, factor: float | None) -> cuda_card.Argument:
    """The struct Judging of the source, for a tensor in the format `stored`."""
    store = storage_error(stored)
    return cuda_card.numbers(
        store.u,
        store.eta,
        float(store.largest < rules.overflow or store.u > rules.u),
        rules.overflow * (1.0 - rules.u),
        store.largest,
        store.u,
        float(factor is not None),
        factor or 0.0,
        INFLATION,
    )


def _screened(
    name: str, fields: FloatArray, shape: tuple[int, ...], probable: bool
) -> Screened:
    """The sums of all lanes, and where the largest and the first wrong ratio are."""
    worst, worst_step, first = fields[:3]
    worst_lane, wrong_lane = fields[FIELDS:]
    places: list[tuple[int, ...] | None] = [None, None]
    if worst.size:
        # The earliest one of all lanes.
        late = np.where(first >= 0.0, first, np.inf)
        at, wrong = int(np.argmax(worst)), int(np.argmin(late))
        places[0] = _place(worst_lane[at], worst_step[at], shape)
        if late[wrong] < np.inf:
            places[1] = _place(wrong_lane[wrong], first[wrong], shape)
    squares, moments = fields[3:5].sum(1)
    counts = fields[5:FIELDS].sum(1).astype(np.int64).tolist()
    rho = None
    if probable:
        rho = float(np.sqrt(squares / moments) / RMS_OF_ROUNDING) if moments else 0.0
    return Screened(
        name=name,
        elements=math.prod(shape),
        worst=float(worst.max(initial=0.0)),
        worst_index=places[0],
        first_wrong=places[1],
        rho=rho,
        **dict(zip(COUNTS, counts, strict=True)),
    )


def _place(lane: float, step: float, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Index of a lane's step in a tensor [B, T, D] or [B, D]."""
    group, rest = divmod(int(lane), shape[-1])
    return (group, int(step), rest) if len(shape) == 3 else (group, rest)
