"""BLIND: which parts of an op no passed case could have shown a fault in.

A part is seen once taking it away moves some judged element by ten times its budget.
The truth without the part comes from the same oracle, so nothing here knows an op.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scancheck.case import Case
from scancheck.checks.calling_faults import (
    run_forward,
    with_padding,
    without_boundaries,
)
from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered, Op, spec_of
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]

# Influence that a part needs, in budgets of an element (semantics.md, BLIND).
NEEDED = 10.0
DEFAULT_CHUNK = 64
TOKENS = ("first token", "last token")
CARRY = "carry across a chunk edge"
# Of calls of several sequences, by the argument that makes them.
CALLS: dict[str, str] = {
    "cu_seqlens": "boundaries of packed sequences",
    "reverse": "direction of a reversed call",
    "attention_mask": "padding of a row",
}


def parts_of(
    op: Op, accepted: Iterable[str], returned: Iterable[str], gradients: bool
) -> tuple[str, ...]:
    """Names of the parts that a run must have seen, in a fixed order."""
    accepted, returned = set(accepted), set(returned)
    inputs = [spec.name for spec in op.inputs if spec.name in accepted]
    names = [CARRY, *TOKENS]
    names += [f"input {name}" for name in inputs]
    names += [f"output {s.name}" for s in op.outputs if s.name in returned]
    names += [part for argument, part in CALLS.items() if argument in accepted]
    if gradients:
        names += [f"gradient {name}" for name in inputs]
    return tuple(names)


def seen_parts(report: CaseReport, wanted: Iterable[str]) -> set[str]:
    """Those of the wanted parts that this case would have shown a fault in."""
    seen = set()
    for name in wanted:
        kind, _, tensor = name.partition(" ")
        match kind:
            case "output":
                visible = _visible(report, tensor, gradient=False)
            case "gradient":
                visible = _visible(report, tensor, gradient=True)
            case "input":
                visible = _moves(report, _without_input(report, tensor))
            case "carry":
                visible = _moves(report, _without_carry(report))
            case "boundaries":
                visible = _moves(report, without_boundaries(report))
            case "direction":
                visible = _moves(report, run_forward(report))
            case "padding":
                visible = _moves(report, with_padding(report))
            case _:
                visible = _moves(report, _without_token(report, name == TOKENS[0]))
        if visible:
            seen.add(name)
    return seen


def _visible(report: CaseReport, name: str, *, gradient: bool) -> bool:
    """Whether an output or gradient itself stands out of its budget."""
    metrics = (report.gradient_metrics if gradient else report.metrics).get(name)
    if metrics is None:
        return False
    values = (report.truth.gradients if gradient else report.truth.outputs)[name].hi
    large = np.abs(values) >= _needed(report, name) * metrics.allowance
    return bool((large & (values != 0.0)).any())


def _moves(report: CaseReport, other: dict[str, FloatArray] | None) -> bool:
    """Whether the truth without a part differs by ten budgets somewhere."""
    if other is None:
        return False
    for name, metrics in report.metrics.items():
        change = np.abs(other[name] - report.truth.outputs[name].hi)
        if (change > _needed(report, name) * metrics.allowance).any():
            return True
    return False


def _needed(report: CaseReport, name: str) -> float:
    """Budgets that are influence enough.

    Storage alone allows u of a value: no influence is ten budgets in fp8_e5m2, where
    u is 1/8. Half of what the format can show is asked for there.
    """
    allowances = report.budget.outputs | report.budget.gradients
    return min(NEEDED, 0.5 / allowances[name].storage_u)


def _solved(
    case: Case,
    tensors: dict[str, FloatArray],
    switches: dict[str, bool],
    system: object,
) -> dict[str, FloatArray]:
    solution = solve(system, op_of(case), tensors, switches)  # type: ignore[arg-type]
    return {name: ball.value for name, ball in solution.outputs.items()}


def _without_input(report: CaseReport, name: str) -> dict[str, FloatArray] | None:
    """Outputs with one input set to zero."""
    tensors = dict(report.inputs.tensors)
    if name not in tensors or not tensors[name].any():
        return None
    tensors[name] = np.zeros_like(tensors[name])
    return _solved(report.case, tensors, report.inputs.switches, Fp64System())


def _without_carry(report: CaseReport) -> dict[str, FloatArray] | None:
    """Outputs when no state crosses the edges of the chunks that were aimed at."""
    options = dict(report.case.options)
    chunk = int(options.get("chunk") or DEFAULT_CHUNK)
    op = op_of(report.case)
    if dict(report.case.sizes)[op.time_axis] <= chunk:
        return None
    per_token = op.substeps(dict(report.case.sizes))
    system = _Forgetful(chunk * per_token, op.reads_before)
    return _solved(report.case, report.inputs.tensors, report.inputs.switches, system)


def _without_token(report: CaseReport, first: bool) -> dict[str, FloatArray] | None:
    """Outputs when the first or last token writes nothing."""
    op = op_of(report.case)
    total = dict(report.case.sizes)[op.time_axis]
    if total == 0:
        return None
    per_token = op.substeps(dict(report.case.sizes))
    begin = (0 if first else total - 1) * per_token + op.reads_before
    system = _Skipping(range(begin, begin + per_token))
    return _solved(report.case, report.inputs.tensors, report.inputs.switches, system)


class _Forgetful(Fp64System):
    """The oracle with no transition at chunk edges.

    What reads before its update is run a step late (oracles/delayed.py).
    """

    def __init__(self, chunk: int, late: bool) -> None:
        super().__init__()
        self.chunk, self.late = chunk, int(late)

    def forward(self, lowered, state, start, total, keep):  # type: ignore[no-untyped-def]
        first = start - self.late
        steps = range(lowered.v.shape[1])
        edges = [t for t in steps if (first + t) % self.chunk == 0 and first + t > 0]
        bare = _zeroed(lowered, ("w", "p"), edges)
        return super().forward(bare, state, start, total, keep)


class _Skipping(Fp64System):
    """The oracle with what some steps write set to zero."""

    def __init__(self, steps: range) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, lowered, state, start, total, keep):  # type: ignore[no-untyped-def]
        here = range(start, start + lowered.v.shape[1])
        places = [step - start for step in self.steps if step in here]
        bare = _zeroed(lowered, ("v",), places)
        return super().forward(bare, state, start, total, keep)


def _zeroed(lowered: Lowered, names: tuple[str, ...], steps: list[int]) -> Lowered:
    """The tile with these fields, where it has them, set to zero at some steps."""
    changed = {}
    for name in names:
        number = getattr(lowered, name)
        if number is None:
            continue
        value, radius = (np.array(part) for part in number.components)
        value[:, steps] = 0.0
        radius[:, steps] = 0.0
        changed[name] = number.like(value, radius)
    return replace(lowered, **changed, log_w=None)


__all__ = ["parts_of", "seen_parts", "spec_of"]
