"""The recipes by name: those of a group, of an op, and of a kernel's interface."""

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS, op_named
from scancheck.recipes.hazards import ONLY_FULL, QUICK
from scancheck.recipes.op_rules import (
    FORMS,
    KEY_LAYOUTS,
    ROUNDING_OPTIONS,
    drawn_as,
    rules_of,
)
from scancheck.recipes.recipe import GROUPS, Recipe

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*QUICK, *ONLY_FULL)}
QUICK_NAMES = frozenset(recipe.name for recipe in QUICK)


def profile_of(recipe: object) -> str | None:
    """The profile of the recipe of this name; None where there is no such recipe.

    Inputs of a user's own have none, nor have those that were shrunk.
    """
    known = RECIPES.get(recipe) if isinstance(recipe, str) else None
    return None if known is None else known.profile


def recipes_for(op: str, form: str | None = None) -> tuple[Recipe, ...]:
    """The recipes that apply to an op, and to a form of it where it has several."""
    drawn = drawn_as(op)
    return tuple(r for r in RECIPES.values() if (drawn, form) in r.supports)


def ops_with_recipes() -> tuple[str, ...]:
    """The ops that can be judged: those that some recipe draws tensors for."""
    drawn = {op for recipe in RECIPES.values() for op, _ in recipe.supports}
    return tuple(op for op in OPS if drawn_as(op) in drawn)


def check_has_recipes(op: str) -> None:
    """Raises CaseInvalid for an op that no recipe draws tensors for."""
    known = ops_with_recipes()
    if op_named(op).name not in known:
        raise CaseInvalid(
            f"op {op!r} has no recipes yet; expected one of {', '.join(known)}"
        )


def recipe_groups(
    op: str | None = None, form: str | None = None
) -> dict[str, tuple[Recipe, ...]]:
    """The recipes of each group, in a fixed order; of one op and form where given."""
    known = tuple(RECIPES.values()) if op is None else recipes_for(op, form)
    return {
        group: tuple(recipe for recipe in known if recipe.group == group)
        for group in GROUPS
    }


def accepts_everything(op: str) -> frozenset[str]:
    """All inputs, switches and key layouts of an op, as a kernel may accept them."""
    known = op_named(op)
    names = {spec.name for spec in known.inputs} | set(known.switches)
    if "keys" in rules_of(op).options:
        names |= {f"keys={layout}" for layout in KEY_LAYOUTS if layout != "time"}
    return frozenset(names)


def recipes_taken(
    op: str, accepts: frozenset[str], requires: frozenset[str] = frozenset()
) -> list[tuple[Recipe, str | None]]:
    """Each recipe in each form that a kernel with these inputs can be given.

    Raises CaseInvalid when it takes none of the op's forms, or the op has no recipes.
    """
    check_has_recipes(op)
    forms: list[str | None] = [None]
    if op_named(op).forms:
        forms = [form for form in FORMS if form in accepts]
    if not forms:
        raise CaseInvalid(f"accepts: expected a or g for {op}; got neither")
    # A user's own op may round where the op it is drawn as does not.
    unfit_for_exact = requires & set(ROUNDING_OPTIONS) or drawn_as(op) != op
    return [
        (recipe, form)
        for recipe in RECIPES.values()
        for form in forms
        if (drawn_as(op), form) in recipe.supports
        and not (recipe.exact and unfit_for_exact)
    ]
