"""From a case to its tensors, the same bits on every machine."""

from typing import Any

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.ops import op_named
from scancheck.ops.calling import OPTIONS, calling_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.recipes.calls import drawn_sizes, laid_out
from scancheck.recipes.catalog import RECIPES, check_has_recipes
from scancheck.recipes.chains import Plan, Tensors
from scancheck.recipes.inputs import (
    Inputs,
    case_sizes,
    representable,
    tensor_format,
)
from scancheck.recipes.op_rules import (
    CHOICES,
    ROUNDING_OPTIONS,
    channels_of,
    drawn_as,
    further_inputs,
    rules_of,
)
from scancheck.recipes.recipe import Recipe
from scancheck.recipes.regimes import REGIMES

MAY_BE_ZERO = ("B", "T", "L")


def build(case: Case) -> Inputs:
    """The inputs of a case: a function of its fields alone, to the last bit.

    Values are drawn from a stream keyed by op, recipe and seed (see streams.py: no
    mathematical library takes part), then rounded once into the format of their
    tensor: the case's dtype, or fp32 (fp64 when the case is fp64) for the op's tensors
    of kind state. Cases that differ only in dtype round the same values.

    Raises CaseInvalid when the case names an unknown op, recipe, dtype, size or option,
    a value out of its range, or a recipe that does not fit the op or its options.
    """
    op = op_named(case.op)
    if case.dtype not in FORMATS:
        expected = ", ".join(FORMATS)
        raise CaseInvalid(f"dtype: expected one of {expected}; got {case.dtype!r}")
    options = checked_options(case)
    sizes = _checked_sizes(op, case, options)
    recipe = _checked_recipe(case, options, sizes)
    calling = calling_of(options)
    if calling is not None:
        calling.check(sizes["B"], sizes[op.time_axis])
    drawn = drawn_sizes(calling, op, sizes)
    channels = channels_of(op, sizes)
    heads, states, _ = op.group_shape(sizes | {"B": 1})
    substeps = op.substeps(sizes)
    plan = Plan(
        op=drawn_as(op.name),
        form=options.get("form"),
        batch=drawn["B"],
        steps=drawn[op.time_axis] * substeps,
        channels=channels,
        states=states,
        groups=sizes.get("G", sizes.get("H", 1)),
        heads=heads,
        keys=options.get("keys", "time"),
        softplus=options.get("delta_softplus", options.get("dt_softplus", False)),
        bias=options.get("delta_bias", options.get("dt_bias", False)),
        initial_state=options[op.state],
        chunk=options["chunk"] * substeps,
        fmt=FORMATS[case.dtype],
        key=f"{case.op} {case.recipe} {case.seed}",
        substeps=substeps,
    )
    tensors = recipe.tensors(plan) | further_inputs(op, drawn, plan.key)
    wanted = {
        name: values for name, values in tensors.items() if options.get(name, True)
    }
    wanted = laid_out(calling, op, wanted)
    return Inputs(
        tensors=_rounded(case, op, wanted),
        switches={name: options[name] for name in op.switches},
    )


def _rounded(case: Case, op: Op, tensors: Tensors) -> Tensors:
    """Each tensor in its format, in the order of the op's inputs."""
    return {
        spec.name: representable(
            tensor_format(case, spec_of(op, spec.name, tensors[spec.name].ndim)),
            tensors[spec.name],
        )
        for spec in op.inputs
        if spec.name in tensors
    }


def checked_options(case: Case) -> dict[str, Any]:
    """The case's options over the op's defaults; raises CaseInvalid on a bad one."""
    check_has_recipes(case.op)
    defaults = rules_of(case.op).options
    for name, value in case.options:
        if name in OPTIONS:
            continue  # how the op is called, checked by `calling_of`
        if name not in defaults:
            expected = ", ".join(defaults)
            raise CaseInvalid(
                f"option {name!r} is unknown for {case.op}; expected one of {expected}"
            )
        if name in CHOICES:
            if value not in CHOICES[name]:
                expected = ", ".join(CHOICES[name])
                raise CaseInvalid(
                    f"option {name}: expected one of {expected}; got {value!r}"
                )
        elif isinstance(defaults[name], bool):
            if not isinstance(value, bool):
                raise CaseInvalid(
                    f"option {name}: expected true or false; got {value!r}"
                )
        elif not _is_integer(value) or value < 1:
            raise CaseInvalid(
                f"option {name}: expected an integer of at least 1; got {value!r}"
            )
    return defaults | dict(case.options)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_sizes(op: Op, case: Case, options: dict[str, Any]) -> dict[str, int]:
    """The sizes by name; raises CaseInvalid for one missing, unknown or too small."""
    sizes = case_sizes(case)
    for name in op.size_names:
        lowest = 0 if name in MAY_BE_ZERO else 1
        if name not in sizes:
            raise CaseInvalid(
                f"size {name} is missing; {op.name} has {', '.join(op.size_names)}"
            )
        if not _is_integer(sizes[name]) or sizes[name] < lowest:
            raise CaseInvalid(
                f"size {name}: expected an integer of at least {lowest}; "
                f"got {sizes[name]!r}"
            )
    for name in sizes:
        if name not in op.size_names:
            raise CaseInvalid(
                f"size {name!r} is unknown for {op.name}; "
                f"expected {', '.join(op.size_names)}"
            )
    for whole, part in rules_of(op.name).divisors:
        if sizes[whole] % sizes[part]:
            raise CaseInvalid(
                f"size {part}: expected a divisor of {whole} = {sizes[whole]}; "
                f"got {sizes[part]}"
            )
    keys = options.get("keys", "grouped")
    if keys != "grouped" and sizes["G"] > 1:
        raise CaseInvalid(
            f"size G: expected 1 with option keys {keys}; got {sizes['G']}"
        )
    return sizes


def _checked_recipe(
    case: Case, options: dict[str, Any], sizes: dict[str, int]
) -> Recipe:
    """The case's recipe; raises CaseInvalid for one unknown or unfit for the case."""
    if case.recipe not in RECIPES and case.recipe not in REGIMES:
        expected = ", ".join((*RECIPES, *REGIMES))
        raise CaseInvalid(
            f"recipe {case.recipe!r} is unknown; expected one of {expected}"
        )
    if not _is_integer(case.seed) or not 0 <= case.seed < 2**63:
        raise CaseInvalid(f"seed: expected 0 <= seed < 2**63; got {case.seed!r}")
    regime = REGIMES.get(case.recipe)
    recipe = RECIPES[case.recipe] if regime is None else regime.recipe
    form = options.get("form")
    if (drawn_as(case.op), form) not in recipe.supports:
        expected = ", ".join(
            op if form is None else f"{op} with form {form}"
            for op, form in recipe.supports
        )
        raise CaseInvalid(
            f"recipe {recipe.name}: expected one of {expected}; got {case.op}"
            + (f" with form {form}" if form else "")
        )
    for name in ROUNDING_OPTIONS:
        if recipe.exact and options.get(name):
            raise CaseInvalid(
                f"recipe {recipe.name}: expected option {name} false, since softplus "
                "and silu round; got true"
            )
    width = rules_of(case.op).scaled_by
    if recipe.exact and width is not None and not _is_power_of_4(sizes[width]):
        raise CaseInvalid(
            f"recipe {recipe.name}: expected a power of 4 for size {width}, since its "
            f"root scales the output; got {sizes[width]}"
        )
    return recipe


def _is_power_of_4(size: int) -> bool:
    return size.bit_count() == 1 and size.bit_length() % 2 == 1
