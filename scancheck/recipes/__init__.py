"""Adversarial inputs: one hazard per function, with the hazard as its name."""

from scancheck.recipes.build import build
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import (
    RECIPES,
    Recipe,
    accepts_everything,
    recipes_for,
)
from scancheck.recipes.inputs import COTANGENT_KINDS, Inputs, cotangents

__all__ = [
    "COTANGENT_KINDS",
    "RECIPES",
    "Inputs",
    "Recipe",
    "accepts_everything",
    "build",
    "case_list",
    "cotangents",
    "recipes_for",
]
