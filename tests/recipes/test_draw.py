"""The strategies reach what matters and shrink to something readable."""

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.recipes import RECIPES, build, ops_with_recipes
from scancheck.recipes.draw import cases, steps

QUIET = settings(max_examples=3000, deadline=None, database=None, derandomize=True)


@pytest.mark.parametrize("op", ops_with_recipes())
def test_every_recipe_can_be_drawn(op: str) -> None:
    """Each recipe of the op comes up in each form."""
    missing = {
        (recipe.name, form)
        for recipe in RECIPES.values()
        for of, form in recipe.supports
        if of == op
    }

    def was_last(case: Case) -> bool:
        missing.discard((case.recipe, dict(case.options).get("form")))
        return not missing

    unshrunk = settings(QUIET, max_examples=10_000, phases=[Phase.generate])
    find(cases(op), was_last, settings=unshrunk)


@pytest.mark.parametrize(
    ("op", "recipe"),
    [("linear_scan", "exact_dyadic"), ("selective_scan", "large_step_bias")],
)
def test_cases_shrink(op: str, recipe: str) -> None:
    """A case of a recipe shrinks to one row, token and channel."""
    case = find(cases(op), lambda case: case.recipe == recipe, settings=QUIET)
    sizes = dict(case.sizes)
    assert set(sizes.values()) == {1}
    assert case.seed == 0


def test_odd_tails_and_long_sequences_are_found() -> None:
    """Lengths over three chunk edges and three tokens more come up."""
    found = find(
        cases("linear_scan", chunk=16),
        lambda case: dict(case.sizes)["T"] > 48 and dict(case.sizes)["T"] % 16 == 3,
        settings=QUIET,
    )
    assert dict(found.sizes)["T"] <= 1025


@given(st.data())
def test_lengths_stay_within_the_profile(data: st.DataObject) -> None:
    """No length is longer than the profile's longest, or empty unless asked."""
    chunk = data.draw(st.integers(1, 5000))
    for profile, longest in (("quick", 1025), ("full", 4099)):
        assert 1 <= data.draw(steps(profile, chunk)) <= longest
        assert 0 <= data.draw(steps(profile, chunk, empty=True)) <= longest


@settings(max_examples=60, deadline=None)
@given(
    cases(
        "selective_scan",
        accepts=frozenset({"u", "delta", "A", "B", "C", "z", "D"}),
        requires=frozenset({"z"}),
    )
)
def test_a_kernel_gets_only_what_it_takes(case: Case) -> None:
    """Inputs that are not accepted never come, those required always do."""
    inputs = build(case)
    assert set(inputs.tensors) <= {"u", "delta", "A", "B", "C", "z", "D"}
    assert "z" in inputs.tensors
    assert inputs.tensors["B"].ndim == 3
    assert inputs.switches == {"delta_softplus": False}


def test_an_unknown_profile_is_refused() -> None:
    """The message lists the profiles."""
    with pytest.raises(CaseInvalid, match=r"quick, full.*'slow'"):
        steps("slow", 64)
