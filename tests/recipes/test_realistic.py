"""The realistic recipes have the figures that the models' authors give."""

import numpy as np
import pytest
from drawn import DTYPES, FORMS, LINEAR_FORMS, decays, states, tensors

from scancheck.formats import FORMATS, FloatArray
from scancheck.recipes import GROUPS, RECIPES, recipe_groups, recipes_for

REALISTIC = [
    (recipe.name, op, form)
    for recipe in recipe_groups()["realistic"]
    for op, form in recipe.supports
    if (op, form) in FORMS
]


def memory(made: dict[str, FloatArray]) -> FloatArray:
    """Tokens that a channel remembers: one over its mean log decay."""
    rate: FloatArray = -np.log(decays(made)).mean(axis=(0, 1))
    return 1.0 / rate


def test_groups_hold_every_recipe_once() -> None:
    """The groups are those named, in order, and their recipes are all recipes."""
    groups = recipe_groups()
    assert tuple(groups) == GROUPS
    names = [recipe.name for group in groups.values() for recipe in group]
    assert sorted(names) == sorted(RECIPES)
    assert all(groups.values())


@pytest.mark.parametrize(
    ("op", "form"),
    [("linear_scan", "a"), ("linear_scan", "g"), ("selective_scan", None)],
)
def test_groups_of_an_op(op: str, form: str | None) -> None:
    """The groups of an op and form have the recipes that apply to it."""
    groups = recipe_groups(op, form)
    found = {recipe.name for group in groups.values() for recipe in group}
    assert found == {recipe.name for recipe in recipes_for(op, form)}


def test_profiles() -> None:
    """Only the realistic group is realistic."""
    for recipe in RECIPES.values():
        realistic = recipe.group == "realistic"
        assert recipe.profile == ("realistic" if realistic else "adversarial")


@pytest.mark.parametrize(("recipe", "op", "form"), REALISTIC)
@DTYPES
def test_nothing_is_out_of_the_ordinary(
    recipe: str, op: str, form: str | None, dtype: str
) -> None:
    """Over 600 tokens decays lie in [0, 1] and no state nears 256."""
    made = tensors(recipe, op, form, dtype=dtype, steps=600)
    kept = decays(made)
    assert kept.min() >= 0.0
    assert kept.max() <= 1.0
    _, size = states(made)
    assert size.max() < 200.0


@DTYPES
def test_mamba(dtype: str) -> None:
    """A counts from -1 down, D is 1, and the bias alone gives steps of 1e-3 to 1e-1."""
    made = tensors("mamba_initialisation", "selective_scan", None, dtype=dtype)
    assert made["A"].tolist() == [[-1.0, -2.0]] * 12
    assert (made["D"] == 1.0).all()
    step = np.logaddexp(0.0, made["delta_bias"])
    assert 1e-3 <= step.min() < 4e-3
    assert 2.5e-2 < step.max() <= 1e-1
    assert 0.2 < made["delta"].std() < 1.0


@LINEAR_FORMS
def test_mamba_without_its_layer(form: str) -> None:
    """linear_scan gets decays exp(-n dt), n from 1 to 16."""
    made = tensors("mamba_initialisation", form=form)
    tokens = memory(made)
    assert tokens.min() > 0.5
    assert 50.0 < tokens.max() < 1500.0


def test_mamba2() -> None:
    """A is one number per channel, between -16 and -1."""
    made = tensors("mamba2_initialisation", "selective_scan", None)
    assert (made["A"] == made["A"][:, :1]).all()
    assert -16.0 <= made["A"].min() < -8.0
    assert -8.0 < made["A"].max() <= -1.0


@LINEAR_FORMS
@pytest.mark.parametrize(
    ("recipe", "shortest", "longest"),
    [
        ("rg_lru_decays", 12.0, 4000.0),  # r is about 1/2: log a from 0.05 to 0.0005
        ("min_gru_gates", 1.0, 1.6),
        ("gla_gates", 15.0, 30.0),
        ("mlstm_forget_gates", 10.0, 400.0),
        ("hgrn_lower_bounds", 1.0, 80.0),
    ],
)
def test_memories(form: str, recipe: str, shortest: float, longest: float) -> None:
    """Channels remember for as long as the models' gates have it."""
    tokens = memory(tensors(recipe, form=form, steps=600))
    assert shortest < tokens.min()
    assert tokens.max() < longest


@LINEAR_FORMS
def test_rg_lru_decays_at_full_recurrence_gate(form: str) -> None:
    """No decay is stronger than 0.9, and the slowest are above 0.999."""
    kept = decays(tensors("rg_lru_decays", form=form))
    assert kept.min() > 0.9
    assert kept.max() > 0.995


@DTYPES
def test_deep_log_gates(dtype: str) -> None:
    """Gates of zero, below 0.01, about one, and beyond 150 are in every channel."""
    gate = -tensors("deep_log_gates", form="g", dtype=dtype, steps=400)["g"]
    assert gate.max() <= 316.0
    for low, high in ((0.0, 0.0), (1e-3, 0.02), (0.5, 5.0), (150.0, 316.0)):
        assert ((gate >= low) & (gate <= high)).any(axis=1).all()
    assert FORMATS[dtype].largest > 316.0
