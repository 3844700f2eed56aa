"""Calls of several sequences: each is what it is alone, and gradients alike."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.case import Case, make_case
from scancheck.contract import Contract, Structure
from scancheck.formats import FloatArray
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Op, spec_of, state_tensors
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.ladder import certify
from scancheck.recipes.build import build
from scancheck.recipes.inputs import axis_sizes, cotangents
from scancheck.recipes.op_rules import rules_of

Arrays = dict[str, FloatArray]
CONTRACT = Contract(structure=Structure(kind="sequential"))
OFFSETS = (0, 4, 4, 5, 11)


def case_of(op: str, batch: int, steps: int, **calling: Any) -> Case:
    """A small case with everything optional, called like this."""
    known, rules = op_named(op), rules_of(op)
    sizes = dict(rules.roster[0]) | {"B": batch, known.time_axis: steps}
    options: dict[str, Any] = {
        n: True for n, x in rules.options.items() if isinstance(x, bool)
    }
    if known.forms:
        options["form"] = "g"
    options = {**options, **calling}
    return make_case(op, sizes, recipe="gaussian_slow", seed=3, options=options)


def solved(op: Op, tensors: Arrays, switches: Any, bars: Arrays) -> Solution:
    """The certified fp64 solution."""
    return solve(Fp64System(), op, tensors, switches, bars)


def taken(
    op: Op, arrays: Arrays, states: int, row: int, tokens: Any
) -> dict[str, FloatArray]:
    """One sequence of a call, by index arrays: an independent way to cut it."""
    found = {}
    for name, values in arrays.items():
        axes = spec_of(op, name, values.ndim).axes
        if name in state_tensors(op):
            values = values[states : states + 1]
        elif axes[0] == "B":
            values = values[row : row + 1]
        if op.time_axis in axes:
            values = np.take(values, tokens, axes.index(op.time_axis))
        found[name] = values
    return found


def check(case: Case, sequences: list[tuple[int, int, list[int]]]) -> None:
    """The call against each sequence alone: (entry of the states, row, its steps)."""
    op, bare = op_of(case), op_named(case.op)
    inputs, bars = build(case), cotangents(case, "dense", 5)
    whole = solved(op, inputs.tensors, inputs.switches, bars)
    numbers: dict[str, Any] = {**whole.outputs, **whole.gradients}
    got = {name: number.value for name, number in numbers.items()}
    sizes = axis_sizes(case)
    shared: Arrays = {}
    for states, row, tokens in sequences:
        part = taken(op, inputs.tensors, states, row, tokens)
        part_bars = taken(op, bars, states, row, tokens)
        alone = solved(bare, part, inputs.switches, part_bars)
        parts: dict[str, Any] = {**alone.outputs, **alone.gradients}
        for name, number in parts.items():
            axes = spec_of(op, name, number.value.ndim).axes
            if axes[0] not in ("B", "NS"):
                shared[name] = shared.get(name, 0.0) + number.value
                continue
            own = taken(op, {name: got[name]}, states, row, tokens)[name]
            assert np.array_equal(own, number.value), name
    for name, total in shared.items():
        # Sums of the same numbers, in perhaps another order, in fp64.
        size = np.abs(total).max() + 1.0
        assert np.abs(got[name] - total).max() <= 2.0**-44 * size, name
    for spec in op.outputs:
        assert got[spec.name].shape == tuple(sizes[axis] for axis in spec.axes)


@pytest.mark.parametrize("op", OPS)
def test_packed_sequences_are_those_alone(op: str) -> None:
    """Outputs, states and gradients; an empty sequence keeps its initial state."""
    case = case_of(op, 1, OFFSETS[-1], cu_seqlens=OFFSETS)
    ends = pairwise(OFFSETS)
    check(case, [(i, 0, list(range(a, b))) for i, (a, b) in enumerate(ends)])
    known, inputs = op_of(case), build(case)
    found = solve(Fp64System(), known, inputs.tensors, inputs.switches)
    final = found.outputs[known.outputs[1].name].value
    assert np.array_equal(final[1], inputs.tensors[known.state][1])


@pytest.mark.parametrize("op", OPS)
def test_reversed_sequences_run_from_the_last_token(op: str) -> None:
    """Packed or not, each sequence is the one with its tokens turned around."""
    case = case_of(op, 1, OFFSETS[-1], cu_seqlens=OFFSETS, reverse=True)
    ends = pairwise(OFFSETS)
    check(case, [(i, 0, list(range(a, b))[::-1]) for i, (a, b) in enumerate(ends)])
    check(case_of(op, 2, 5, reverse=True), [(i, i, [4, 3, 2, 1, 0]) for i in (0, 1)])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_padding_is_left_out(op: str, left: bool) -> None:
    """Rows are their tokens; outputs and gradients at padding are zero."""
    lengths = (5, 0, 3)
    case = case_of(op, 3, 5, lengths=lengths, pad_left=left)
    check(
        case,
        [
            (row, row, list(range(5 - n, 5) if left else range(n)))
            for row, n in enumerate(lengths)
        ],
    )
    known, inputs, bars = op_of(case), build(case), cotangents(case, "dense", 5)
    found = solved(known, inputs.tensors, inputs.switches, bars)
    numbers: dict[str, Any] = {**found.outputs, **found.gradients}
    for name, number in numbers.items():
        axes = spec_of(known, name, number.value.ndim).axes
        if known.time_axis in axes and axes[0] == "B":
            time = axes.index(known.time_axis)
            padding = np.take(number.value[2], [0, 1] if left else [3, 4], time - 1)
            assert not padding.any(), name
            assert not number.radius[1].any(), name


@pytest.mark.parametrize("op", ["gated_delta_rule", "ssd", "linear_scan"])
def test_budgets_and_references_of_a_call_are_those_alone(op: str) -> None:
    """What is allowed in a sequence, and what is certified, knows of no other one."""
    case = case_of(op, 1, OFFSETS[-1], cu_seqlens=OFFSETS)
    known, bare, inputs = op_of(case), op_named(op), build(case)
    given = inputs.tensors, inputs.switches
    budget = budget_for(known, *given, CONTRACT, "fp32")
    allowed = {name: a.error for name, a in budget.outputs.items()}
    truth = certify(known, *given, None, allowed)
    for i, (first, stop) in enumerate(pairwise(OFFSETS)):
        tokens = list(range(first, stop))
        part = taken(known, inputs.tensors, i, 0, tokens)
        alone = budget_for(bare, part, inputs.switches, CONTRACT, "fp32")
        for name, allowance in alone.outputs.items():
            own = taken(known, {name: allowed[name]}, i, 0, tokens)[name]
            assert np.array_equal(own, allowance.error)
            known_ones = truth.outputs[name].certified.astype(float)
            assert taken(known, {name: known_ones}, i, 0, tokens)[name].all()


@pytest.mark.parametrize(
    "change", [lambda n: n + 1, lambda n: n - 1], ids=["later", "earlier"]
)
def test_another_boundary_is_another_truth(change: Callable[[int], int]) -> None:
    """A boundary moved by one token changes outputs on both sides of it."""
    case = case_of("gated_delta_rule", 1, 11, cu_seqlens=(0, 5, 11))
    moved = case_of("gated_delta_rule", 1, 11, cu_seqlens=(0, change(5), 11))
    inputs = build(case)
    right, wrong = (
        solve(Fp64System(), op_of(c), inputs.tensors, inputs.switches).outputs["o"]
        for c in (case, moved)
    )
    assert (right.value[:, 5:] != wrong.value[:, 5:]).any()


def test_no_sequence_has_no_token_and_no_state() -> None:
    """cu_seqlens = [0]: everything is empty, and gradients of nothing are."""
    case = case_of("ssd", 1, 0, cu_seqlens=(0,))
    inputs, bars = build(case), cotangents(case, "dense", 5)
    found = solved(op_of(case), inputs.tensors, inputs.switches, bars)
    assert found.outputs["final_states"].shape[0] == 0
    assert not found.gradients["A"].value.any()
