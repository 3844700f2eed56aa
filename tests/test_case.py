"""A case is data: the same fields give the same id and the same JSON everywhere."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.case import Case, case_from_json, case_to_json, make_case

NAMES = st.text("abcdefgBDLNTG_", min_size=1, max_size=12)
CASES = st.builds(
    make_case,
    NAMES,
    st.dictionaries(NAMES, st.integers(0, 10**6), max_size=5),
    dtype=st.sampled_from(["fp16", "bf16", "fp32", "fp64"]),
    recipe=NAMES,
    seed=st.integers(0, 2**63 - 1),
    options=st.dictionaries(
        NAMES, st.booleans() | st.integers(1, 10**6) | NAMES, max_size=5
    ),
)


def example(**changes: Any) -> Case:
    """One case, with some fields changed."""
    case = make_case(
        "linear_scan",
        {"B": 2, "T": 131, "D": 8},
        dtype="bf16",
        recipe="gaussian_slow",
        seed=7,
        options={"initial_state": True, "chunk": 64},
    )
    return replace(case, **changes)


def test_id_is_pinned() -> None:
    """A stored id finds its case again in every later version."""
    assert example().id == ("linear_scan-bf16-gaussian_slow-2x8x131-fe30267994")


@given(CASES)
def test_json_round_trip(case: Case) -> None:
    """A case comes back from its JSON text, with the same id."""
    again = case_from_json(json.loads(json.dumps(case_to_json(case))))
    assert again == case
    assert again.id == case.id
    assert hash(again) == hash(case)


@given(CASES, st.randoms())
def test_order_of_sizes_and_options_does_not_matter(case: Case, random: Any) -> None:
    """The order in which sizes and options are given changes neither case nor id."""
    sizes, options = list(case.sizes), list(case.options)
    random.shuffle(sizes)
    random.shuffle(options)
    again = make_case(
        case.op,
        dict(sizes),
        dtype=case.dtype,
        recipe=case.recipe,
        seed=case.seed,
        options=dict(options),
    )
    assert again == case
    assert again.id == case.id


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "selective_scan"},
        {"sizes": (("B", 2), ("D", 8), ("T", 132))},
        {"sizes": (("B", 2), ("D", 8), ("L", 131))},
        {"dtype": "fp32"},
        {"recipe": "unit_decay"},
        {"seed": 8},
        {"options": (("chunk", 64), ("initial_state", False))},
        {"options": ()},
    ],
    ids=str,
)
def test_every_field_is_part_of_the_id(changes: dict[str, Any]) -> None:
    """Cases that differ in one field alone have different ids."""
    assert example(**changes).id != example().id


def test_id_says_what_the_case_is() -> None:
    """Op, dtype, recipe and sizes can be read off the id, and no blank is in it."""
    assert example().id.startswith("linear_scan-bf16-gaussian_slow-2x8x131-")
    assert not any(letter.isspace() for letter in example().id)
