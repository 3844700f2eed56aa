"""Cases of several sequences in one call: which lengths, and tensors for each."""

from itertools import pairwise

import numpy as np
import pytest

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import ARGUMENTS, calling_of, op_of
from scancheck.ops.normal_form import spec_of
from scancheck.recipes.build import build
from scancheck.recipes.call_cases import LONGEST_CHUNK
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import accepts_everything
from scancheck.recipes.inputs import COTANGENT_KINDS, axis_sizes, cotangents


def calls(op: str, *arguments: str, profile: str = "quick") -> list[Case]:
    """The calls that a kernel with these arguments is judged on, chunks of 16."""
    accepts = accepts_everything(op) | set(arguments)
    cases = case_list(op, "fp32", accepts=accepts, profile=profile, chunk=16)
    return [case for case in cases if calling_of(dict(case.options)) is not None]


@pytest.mark.parametrize("op", ["gated_delta_rule", "linear_scan"])
def test_others_have_the_cases_they_had(op: str) -> None:
    """Calls come after all plain cases, and only where a kernel takes them."""
    accepts = accepts_everything(op)
    plain = case_list(op, "fp32", accepts=accepts, chunk=16)
    more = case_list(op, "fp32", accepts=accepts | set(ARGUMENTS), chunk=16)
    assert more[: len(plain)] == plain
    assert len(more) > len(plain)
    assert not calls(op)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_only_what_is_taken_is_passed(argument: str) -> None:
    """A kernel without an argument gets no case that needs it."""
    found = calls("ssd", argument)
    assert found
    for case in found:
        calling = calling_of(dict(case.options))
        assert calling is not None
        assert calling.arguments == (argument,)


@pytest.mark.parametrize("profile", ["quick", "full"])
@pytest.mark.parametrize("op", OPS)
def test_lengths_around_a_chunk(op: str, profile: str) -> None:
    """No token, one, C - 1, C and C + 1 of them, a boundary inside a chunk; states."""
    lengths: set[int] = set()
    inside, states, callings = False, set(), set()
    for case in calls(op, *ARGUMENTS, profile=profile):
        calling = calling_of(dict(case.options))
        assert calling is not None
        callings |= set(calling.arguments)
        if calling.cu_seqlens is not None:
            lengths |= {b - a for a, b in pairwise(calling.cu_seqlens)}
            inside |= any(n % 16 for n in calling.cu_seqlens)
            states.add(dict(case.options)[op_named(op).state])
    assert {0, 1, 15, 16, 17} <= lengths
    assert inside
    assert states == {True, False}
    assert callings == set(ARGUMENTS)


@pytest.mark.parametrize("op", OPS)
def test_every_call_has_tensors_of_its_sizes(op: str) -> None:
    """Values are finite, states one per sequence, cotangents zero at padding."""
    for number, case in enumerate(calls(op, *ARGUMENTS)):
        known, sizes = op_of(case), axis_sizes(case)
        kind = COTANGENT_KINDS[number % len(COTANGENT_KINDS)]
        bars = cotangents(case, kind, 3)
        for name, values in (build(case).tensors | bars).items():
            axes = spec_of(known, name, values.ndim).axes
            assert values.shape == tuple(sizes[axis] for axis in axes)
            assert not np.isnan(values).any()
        calling, bar = known.calling, bars.get(known.outputs[0].name)
        if calling is not None and calling.lengths is not None and bar is not None:
            axis = known.outputs[0].axes.index(known.time_axis)
            rows = np.moveaxis(bar, axis, 1)
            assert not rows[~calling.mask(rows.shape[1])].any()


def test_sequences_are_drawn_apart() -> None:
    """Packed sequences are the first tokens of rows of their own."""
    (case, *_) = calls("gated_delta_rule", "cu_seqlens")
    packed, offsets = build(case), dict(case.options)["cu_seqlens"]
    lengths = [b - a for a, b in pairwise(offsets)]
    rows = Case(
        op=case.op,
        sizes=tuple(
            sorted((dict(case.sizes) | {"B": len(lengths), "T": max(lengths)}).items())
        ),
        dtype=case.dtype,
        recipe=case.recipe,
        seed=case.seed,
        options=tuple(x for x in case.options if x[0] != "cu_seqlens"),
    )
    alone = build(rows).tensors
    for name, values in packed.tensors.items():
        if name == "initial_state":
            assert np.array_equal(values, alone[name])
            continue
        for row, (first, stop) in enumerate(pairwise(offsets)):
            assert np.array_equal(
                values[0, first:stop], alone[name][row, : stop - first]
            )


def test_wide_chunks_are_not_aimed_at() -> None:
    """Several sequences of a chunk each would be long where chunks are."""
    accepts = accepts_everything("simple_gla") | {"cu_seqlens"}
    found = case_list("simple_gla", "fp32", accepts=accepts, chunk=1024)
    calls = [c for c in found if calling_of(dict(c.options)) is not None]
    assert max(dict(c.sizes)["T"] for c in calls) <= 5 * LONGEST_CHUNK


@pytest.mark.parametrize(
    ("sizes", "options", "said"),
    [
        ({"B": 2}, {"cu_seqlens": (0, 9)}, "expected B = 1"),
        ({"B": 1}, {"cu_seqlens": (0, 8)}, "number of tokens, 9; got 8"),
        ({"B": 1}, {"cu_seqlens": (0, 9, 3, 9)}, "do not decrease"),
        ({"B": 2}, {"lengths": (3,)}, "one for each of B = 2"),
        ({"B": 2}, {"reverse": "yes"}, "reverse: expected true or false"),
    ],
)
def test_a_case_that_is_no_call_is_refused(
    sizes: dict[str, int], options: dict[str, object], said: str
) -> None:
    """`build` says which option is wrong, what was expected and what came."""
    case = Case(
        op="retention",
        sizes=tuple(
            sorted(({"T": 9, "H": 1, "HV": 1, "K": 2, "V": 2} | sizes).items())
        ),
        dtype="fp32",
        recipe="gaussian_slow",
        seed=1,
        options=tuple(options.items()),
    )
    with pytest.raises(CaseInvalid, match=said):
        build(case)
