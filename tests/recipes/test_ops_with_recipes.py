"""An op can be judged once a recipe draws its tensors, and not before."""

import pytest

from scancheck.case import make_case
from scancheck.errors import CaseInvalid
from scancheck.ops import OPS
from scancheck.recipes import (
    RECIPES,
    build,
    case_list,
    catalog,
    check_has_recipes,
    ops_with_recipes,
    recipes_for,
)

WORDS = "op 'selective_scan' has no recipes yet; expected one of linear_scan$"


@pytest.fixture
def one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of linear_scan alone."""
    known = {
        r.name: r
        for r in RECIPES.values()
        if {of for of, _ in r.supports} == {"linear_scan"}
    }
    monkeypatch.setattr(catalog, "RECIPES", known)


def test_ops_with_recipes_are_those_that_a_recipe_supports() -> None:
    """In the order of the ops, each with a recipe in some form; others are refused."""
    known = ops_with_recipes()
    assert {"linear_scan", "selective_scan"} <= set(known)
    assert [op for op in OPS if op in known] == list(known)
    for op in OPS:
        drawn = any(recipes_for(op, form) for form in (None, "a", "g"))
        assert drawn == (op in known)


@pytest.mark.usefixtures("one_op")
def test_an_op_without_recipes_is_refused() -> None:
    """By its name, with those that can be judged; an unknown op stays unknown."""
    assert ops_with_recipes() == ("linear_scan",)
    check_has_recipes("linear_scan")
    case = make_case(
        "selective_scan", {"B": 1, "L": 1, "D": 1, "N": 1}, recipe="x", seed=0
    )
    with pytest.raises(CaseInvalid, match=WORDS):
        build(case)
    with pytest.raises(CaseInvalid, match=WORDS):
        case_list("selective_scan", "fp32", accepts=frozenset({"u"}))
    with pytest.raises(CaseInvalid, match="op 'rwkv8' is unknown"):
        check_has_recipes("rwkv8")
