"""The cases of one `verify` run: every recipe, all kinds of lengths, in fixed order."""

from dataclasses import dataclass, replace
from typing import Any

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.recipes.call_cases import call_cases
from scancheck.recipes.catalog import QUICK_NAMES, recipes_taken
from scancheck.recipes.inputs import DEFAULT_CHUNK
from scancheck.recipes.op_rules import KEY_LAYOUTS, channels_of, rules_of
from scancheck.recipes.recipe import Recipe
from scancheck.recipes.streams import Stream, integers, stream
from scancheck.recipes.taken_sizes import ALL_SIZES, TakenSizes

MOST_AIMED_AT = 256  # with larger chunks only the long cases cross three edges
LONGEST_STEPS = 16_384  # three chunks of up to 5460 tokens fit
LENGTHS_APART = 5  # between a recipe's length in one round and in the next
JUDGED_CHAINS = 16  # rho and lambda need as many (numerics.md 2.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much a run covers."""

    cases: int  # about how many cases
    steps: tuple[int, ...]  # lengths beside those around the chunk's edges
    multiples: tuple[tuple[int, int], ...]  # (k, r): k chunks and r tokens
    long_steps: int  # length of the two long cases, unless three chunks are longer


SEVERAL = ((2, 3), (3, 5), (4, 7), (3, 1), (2, 1))
PROFILES = {
    "quick": Profile(cases=30, steps=(), multiples=SEVERAL, long_steps=1024),
    "full": Profile(
        cases=300,
        steps=(511, 1025, 2051, 4099),
        multiples=(*SEVERAL, (2, 0), (3, -1), (4, 0)),
        long_steps=LONGEST_STEPS,
    ),
}
LONG_RECIPES = ("gaussian_slow", "unit_decay")
WIDE_STEPS = 8  # the lengths of wide cases are multiples


def case_list(
    op: str,
    dtype: str,
    *,
    accepts: frozenset[str],
    requires: frozenset[str] = frozenset(),
    profile: str = "quick",
    seed: int = 0,
    chunk: int | None = None,
    empty: bool = False,
    taken: TakenSizes = ALL_SIZES,
) -> list[Case]:
    """The cases on which a kernel is judged: the same for the same arguments.

    `accepts` holds the op's inputs and switches that the kernel takes (`a` and `g`:
    both forms), `keys=grouped` or `keys=constant` where B and C may have those layouts,
    and how it can be called: `cu_seqlens`, `reverse`, `attention_mask`; `requires`
    those it cannot be called without. With `chunk`, lengths and recipes aim at its
    edges. `empty` adds T = 0 and B = 0. All cases have sizes that are `taken`. Both
    profiles cover each of their recipes in each form at a length of several chunks, the
    short lengths around one chunk, two long sequences, many channels in each form or
    layout, and several sequences in one call. `quick` has about 30 cases of the recipes
    that show every class of bug, `full` about 300 of all recipes, beside those calls.

    Raises CaseInvalid for an unknown op or profile, or when the kernel accepts no form.
    """
    if profile not in PROFILES:
        expected = ", ".join(PROFILES)
        raise CaseInvalid(f"profile: expected one of {expected}; got {profile!r}")
    kernel = _Interface(accepts=accepts, requires=requires, chunk=chunk)
    pairs = [
        (recipe, form)
        for recipe, form in recipes_taken(op, accepts, requires)
        if profile == "full" or recipe.name in QUICK_NAMES
    ]
    source = stream("case_list", op, dtype, profile, seed)
    shapes = _shapes(pairs, PROFILES[profile], chunk or DEFAULT_CHUNK, source)
    seeds = integers(source, 0, 2**31 - 1, (len(shapes),))
    cases = [
        _case(op, dtype, index, shape, int(seeds[index]), kernel)
        for index, shape in enumerate(shapes)
    ]
    cases += _wide_cases(op, dtype, kernel, source)
    cases = [one for case in cases if (one := taken.of(case)) is not None]
    cases += call_cases(cases, accepts, profile=profile, chunk=chunk or DEFAULT_CHUNK)
    return cases + (_empty_cases(cases) if empty else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    """What a kernel takes."""

    accepts: frozenset[str]
    requires: frozenset[str]
    chunk: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A case before its smaller sizes and options are chosen."""

    recipe: Recipe
    form: str | None
    steps: int


def _shapes(
    pairs: list[tuple[Recipe, str | None]], profile: Profile, chunk: int, source: Stream
) -> list[_Shape]:
    """Recipes and lengths: all at several chunks, then long, then short, then more."""
    aim = min(chunk, MOST_AIMED_AT)
    several = [k * aim + r for k, r in profile.multiples]
    crossing = several[: len(SEVERAL)]
    around = min(chunk, profile.long_steps)
    short = sorted({1, 2, 3, max(1, around - 1), around, around + 1})
    long_steps = max(profile.long_steps, min(3 * chunk + 3, LONGEST_STEPS))
    with_tail = long_steps + (long_steps % chunk == 0)
    shapes = [
        _Shape(recipe=recipe, form=form, steps=crossing[index % len(crossing)])
        for index, (recipe, form) in enumerate(pairs)
    ]
    long_pairs = [pair for pair in pairs if pair[0].name in LONG_RECIPES]
    first, last = long_pairs[0], long_pairs[-1]
    shapes += [
        _Shape(recipe=recipe, form=form, steps=steps)
        for (recipe, form), steps in ((first, with_tail), (last, long_steps))
    ]
    rest = max(len(short), profile.cases - len(shapes))
    lengths = [*short, *several, *profile.steps]
    start = int(integers(source, 0, len(pairs) - 1, ()))
    for index in range(rest):
        # Each round meets all recipes, and every recipe at another length.
        turn, place = divmod(index, len(pairs))
        recipe, form = pairs[(start + place) % len(pairs)]
        steps = lengths[(place + LENGTHS_APART * turn) % len(lengths)]
        shapes.append(_Shape(recipe=recipe, form=form, steps=steps))
    # Where arithmetic is short, only a few steps leave a budget below the values.
    return shapes + [
        _Shape(recipe=recipe, form=form, steps=steps)
        for recipe, form in pairs
        if recipe.name == LONG_RECIPES[0]
        for steps in (2, 3)
    ]


def _case(
    op: str, dtype: str, index: int, shape: _Shape, seed: int, kernel: _Interface
) -> Case:
    """The case of a shape, its smaller sizes and options chosen by its index."""
    options = _options(op, index, shape, kernel)
    return make_case(
        op,
        _sizes(op, index, shape, options),
        dtype=dtype,
        recipe=shape.recipe.name,
        seed=seed,
        options=options,
    )


def _sizes(
    op: str, index: int, shape: _Shape, options: dict[str, Any]
) -> dict[str, int]:
    """Batch, channels, states and groups, turning with the index."""
    rules, known = rules_of(op), op_named(op)
    roster = rules.roster
    sizes = dict(roster[(index + index // len(roster)) % len(roster)])
    if shape.recipe.independent_roundings:
        lanes = channels_of(known, sizes) // sizes[rules.lanes]
        sizes[rules.lanes] = -(-JUDGED_CHAINS // (sizes["B"] * lanes))
    if shape.recipe.exact and rules.scaled_by is not None:
        sizes[rules.scaled_by] = 4 ** (1 + index % 2)
    if options.get("keys") == "grouped":
        sizes["G"] = 1 if sizes["D"] % 2 else 2
    return sizes | {known.time_axis: shape.steps}


def _options(op: str, index: int, shape: _Shape, kernel: _Interface) -> dict[str, Any]:
    """Optional inputs, forms and layouts, each turning with a period of its own."""
    state = index % 2 == 0 or index % 5 == 0
    bias = index % 5 != 2
    softplus = index % 7 != 3 and not shape.recipe.exact
    present = {
        "initial_state": state,
        "initial_states": state,
        "initial_normalizer": state,
        "initial_max": state or index % 4 == 1,
        "initial_key_sum": state != (index % 7 == 3),
        "D": index % 3 != 1,
        "z": index % 4 != 1 and not shape.recipe.exact,
        "delta_bias": bias,
        "dt_bias": bias,
        "delta_softplus": softplus,
        "dt_softplus": softplus,
        "gv": index % 3 != 1,
    }
    known = rules_of(op).options
    options: dict[str, Any] = {
        name: name in kernel.accepts and (value or name in kernel.requires)
        for name, value in present.items()
        if name in known
    }
    if shape.form is not None:
        options["form"] = shape.form
    if "keys" in known:
        layouts = [k for k in KEY_LAYOUTS if _is_taken(kernel, "keys", k)]
        options["keys"] = layouts[index % 5 % len(layouts)]
    if kernel.chunk is not None:
        options["chunk"] = kernel.chunk
    return options


def _wide_cases(
    op: str,
    dtype: str,
    kernel: _Interface,
    source: Stream,
) -> list[Case]:
    """Many channels over two chunks, in each form and layout, with all it takes."""
    rules = rules_of(op)
    chunk = min(kernel.chunk or DEFAULT_CHUNK, MOST_AIMED_AT)
    steps = (chunk // WIDE_STEPS + 1) * WIDE_STEPS
    every: dict[str, Any] = {
        name: name in kernel.accepts
        for name, default in rules.options.items()
        if isinstance(default, bool)
    }
    if kernel.chunk is not None:
        every["chunk"] = kernel.chunk
    taken = [
        (sizes, every | options)
        for sizes, options in rules.wide
        if all(_is_taken(kernel, name, choice) for name, choice in options.items())
    ]
    seeds = integers(source, 0, 2**31 - 1, (len(taken),))
    return [
        make_case(
            op,
            sizes | {op_named(op).time_axis: steps},
            dtype=dtype,
            recipe=LONG_RECIPES[0],
            seed=int(seed),
            options=options,
        )
        for (sizes, options), seed in zip(taken, seeds, strict=True)
    ]


def _is_taken(kernel: _Interface, option: str, choice: str) -> bool:
    """Whether the kernel can be given a form, or B and C in a layout."""
    if option == "form":
        return choice in kernel.accepts
    return choice == "time" or f"{option}={choice}" in kernel.accepts


def _empty_cases(cases: list[Case]) -> list[Case]:
    """The first case of each form without tokens, and without batch rows."""
    firsts = {dict(case.options).get("form"): case for case in reversed(cases)}
    return [
        replace(case, sizes=tuple(sorted((dict(case.sizes) | {axis: 0}).items())))
        for case in firsts.values()
        for axis in (op_named(case.op).time_axis, "B")
    ]
