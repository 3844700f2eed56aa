"""A recipe as data: an input family with the hazard that it carries."""

from collections.abc import Callable
from dataclasses import dataclass

from scancheck.recipes.chains import Chains, Plan, Tensors
from scancheck.recipes.op_rules import from_chains
from scancheck.recipes.supports import GATED, Supports

GROUPS = ("decay", "cancellation", "range", "exact", "edges", "realistic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An input family, named by the hazard it carries."""

    name: str
    hazard: str  # what goes wrong on it, in one sentence
    tensors: Callable[[Plan], Tensors]  # unrounded values in the op's layout
    group: str  # one of GROUPS
    supports: Supports = GATED
    independent_roundings: bool = False  # rho and lambda may judge (numerics 2.8)
    exact: bool = False  # every order of combination gives the exact result

    @property
    def profile(self) -> str:
        """`realistic` for what published models draw, else `adversarial`."""
        return "realistic" if self.group == "realistic" else "adversarial"


def of_tensors(
    tensors: Callable[[Plan], Tensors],
    hazard: str,
    group: str,
    supports: Supports = GATED,
    **facts: bool,
) -> Recipe:
    """The recipe of a function that speaks of an op's tensors."""
    return Recipe(
        name=tensors.__name__,
        hazard=hazard,
        tensors=tensors,
        group=group,
        supports=supports,
        **facts,
    )


def of_chains(
    recipe: Callable[[Plan], Chains],
    hazard: str,
    group: str,
    supports: Supports = GATED,
    **facts: bool,
) -> Recipe:
    """The recipe of a function that speaks of chains alone."""
    return Recipe(
        name=recipe.__name__,
        hazard=hazard,
        tensors=from_chains(recipe),
        group=group,
        supports=supports,
        **facts,
    )
