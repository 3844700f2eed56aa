"""Budgets and second moments with their scans on a CUDA device.

The systems are those of the CPU, over arrays of the card; only their compiled loops are
kernels, which do the same operations in the same order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds import error_scan as scan
from scancheck.bounds.card_number import CardErrorNumber, exact_card_number
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.error_tile import STATE_ROWS
from scancheck.bounds.moment_number import MomentNumber, given_number
from scancheck.bounds.moment_system import MomentSystem
from scancheck.bounds.outer_product import factors_of
from scancheck.bounds.rank_one_system import RankOneErrorSystem
from scancheck.bounds.rules import Rules, Store
from scancheck.ops.normal_form import Cotangents, Lowered, Op
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_columns import CARD
from scancheck.oracles.cuda_fp64 import cuda_stretch, key_passes
from scancheck.oracles.cuda_rungs import on_card
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import contract
from scancheck.oracles.rank_one import cotangents_of
from scancheck.oracles.systems import check_diagonal

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, FloatArray]

SOURCE = "bounds_tile.cu"
KEYS = 4  # states of a thread
# Where keys are shared between threads: those of a thread, and threads of a warp.
SHARED_KEYS, SHARES = 2, 8


def has_card_budget(rules: Rules, log: str, gradients: bool) -> bool:
    """Whether a budget's scans have kernels.

    Orders that are named are emulated on the CPU; log forms, gate gradients that are
    sums in reverse and operands of matrix products are bounded there too.
    """
    direct = rules.gate_gradient == "direct" or not gradients
    plain = log == "none" and rules.operand_cast is None
    return plain and rules.structure.order == "any" and direct


def solve_errors_on_card(
    rules: Rules,
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    cotangents: Arrays | None,
    device: str,
) -> Solution:
    """Error numbers of all outputs and gradients, brought back."""
    stretch = cuda_stretch(cotangents is not None)
    with on_card(device):
        system = CardErrorSystem(rules) if op.diagonal else CardRankOneSystem(rules)
        found = solve(system, op, tensors, switches, cotangents, stretch=stretch)
        return _brought_back(found)


def solve_moments_on_card(
    rules: Rules, op: Op, tensors: Arrays, switches: Mapping[str, bool], device: str
) -> Solution:
    """Moment numbers of all outputs, brought back."""
    with on_card(device):
        system = CardMomentSystem(rules)
        stretch = cuda_stretch(False)
        return _brought_back(solve(system, op, tensors, switches, stretch=stretch))


def _brought_back(solution: Solution) -> Solution:
    def back(number: Any) -> Any:
        return number.like(*map(cuda_card.on_cpu, number.components))

    return Solution(
        outputs={name: back(number) for name, number in solution.outputs.items()},
        gradients={name: back(number) for name, number in solution.gradients.items()},
    )


class CardErrorSystem(ErrorSystem):
    """The companion scans of a budget on the card."""

    number = CardErrorNumber

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.card_path: Any = None

    def constant(self, values: Any) -> ErrorNumber:
        """Stored inputs, and an op's constants, which the compute format may round."""
        return exact_card_number(self.rules, values)

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L], the scans after the tile, and all states when `keep`."""
        check_diagonal(lowered)
        xp = cuda_card.arrays()
        groups, keys, lanes = state.shape[1:]
        steps = lowered.v.shape[1]
        s, o = state.copy(), xp.empty((4, groups, steps, lanes))
        whole = STATE_ROWS, steps + 1, groups, keys, lanes
        states = xp.empty(whole) if keep else None
        # Held until the launch: an address alone keeps no array.
        w, z = factors_of(self._cast(lowered.w, self.rules.decay_cast))
        v, path = lowered.v[:, :, None, :], self._path_on_card(total)
        given = w, z, v, lowered.k, lowered.r
        for first, some, parts in key_passes(keys, KEYS, SHARED_KEYS * SHARES):
            room = o if parts == 1 else xp.empty((parts, *o.shape))
            shared = some == SHARED_KEYS * SHARES
            instance = f"{SHARED_KEYS}, {SHARES}" if shared else f"{some}, 1"
            threads = parts * groups * lanes
            if shared:
                threads = -(-threads * SHARES // cuda_card.WARP) * cuda_card.WARP
            self._launch(
                f"error_forward, {instance}",
                threads,
                *map(_operand, given),
                *(cuda_card.flag(x is not None) for x in (z, lowered.k, lowered.r)),
                _cast_of(self.rules.drive_cast),
                cuda_card.pointer(s),
                cuda_card.numbers(*self.coefficients),
                cuda_card.pointer(room),
                cuda_card.pointer(states),
                cuda_card.count(start),
                cuda_card.count(self.rules.state_every),
                cuda_card.pointer(path),
                cuda_card.count(groups, steps, keys, lanes),
                cuda_card.count(first, parts, o.size),
            )
            if parts > 1:
                # Beside the values these are bounds, which hold for every order.
                o[:3], o[3] = room[:, :3].sum(0), room[:, 3].max(0)
        out = self.number(self.rules, *o)
        if lowered.r is not None:
            out = out.summed(keys - 1)
            out.terms = keys
        return out, s, states

    def scan_back(
        self, w: ErrorNumber, y: ErrorNumber, carry: Any, start: int, total: int
    ) -> tuple[Any, Any]:
        """G_1 .. G_T of a tile, [STATE_ROWS, T, G, K, L], and the next carry."""
        s, above = carry[0].copy(), carry[1].copy()
        groups, keys, lanes = s.shape[1:]
        steps = y.shape[1]
        g = cuda_card.arrays().empty((STATE_ROWS, steps, groups, keys, lanes))
        self._launch(
            "error_adjoint",
            groups * keys * lanes,
            _operand(w),
            _operand(y),
            cuda_card.pointer(s),
            cuda_card.pointer(above),
            cuda_card.numbers(*self.coefficients),
            cuda_card.pointer(g),
            cuda_card.count(start),
            cuda_card.count(total),
            cuda_card.count(self.rules.state_every),
            cuda_card.pointer(self._path_on_card(total)),
            cuda_card.count(groups, steps, keys, lanes),
        )
        return g, (s, above)

    def contracted(
        self, lowered: Lowered, states: Any, obar: Any, inside: Any
    ) -> Cotangents:
        """Product by product, on the card."""
        return contract(lowered, states, obar, inside)

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state, stored in the state's format."""
        shape = state.shape[1:]
        out = cuda_card.arrays().empty((STATE_ROWS, *shape))
        count = int(np.prod(shape))
        self._launch(
            "error_end",
            count,
            cuda_card.pointer(state),
            cuda_card.numbers(*self.coefficients),
            cuda_card.pointer(self._path_on_card(total)[total:]),
            cuda_card.pointer(out),
            cuda_card.count(count),
        )
        return self.number(self.rules, *out[:4]).stored(self.rules.state_store)

    def _path_on_card(self, total: int) -> Any:
        path = self.path(total)
        if self.card_path is None or len(self.card_path) != len(path):
            self.card_path = cuda_card.arrays().asarray(path)
        return self.card_path

    def _launch(self, kernel: str, threads: int, *arguments: Any) -> None:
        """Launches a kernel; the number of its keys may stand behind its name."""
        flags = bool(self.coefficients[scan.TREES]), bool(self.coefficients[scan.COMP])
        kernel, *keys = kernel.split(", ")
        options = ", ".join([*(str(flag).lower() for flag in flags), *keys])
        cuda_card.launch(SOURCE, f"{kernel}<{options}>", threads, arguments)


class CardRankOneSystem(RankOneErrorSystem):
    """The columns of a rank-one transition on the card."""

    machine = CARD
    number = CardErrorNumber

    def constant(self, values: Any) -> ErrorNumber:
        """Stored inputs, and an op's constants, which the compute format may round."""
        return exact_card_number(self.rules, values)

    def running_maximum(self, x: Any) -> Any:
        """Over twice as many steps each time: the card's arrays have no such scan."""
        found, reach = x.copy(), 1
        while reach < found.shape[1]:
            found[:, reach:] = np.maximum(found[:, reach:], found[:, :-reach])
            reach *= 2
        return found

    def contracted(
        self, lowered: Lowered, states: Any, obar: Any, inside: Any
    ) -> Cotangents:
        """Product by product, on the card."""
        return cotangents_of(lowered, states, obar, inside)


class CardMomentSystem(MomentSystem):
    """The scan of second moments on the card, forward only."""

    def constant(self, values: Any) -> MomentNumber:
        """Stored inputs."""
        return given_number(self.rules, cuda_card.float64(values))

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[MomentNumber, Any, Any]:
        """o [G, T, L] and the state after the tile."""
        check_diagonal(lowered)
        groups, keys, lanes = state.shape[1:]
        steps = lowered.v.shape[1]
        v = lowered.v[:, :, None, :]
        # Held until the launch: an address alone keeps no array.
        x = _cast(v if lowered.k is None else lowered.k * v, self.rules.drive_cast)
        w = _cast(lowered.w, self.rules.decay_cast)
        s, o = state.copy(), cuda_card.arrays().zeros((2, groups, steps, lanes))
        arguments = [
            _operand(w, 2),
            _operand(x, 2),
            _operand(lowered.r, 2),
            cuda_card.flag(lowered.r is not None),
            cuda_card.pointer(s),
            cuda_card.numbers(*self.coefficients),
            cuda_card.pointer(o),
            cuda_card.count(start),
            cuda_card.count(self.rules.state_every),
            cuda_card.count(groups, steps, keys, lanes),
        ]
        cuda_card.launch(SOURCE, "moment_forward", groups * lanes, arguments)
        return MomentNumber(self.rules, *o), s, None


def _cast(x: MomentNumber, cast: Any) -> MomentNumber:
    return x if cast is None else x.stored(cast)


def _cast_of(store: Store | None) -> cuda_card.Argument:
    """The struct Cast of the source."""
    if store is None:
        return cuda_card.numbers(0.0, 0.0, 0.0, 0.0)
    return cuda_card.numbers(1.0, store.u, store.eta, store.largest)


def _operand(x: Any, parts: int = 4) -> cuda_card.Argument:
    """A number [G, T, K, L] of the tile."""
    return cuda_card.operand((None,) * parts if x is None else x.components)
