"""Known faults as experiments on the oracle: which one explains what a kernel returned?

Each hypothesis is the exact recurrence with one structural fault. If its outputs agree
with the kernel's within the budget wherever the truth does not, the fault is named with
confidence, for any op, and no kernel source is needed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.oracle import CaseReport
from scancheck.ops import op_named
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.numbers import concatenate

FloatArray = NDArray[np.float64]
Outputs = dict[str, FloatArray]
S = TypeVar("S", bound=np.generic)

FIELDS = ("w", "v", "k", "r", "log_w")
# A hypothesis holds when all but this share of the elements that are wrong against the
# truth are right against it; the rest leaves room for a second, smaller fault.
SHARE_LEFT = 0.02
# Errors that are about as large as their budgets are near to anything: of what is wrong
# a hypothesis must take away all but this share.
ERROR_LEFT = 0.25
# Nor may it make more than this share of all elements wrong that the kernel has right.
SHARE_SPOILT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A fault that reproduces the kernel's outputs."""

    cause: str  # key of diagnosis.CAUSES
    chunk: int | None  # chunk size under which it does
    detail: str  # what was found, in words


class _AtEdges(Fp64System):
    """The oracle with `change` applied to the state at every chunk edge."""

    def __init__(self, chunk: int, change: "Change") -> None:
        super().__init__()
        self.chunk, self.change = chunk, change
        self.kept: list[Any] = []  # the state before each chunk, as carried
        self.parts: list[Lowered] = []  # the pieces of the chunk before the edge

    def begin(self, state: Any) -> Any:
        begun = super().begin(state)
        self.kept, self.parts = [begun], []
        return begun

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        pieces = []
        steps = lowered.v.shape[1]
        cuts = [t for t in range(1, steps) if (start + t) % self.chunk == 0]
        edges = [0, *cuts, steps]
        for first, last in pairwise(edges):
            part = sliced(lowered, first, last)
            here = start + first
            if here > 0 and here % self.chunk == 0:
                self.kept.append(state)
                state = self.change(self, part, state, here // self.chunk)
                self.parts = []
            self.parts.append(part)
            o, state, _ = super().forward(part, state, here, total, False)
            pieces.append(o)
        return concatenate(pieces, 1), state, None


class _SilentTail(Fp64System):
    """The oracle that reads out zero after the last full chunk."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        o, state, states = super().forward(lowered, state, start, total, keep)
        silent = max(0, total - total % self.chunk - start)
        value = o.value.copy()
        value[:, silent:] = 0.0
        return o.like(value, o.radius), state, states


Change = Callable[[_AtEdges, Lowered, Any, int], Any]


def sliced(lowered: Lowered, first: int, last: int) -> Lowered:
    """Steps first..last of a tile."""
    parts = {}
    for name in FIELDS:
        number = getattr(lowered, name)
        if number is not None and number.shape[1] > 1:
            number = number[:, first:last]
        parts[name] = number
    return Lowered(**parts)


def _dropped(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    return tuple(np.zeros_like(array) for array in state)


def _unchanged(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    return state


def _late(carries: list[Any]) -> Change:
    """The true carry of the edge before, in place of the edge's own."""

    def change(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        return carries[chunk - 1]

    return change


def _own_total(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
    """The chunk's own decay and sum, applied to the carry of the chunk before."""
    after = _scanned(part, system.kept[chunk - 1])
    system.kept[chunk] = after
    return after


def _scanned(part: Lowered, state: Any) -> Any:
    """The state after some steps, in a system of their own."""
    return Fp64System().forward(part, state, 0, part.v.shape[1], False)[1]


def _scaled(factor: float) -> Change:
    """The whole carried state times a factor."""

    def change(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        return (factor * state[0], *state[1:])

    return change


def _decayed(factor: float) -> Change:
    """What the chunk before the edge carried through, times a factor."""

    def change(system: _AtEdges, part: Lowered, state: Any, chunk: int) -> Any:
        local = tuple(np.zeros_like(array) for array in state)
        for piece in system.parts:
            local = _scanned(piece, local)
        return (local[0] + factor * (state[0] - local[0]), *state[1:])

    return change


def explain(report: CaseReport, chunks: Iterable[int]) -> Explanation | None:
    """The first known fault that reproduces the outputs, or None."""
    if not any(m.wrong.any() for m in report.metrics.values()):
        return None
    truth = {n: t.hi for n, t in report.truth.outputs.items()}
    found = _without_chunks(report, truth)
    if found is not None:
        return found
    op = op_named(report.case.op)
    total = dict(report.case.sizes)[op.time_axis]
    for chunk in chunks:
        if not 1 <= chunk < total:
            continue
        for cause, detail, outputs in _chunked(report, truth, chunk):
            if _agrees(report, outputs):
                return Explanation(cause=cause, chunk=chunk, detail=detail)
    return None


def _chunked(
    report: CaseReport, truth: Outputs, chunk: int
) -> Iterable[tuple[str, str, Outputs]]:
    """Faults at the edges of chunks of one size, with their outputs."""
    plain = _AtEdges(chunk, _unchanged)
    _run(report, plain)
    yield (
        "carry_index",
        f"each chunk of {chunk} starts from the carry into the chunk before it",
        _run(report, _AtEdges(chunk, _late(plain.kept))),
    )
    yield (
        "carry_total",
        f"the carry into a chunk of {chunk} is formed with that chunk's own total",
        _run(report, _AtEdges(chunk, _own_total)),
    )
    yield (
        "carry_dropped",
        f"no state is carried across edges of chunks of {chunk}",
        _run(report, _AtEdges(chunk, _dropped)),
    )
    for scaled, what in ((_scaled, "state"), (_decayed, "carried-through part")):
        factor = _carry_factor(report, truth, chunk, scaled)
        if factor is not None:
            yield (
                "carry_decay",
                f"the {what} is scaled by {factor:.4g} at edges of chunks of {chunk}",
                _run(report, _AtEdges(chunk, scaled(factor))),
            )
    if op_named(report.case.op).state in report.inputs.tensors:
        without = _run(report, Fp64System(), initial_state=False)
        yield (
            "initial_state",
            f"the initial state has no influence after the first chunk of {chunk}",
            _after(report, truth, without, chunk),
        )
    yield (
        "partial_chunk",
        f"the last, partial chunk of {chunk} is left at zero",
        _run(report, _SilentTail(chunk)),
    )


def _without_chunks(report: CaseReport, truth: Outputs) -> Explanation | None:
    """Faults that need no chunk size."""
    op = op_named(report.case.op)
    if op.state in report.inputs.tensors:
        without = _run(report, Fp64System(), initial_state=False)
        if _agrees(report, without):
            return Explanation(
                cause="initial_state",
                chunk=None,
                detail="the outputs are those of a zero initial state",
            )
    stale = _stale(report, truth)
    if stale:
        return Explanation(
            cause="local_element",
            chunk=None,
            detail=f"{stale} element(s) hold the value of the token before",
        )
    return None


def _run(
    report: CaseReport, system: Fp64System, *, initial_state: bool = True
) -> Outputs:
    op = op_named(report.case.op)
    tensors = dict(report.inputs.tensors)
    if not initial_state and op.state in tensors:
        tensors[op.state] = np.zeros_like(tensors[op.state])
    solution = solve(system, op, tensors, report.inputs.switches)
    return {name: ball.value for name, ball in solution.outputs.items()}


def _agrees(report: CaseReport, outputs: Outputs) -> bool:
    """Whether the kernel's outputs are those of the hypothesis, within the budget.

    The sequence output decides where it is wrong, else the final state: a fault may
    meet the last chunk in another way than the ones before.
    """
    for spec in op_named(report.case.op).outputs:
        metrics = report.metrics.get(spec.name)
        if metrics is None or not metrics.wrong.any():
            continue
        got, wrong = report.outcome.outputs[spec.name], metrics.wrong
        truth, other = report.truth.outputs[spec.name].hi, outputs[spec.name]
        # A faulty state can be larger than the true one, and so are its roundings.
        relative = 2.0**-18 + 2.0 * report.budget.outputs[spec.name].storage_u
        slack = relative * (np.abs(other) + np.abs(truth))
        off = ~(np.abs(got - other) <= 4.0 * metrics.allowance + slack)
        if int((off & ~wrong).sum()) > SHARE_SPOILT * wrong.size:
            return False
        if int((off & wrong).sum()) > SHARE_LEFT * int(wrong.sum()):
            return False
        scale = (metrics.allowance + slack)[wrong]
        left = _distance((got - other)[wrong], scale)
        return left <= ERROR_LEFT * _distance((got - truth)[wrong], scale)
    return False


def _distance(error: FloatArray, scale: FloatArray) -> float:
    """The sum of errors in units of `scale`, each counted up to a thousand."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0.0, 0.0, np.abs(error) / scale)
    return float(np.where(ratio < 1e3, ratio, 1e3).sum())


def _time_first(report: CaseReport, name: str, values: NDArray[S]) -> NDArray[S]:
    """The sequence output with its time axis first."""
    op = op_named(report.case.op)
    axes = op.outputs[0].axes
    return np.moveaxis(values, axes.index(op.time_axis), 0)


def _carry_factor(
    report: CaseReport,
    truth: Outputs,
    chunk: int,
    scaled: Callable[[float], Change],
) -> float | None:
    """The factor that fits the error of the first wrong chunk best."""
    name = op_named(report.case.op).outputs[0].name
    if name not in report.metrics:
        return None
    wrong = _time_first(report, name, report.metrics[name].wrong)
    tokens = wrong.reshape(wrong.shape[0], -1).any(axis=1)
    first = int(np.argmax(tokens)) // chunk
    if not tokens.any() or first == 0:
        return None
    got = _time_first(report, name, report.outcome.outputs[name])
    want = _time_first(report, name, truth[name])
    without = _run(report, _AtEdges(chunk, scaled(0.0)))[name]
    bare = _time_first(report, name, without)
    window = slice(first * chunk, (first + 1) * chunk)
    carried = (want - bare)[window].ravel()
    error = (got - want)[window].ravel()
    usable = np.isfinite(error) & np.isfinite(carried) & (carried != 0.0)
    if not usable.any():
        return None
    carried, error = carried[usable], error[usable]
    factor = 1.0 + float(carried @ error) / float(carried @ carried)
    return factor if abs(factor - 1.0) > 1e-5 and np.isfinite(factor) else None


def _after(report: CaseReport, truth: Outputs, other: Outputs, chunk: int) -> Outputs:
    """The truth in the first chunk, another run's outputs after it."""
    first = op_named(report.case.op).outputs[0]
    mixed = dict(other)
    axis = first.axes.index(op_named(report.case.op).time_axis)
    steps = np.arange(truth[first.name].shape[axis])
    shape = [1] * truth[first.name].ndim
    shape[axis] = -1
    early = (steps < chunk).reshape(shape)
    mixed[first.name] = np.where(early, truth[first.name], other[first.name])
    return mixed


def _stale(report: CaseReport, truth: Outputs) -> int:
    """Number of wrong elements when all of them repeat the token before; else 0."""
    name = op_named(report.case.op).outputs[0].name
    metrics = report.metrics.get(name)
    if metrics is None:
        return 0
    wrong = _time_first(report, name, metrics.wrong)
    count = int(wrong.sum())
    if not 0 < count <= max(4, wrong.size // 100) or wrong[0].any():
        return 0
    got = _time_first(report, name, report.outcome.outputs[name])
    before = np.roll(_time_first(report, name, truth[name]), 1, axis=0)
    allowed = _time_first(report, name, metrics.allowance)
    near = np.abs(got - before) <= 4.0 * (allowed + np.roll(allowed, 1, axis=0))
    return count if near[wrong].all() else 0
