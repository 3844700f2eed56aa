"""Adversarial inputs: one hazard per function, with the hazard as its name."""

from scancheck.recipes.build import build
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import (
    RECIPES,
    accepts_everything,
    check_has_recipes,
    ops_with_recipes,
    recipe_groups,
    recipes_for,
)
from scancheck.recipes.inputs import COTANGENT_KINDS, Inputs, cotangents
from scancheck.recipes.recipe import GROUPS, Recipe

__all__ = [
    "COTANGENT_KINDS",
    "GROUPS",
    "RECIPES",
    "Inputs",
    "Recipe",
    "accepts_everything",
    "build",
    "case_list",
    "check_has_recipes",
    "cotangents",
    "ops_with_recipes",
    "recipe_groups",
    "recipes_for",
]
