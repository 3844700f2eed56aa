"""A kernel's linear_scan judged on the card in one pass, nothing of its size made.

Reference, budget, second moment and comparison are those of the oracles, the bounds
and `scancheck.metrics`, fused: a thread has a lane, and what it keeps are sums. So a
case is judged in the time of one scan. Whatever is not a plain pass here is looked at
in full by the arrays of the other modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import allowance_of, storage_dtype
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.moment_number import MomentNumber
from scancheck.bounds.moment_system import MomentSystem
from scancheck.bounds.moments import RMS_OF_ROUNDING
from scancheck.bounds.rules import Rules, Store, rules_for, storage_error
from scancheck.bounds.scan_tables import coefficients, path_table
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FP32, FP64
from scancheck.metrics import TensorMetrics, measure
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.oracles import cuda_card
from scancheck.oracles.ball import INFLATION, Ball, certified_radius
from scancheck.oracles.ladder import Reference, is_certified

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
FIELDS, FINALS = 14, 6  # of a lane, in judge_lanes.cu
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
    lost: int  # vacuous with an error
    improbable: int  # error above lambda sqrt(v), where that is asked
    rho: float | None  # RMS error over its prediction, where that is asked

    @property
    def is_plain_pass(self) -> bool:
        """Whether nothing is left to look at."""
        odd = self.beyond + self.wrong_kind + self.nonfinite + self.excused
        return odd + self.uncertified + self.lost + self.improbable == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """The sequence output in sums, and the final state in full."""

    sequence: Screened
    final: TensorMetrics
    final_truth: Reference
    final_root: FloatArray | None  # sqrt(v), where the second moment applies


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
) -> Screening:
    """What a kernel returned for linear_scan, judged on the current CUDA device.

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
    start = (
        None if start is None else xp.ascontiguousarray(xp.asarray(start, xp.float64))
    )
    rules = rules_for(contract, dtype)
    probable = lambda_factor is not None and rules.comp == "none"
    tallies, finals = (
        xp.zeros((fields, groups * lanes)) for fields in (FIELDS, FINALS)
    )
    path = _path(rules, steps, xp, cuda_card.device_index())
    kind = "double" if dtype == "fp64" else "float"
    flags = f"{str(rules.trees).lower()}, {str(rules.comp != 'none').lower()}"
    arguments = [
        *(_tensor(x) for x in (a, b, h)),
        cuda_card.count(cuda_card.address(start)),
        cuda_card.count(cuda_card.address(path)),
        cuda_card.numbers(*coefficients(rules)),
        cuda_card.numbers(*MomentSystem(rules).coefficients),
        cuda_card.count(rules.state_every),
        _judging(rules, dtype, lambda_factor if probable else None),
        cuda_card.count(cuda_card.address(tallies)),
        cuda_card.count(cuda_card.address(finals)),
        cuda_card.count(groups, steps, 1, lanes),
    ]
    if steps > 0:
        name = f"judge_lanes<{kind}, {flags}, 4>"
        cuda_card.launch("judge_lanes.cu", name, groups * lanes, arguments)
    sequence = _screened(tallies, (groups, steps, lanes), probable)
    shape = groups, lanes
    ends = [part.reshape(shape) for part in cuda_card.on_cpu(finals)]
    return _with_final_state(sequence, ends, got, rules, dtype, probable)


@lru_cache(maxsize=8)
def _path(rules: Rules, steps: int, xp: Any, device: int) -> Any:
    """`path_table` on the card: counting additions takes longer than judging."""
    return xp.asarray(path_table(rules, steps))


def _tensor(x: Any) -> cuda_card.Argument:
    strides = [stride // x.itemsize for stride in x.strides]
    return cuda_card.count(cuda_card.address(x), *strides)


def _judging(rules: Rules, dtype: str, factor: float | None) -> cuda_card.Argument:
    """The struct Judging of the source."""
    stored = storage_dtype(LINEAR_SCAN, "h", dtype)
    store = storage_error(stored)
    stores = store.largest < rules.overflow or store.u > rules.u
    decay, drive = rules.decay_cast or NO_STORE, rules.drive_cast or NO_STORE
    return cuda_card.numbers(
        store.u,
        store.eta,
        float(stores),
        rules.overflow * (1.0 - rules.u),
        store.largest,
        store.u,
        rules.compute.smallest_normal if rules.flush else 0.0,
        *(
            number
            for cast in (decay, drive)
            for number in (cast.u, cast.eta, cast.largest)
        ),
        float(factor is not None),
        factor or 0.0,
        INFLATION,
    )


def _screened(tallies: Any, shape: tuple[int, int, int], probable: bool) -> Screened:
    """The sums of all lanes, and where the largest and the first wrong ratio are."""
    groups, steps, lanes = shape
    fields = cuda_card.on_cpu(tallies)
    worst, worst_step, first = fields[:3]
    places: list[tuple[int, ...] | None] = [None, None]
    if worst.size:
        # The earliest one of all lanes.
        late = np.where(first >= 0.0, first, np.inf)
        lane, wrong = int(np.argmax(worst)), int(np.argmin(late))
        places[0] = _place(lane, worst_step, lanes)
        if late[wrong] < np.inf:
            places[1] = _place(wrong, first, lanes)
    counts = fields[3:12].sum(1).astype(np.int64).tolist()
    squares, moments = fields[12:].sum(1)
    rho = None
    if probable:
        rho = float(np.sqrt(squares / moments) / RMS_OF_ROUNDING) if moments else 0.0
    return Screened(
        name="h",
        elements=groups * steps * lanes,
        worst=float(worst.max(initial=0.0)),
        worst_index=places[0],
        first_wrong=places[1],
        rho=rho,
        **dict(zip(COUNTS, counts, strict=True)),
    )


def _place(lane: int, steps: FloatArray, lanes: int) -> tuple[int, ...]:
    """Index of a lane's step in a tensor [B, T, D]."""
    return lane // lanes, int(steps[lane]), lane % lanes


def _with_final_state(
    sequence: Screened,
    ends: list[FloatArray],
    got: Mapping[str, Any],
    rules: Rules,
    dtype: str,
    probable: bool,
) -> Screening:
    """The final state, which is small, judged by `measure`."""
    value, radius, size, error, peak, moment = ends
    number = ErrorNumber(rules, value, size, error, peak).stored(rules.state_store)
    allowance = allowance_of(LINEAR_SCAN, "final_state", number, dtype, rules.overflow)
    radius = certified_radius(Ball(value, radius))
    truth = Reference(
        hi=value,
        lo=np.zeros_like(value),
        radius=radius,
        certified=is_certified(radius, allowance.error),
        rung="fp64",
    )
    given = np.asarray(cuda_card.on_cpu(got["final_state"]), dtype=np.float64)
    root = None
    if probable:
        end = MomentNumber(rules, value, moment).stored(rules.state_store)
        store = storage_error(storage_dtype(LINEAR_SCAN, "final_state", dtype))
        if store.largest < rules.overflow or store.u > rules.u:
            end = end.stored(store)
        root = np.sqrt(end.moment)
    return Screening(
        sequence=sequence,
        final=measure("final_state", given, truth, allowance),
        final_truth=truth,
        final_root=root,
    )
