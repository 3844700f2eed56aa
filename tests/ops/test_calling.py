"""How an op is called: where sequences lie, and what is no way to call it."""

import numpy as np
import pytest

from scancheck.case import case_from_json, case_to_json, make_case
from scancheck.errors import CaseInvalid
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import (
    Calling,
    called,
    calling_of,
    op_of,
    options_of,
    plain,
)
from scancheck.ops.normal_form import spec_of, state_tensors

PACKED = Calling(cu_seqlens=(0, 3, 3, 4, 9))


def spans(calling: Calling, batch: int, steps: int) -> list[tuple[int, int, int]]:
    """Row, first token and end of each sequence that has a row to itself."""
    found = calling.segments(batch, steps)
    return [(segment.rows.start, segment.first, segment.stop) for segment in found]


def test_packed_sequences_lie_one_behind_the_other() -> None:
    """Empty ones have a place, and every token is in one sequence."""
    assert spans(PACKED, 1, 9) == [(0, 0, 3), (0, 3, 3), (0, 3, 4), (0, 4, 9)]
    assert [s.states.start for s in PACKED.segments(1, 9)] == [0, 1, 2, 3]


def test_padding_is_on_one_side() -> None:
    """Tokens come first, or last with padding on the left; the mask agrees."""
    right, left = Calling(lengths=(2, 0, 4)), Calling(lengths=(2, 0, 4), pad_left=True)
    assert spans(right, 3, 4) == [(0, 0, 2), (1, 0, 0), (2, 0, 4)]
    assert spans(left, 3, 4) == [(0, 2, 4), (1, 4, 4), (2, 0, 4)]
    for calling in (right, left):
        mask = np.zeros((3, 4), dtype=bool)
        for row, first, stop in spans(calling, 3, 4):
            mask[row, first:stop] = True
        assert np.array_equal(calling.mask(4), mask)


@pytest.mark.parametrize(
    ("calling", "batch", "said"),
    [
        (Calling(cu_seqlens=(0, 9)), 2, "cu_seqlens: expected B = 1"),
        (Calling(cu_seqlens=()), 1, "expected 0 as the first offset; got no offset"),
        (Calling(cu_seqlens=(1, 9)), 1, "expected 0 as the first offset; got 1"),
        (Calling(cu_seqlens=(0, 5, 4, 9)), 1, "do not decrease; got 5 and then 4 at 2"),
        (Calling(cu_seqlens=(0, 5, 8)), 1, "number of tokens, 9; got 8"),
        (Calling(cu_seqlens=(0, 9), lengths=(9,)), 1, "lengths: expected none beside"),
        (Calling(lengths=(9,)), 2, "one for each of B = 2 rows; got 1"),
        (Calling(lengths=(3, 10)), 2, "lengths: expected 0 up to 9.*got 10"),
        (Calling(lengths=(3, -1)), 2, "lengths: expected 0 up to 9.*got -1"),
        (Calling(pad_left=True), 2, "pad_left: expected false without lengths"),
    ],
)
def test_what_is_no_call_is_told(calling: Calling, batch: int, said: str) -> None:
    """The argument, what was expected and what came."""
    with pytest.raises(CaseInvalid, match=said):
        calling.check(batch, 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cu_seqlens": (0, 1.5)}, "cu_seqlens: expected integers"),
        ({"cu_seqlens": "0,9"}, "cu_seqlens: expected integers"),
        ({"lengths": (True,)}, "lengths: expected integers"),
        ({"reverse": 1}, "reverse: expected true or false"),
    ],
)
def test_options_of_another_kind_are_told(
    options: dict[str, object], said: str
) -> None:
    """Options of a case are checked before anything is made of them."""
    with pytest.raises(CaseInvalid, match=said):
        calling_of(options)


def test_empty_neighbours_are_allowed() -> None:
    """Equal offsets are an empty sequence, also at both ends, and also alone."""
    Calling(cu_seqlens=(0, 0, 4, 4, 9, 9)).check(1, 9)
    Calling(cu_seqlens=(0, 0, 0)).check(1, 0)
    Calling(cu_seqlens=(0,)).check(1, 0)


@pytest.mark.parametrize("name", OPS)
def test_states_of_packed_sequences_have_an_axis_of_their_own(name: str) -> None:
    """Only the states' first axis changes, and `plain` changes it back."""
    op = op_named(name)
    packed = called(op, PACKED)
    for spec in (*op.inputs, *op.outputs):
        states = spec.name in state_tensors(op)
        axes = ("NS", *spec.axes[1:]) if states else spec.axes
        assert spec_of(packed, spec.name).axes == axes
    assert plain(packed) == op
    assert called(op, Calling(reverse=True)).inputs == op.inputs
    assert called(op, None) is op


def test_a_case_says_how_it_is_called_in_json_too() -> None:
    """Offsets are a list there; the case that comes back is the same one."""
    case = make_case(
        "delta_rule",
        {"B": 1, "T": 9, "H": 1, "HV": 1, "K": 2, "V": 2},
        recipe="gaussian_slow",
        seed=1,
        options={"cu_seqlens": [0, 3, 9], "reverse": True},
    )
    assert op_of(case).calling == Calling(cu_seqlens=(0, 3, 9), reverse=True)
    again = case_from_json(case_to_json(case))
    assert (again, again.id) == (case, case.id)
    assert options_of(Calling(cu_seqlens=(0, 3, 9), reverse=True)) == dict(case.options)


@pytest.mark.parametrize(
    ("calling", "axis", "left", "expected"),
    [
        (PACKED, "T", [0, 3, 8], (0, 1, 1, 2, 3)),
        (PACKED, "NS", [0, 1, 3], (0, 3, 3, 8)),
        (Calling(lengths=(2, 9)), "B", [1], (9,)),
        (Calling(lengths=(2, 9)), "T", [1, 2, 3], (1, 3)),
        (Calling(lengths=(2, 9), pad_left=True), "T", [6, 7], (1, 2)),
    ],
)
def test_a_call_cut_along_an_axis(
    calling: Calling, axis: str, left: list[int], expected: tuple[int, ...]
) -> None:
    """Offsets and lengths count the tokens that are left."""
    cut = calling.kept(axis, "T", np.array(left), 9)
    assert (cut.cu_seqlens or cut.lengths) == expected
    assert cut.pad_left == calling.pad_left


def test_tokens_of_packed_sequences() -> None:
    """In order, those of an empty sequence none."""
    assert PACKED.tokens_of(np.array([0, 1, 2])).tolist() == [0, 1, 2, 3]
    assert PACKED.tokens_of(np.array([], dtype=np.int64)).tolist() == []
