"""Hypothesis strategies that draw cases, never tensors.

A case of a few numbers shrinks to a case of a few numbers, which can be read and
replayed; the tensors follow from it.
"""

from typing import Any

from hypothesis import strategies as st

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.recipes.catalog import accepts_everything, recipes_taken
from scancheck.recipes.inputs import DEFAULT_CHUNK
from scancheck.recipes.op_rules import KEY_LAYOUTS, ROUNDING_OPTIONS, OpRules, rules_of
from scancheck.recipes.recipe import Recipe

LONGEST = {"quick": 1025, "full": 4099}


def steps(profile: str, chunk: int, *, empty: bool = False) -> st.SearchStrategy[int]:
    """Lengths: the smallest, those around chunk edges, odd tails, then any.

    Raises CaseInvalid for an unknown profile.
    """
    if profile not in LONGEST:
        expected = ", ".join(LONGEST)
        raise CaseInvalid(f"profile: expected one of {expected}; got {profile!r}")
    longest = LONGEST[profile]
    around = [
        multiple * chunk + offset
        for multiple in (1, 2, 3, 4, 8, 16)
        for offset in (-1, 0, 1, 3)
    ]
    least = 0 if empty else 1
    known = sorted({n for n in (0, 1, 2, 3, *around, longest) if least <= n <= longest})
    return st.sampled_from(known) | st.integers(least, longest)


@st.composite
def cases(
    draw: st.DrawFn,
    op: str,
    *,
    dtypes: tuple[str, ...] = ("fp32",),
    profile: str = "quick",
    chunk: int = DEFAULT_CHUNK,
    accepts: frozenset[str] | None = None,
    requires: frozenset[str] = frozenset(),
    empty: bool = False,
) -> Case:
    """Cases that a kernel can be given, shrinking to few tokens and a plain recipe.

    `accepts` and `requires` as for `case_list`; None accepts everything. `empty` draws
    T = 0 and B = 0 as well. Raises CaseInvalid as `case_list` does.
    """
    accepts = accepts_everything(op) if accepts is None else accepts
    rules = rules_of(op)
    recipe, form = draw(st.sampled_from(recipes_taken(op, accepts, requires)))
    options: dict[str, Any] = {} if form is None else {"form": form}
    if chunk != DEFAULT_CHUNK:
        options["chunk"] = chunk
    for name, default in rules.options.items():
        if isinstance(default, bool):
            possible = name in accepts and not (
                recipe.exact and name in ROUNDING_OPTIONS
            )
            options[name] = possible and (name in requires or draw(st.booleans()))
    sizes = {
        "B": draw(st.integers(0 if empty else 1, 3)),
        op_named(op).time_axis: draw(steps(profile, chunk, empty=empty)),
        **_drawn_sizes(draw, rules, recipe),
    }
    if "keys" in rules.options:
        layouts = [k for k in KEY_LAYOUTS if k == "time" or f"keys={k}" in accepts]
        options["keys"] = draw(st.sampled_from(layouts))
        sizes["N"] = draw(st.integers(1, rules.drawn["N"]))
        grouped = options["keys"] == "grouped" and sizes["D"] % 2 == 0
        sizes["G"] = draw(st.sampled_from([1, 2])) if grouped else 1
    return make_case(
        op,
        sizes,
        dtype=draw(st.sampled_from(dtypes)),
        recipe=recipe.name,
        seed=draw(st.integers(0, 2**31 - 1)),
        options=options,
    )


def _drawn_sizes(draw: st.DrawFn, rules: OpRules, recipe: Recipe) -> dict[str, int]:
    """Channels, heads and states, each a multiple of the drawn size that divides it.

    N of an op with several layouts is drawn once the layout is.
    """
    part_of = dict(rules.divisors)
    sizes: dict[str, int] = {}
    for name, most in rules.drawn.items():
        if name == "N" and "keys" in rules.options:
            continue
        part = sizes.get(part_of.get(name, ""), 1)
        if recipe.exact and name == rules.scaled_by:
            sizes[name] = draw(st.sampled_from([1, 4, 16]))
        else:
            sizes[name] = part * draw(st.integers(1, most // part))
    return sizes
