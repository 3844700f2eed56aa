"""From cases to tensors: formats, shapes, repeatability, and what is refused."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drawn_heads import head_sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, FP32, FP64, round_array
from scancheck.ops import OPS, op_named
from scancheck.ops.normal_form import spec_of
from scancheck.recipes import RECIPES, Inputs, build
from scancheck.recipes.draw import cases
from scancheck.recipes.inputs import representable
from scancheck.recipes.op_rules import rules_of

RECIPES_AND_FORMS = [
    (recipe.name, op, form)
    for recipe in RECIPES.values()
    for op, form in recipe.supports
]
EVERY = pytest.mark.parametrize(("recipe", "op", "form"), RECIPES_AND_FORMS)


def a_case(
    recipe: str,
    op: str,
    form: str | None,
    *,
    batch: int = 2,
    steps: int = 150,
    dtype: str = "fp32",
    seed: int = 5,
    **options: Any,
) -> Case:
    """A case of a recipe with its optional inputs, small in all other sizes."""
    sizes = {"B": batch, op_named(op).time_axis: steps}
    options.setdefault(op_named(op).state, True)
    if op == "linear_scan":
        sizes |= {"D": 4}
        options["form"] = form
    elif op == "selective_scan":
        options.setdefault("keys", "grouped")
        sizes |= {"D": 4, "N": 3, "G": 2 if options["keys"] == "grouped" else 1}
    else:
        sizes |= head_sizes(op, exact=RECIPES[recipe].exact)
    if RECIPES[recipe].exact:
        rounding = {"z", "delta_softplus", "dt_softplus"} & rules_of(op).options.keys()
        options |= dict.fromkeys(rounding, False)
    return make_case(op, sizes, dtype=dtype, recipe=recipe, seed=seed, options=options)


def bits(inputs: Inputs) -> dict[str, bytes]:
    """Every tensor as the bytes of its values."""
    return {name: values.tobytes() for name, values in inputs.tensors.items()}


def digest(inputs: Iterator[Inputs]) -> str:
    """One short digest of many inputs."""
    total = hashlib.sha256()
    for one in inputs:
        for name, values in one.tensors.items():
            total.update(name.encode() + values.tobytes())
    return total.hexdigest()[:16]


def check_fits_its_op(case: Case, inputs: Inputs) -> None:
    """Each tensor has its spec's shape, is finite, and is held by its format."""
    op = op_named(case.op)
    sizes = {"G": 1, **dict(case.sizes)}
    for name, values in inputs.tensors.items():
        spec = spec_of(op, name, values.ndim)
        assert values.shape == tuple(sizes[axis] for axis in spec.axes), name
        assert values.dtype == np.float64
        assert np.isfinite(values).all(), name
        fmt = FORMATS[case.dtype]
        if spec.kind == "state" and fmt != FP64:
            fmt = FP32
        assert np.array_equal(values, round_array(fmt, values)), name
    for spec in op.inputs:
        if spec.required:
            assert spec.name in inputs.tensors
    if case.op == "ssd" and not inputs.switches["dt_softplus"]:
        bias = inputs.tensors.get("dt_bias", np.zeros(1))
        assert (inputs.tensors["dt"] + bias >= 0.0).all()
    if case.op == "selective_scan":
        step = inputs.tensors["delta"]
        if "delta_bias" in inputs.tensors:
            step = step + inputs.tensors["delta_bias"][:, None]
        assert inputs.switches["delta_softplus"] or (step >= 0.0).all()


@EVERY
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_value_is_in_its_format(
    recipe: str, op: str, form: str | None, dtype: str
) -> None:
    """Each recipe gives finite tensors of the op's shapes and of the case's formats."""
    case = a_case(recipe, op, form, dtype=dtype)
    check_fits_its_op(case, build(case))


@EVERY
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_smallest_cases_build(
    recipe: str, op: str, form: str | None, dtype: str
) -> None:
    """No tokens, one token, two tokens and no batch rows are sizes like any other."""
    for batch, steps in ((1, 0), (1, 1), (1, 2), (0, 150), (0, 0)):
        case = a_case(recipe, op, form, batch=batch, steps=steps, dtype=dtype)
        check_fits_its_op(case, build(case))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_drawn_case_fits_its_op(op: str, data: st.DataObject) -> None:
    """Whatever the strategy draws builds, in the shapes and formats of the op."""
    case = data.draw(
        cases(
            op, dtypes=tuple(FORMATS), chunk=data.draw(st.integers(1, 70)), empty=True
        )
    )
    check_fits_its_op(case, build(case))


@EVERY
def test_a_case_always_gives_the_same_bits(
    recipe: str, op: str, form: str | None
) -> None:
    """Building twice gives the same bits, and another seed gives others."""
    case = a_case(recipe, op, form)
    assert bits(build(case)) == bits(build(case))
    assert bits(build(case)) != bits(build(a_case(recipe, op, form, seed=6)))


@pytest.mark.parametrize(
    ("op", "expected"),
    [("linear_scan", "99243caf8e2eaa5c"), ("selective_scan", "c43c06596db3a23d")],
)
def test_the_bits_are_those_of_the_last_release(op: str, expected: str) -> None:
    """A stored case rebuilds the tensors that it was found with.

    After a deliberate change of a recipe, say so in the changelog and renew these.
    """
    inputs = (
        build(a_case(recipe, op, form, dtype=dtype))
        for (recipe, of, form), dtype in itertools.product(RECIPES_AND_FORMS, FORMATS)
        if of == op and FORMATS[dtype].bits > 8
    )
    assert digest(inputs) == expected


AIMED_AT_A_FORMAT = {
    "telescoping_cancellation",
    "prescribed_condition",
    "subnormal_state",
    "dip_out_of_range",
    "rise_and_fall",
    "isolated_growth",
    "drives_of_many_scales",
    "cumulative_gate_at_limit",
    "converged_state",
}


@pytest.mark.parametrize(
    ("recipe", "op", "form"),
    [row for row in RECIPES_AND_FORMS if row[0] not in AIMED_AT_A_FORMAT],
)
def test_dtypes_round_the_same_values(recipe: str, op: str, form: str | None) -> None:
    """Drives in bf16 are the drives of fp64, rounded, unless aimed at a format."""
    name = {"linear_scan": "b", "selective_scan": "u", "ssd": "x"}.get(op, "v")
    wide = build(a_case(recipe, op, form, dtype="fp64")).tensors[name]
    short = build(a_case(recipe, op, form, dtype="bf16")).tensors[name]
    assert np.array_equal(short, round_array(FORMATS["bf16"], wide))


def test_a_format_without_infinity_is_given_its_largest_value() -> None:
    """A gate of -1e4 is -448 in e4m3, whose decay is 0 too; nothing is NaN."""
    values = np.array([-1e4, -np.inf, 1e9, 450.0, -0.0])
    got = representable(FORMATS["fp8_e4m3"], values)
    assert got.tolist() == [-448.0, -448.0, 448.0, 448.0, 0.0]
    assert np.signbit(got[4])
    assert representable(FORMATS["fp8_e5m2"], values)[1] == -np.inf


@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
def test_key_layouts(keys: str) -> None:
    """B and C come in the layout that the case asks for."""
    inputs = build(a_case("gaussian_slow", "selective_scan", None, keys=keys))
    expected = {"time": (2, 3, 150), "grouped": (2, 2, 3, 150), "constant": (4, 3)}
    assert inputs.tensors["B"].shape == expected[keys]
    assert inputs.tensors["C"].shape == expected[keys]


def test_options_drop_tensors_and_change_no_other() -> None:
    """An optional input that is not asked for is absent; the others keep their bits."""
    everything = bits(build(a_case("unit_decay", "selective_scan", None)))
    for name in ("initial_state", "D", "z"):
        rest = build(a_case("unit_decay", "selective_scan", None, **{name: False}))
        assert bits(rest) == {k: v for k, v in everything.items() if k != name}


def test_switches_are_told() -> None:
    """The inputs carry the op's switches as the case sets them."""
    case = a_case("unit_decay", "selective_scan", None, delta_softplus=False)
    assert build(case).switches == {"delta_softplus": False}
    assert build(a_case("unit_decay", "linear_scan", "a")).switches == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "linear_skan"}, ("op", "linear_scan", "linear_skan")),
        ({"dtype": "fp12"}, ("dtype", "fp16", "fp12")),
        ({"recipe": "unit"}, ("recipe", "unit_decay", "'unit'")),
        ({"seed": -1}, ("seed", "2**63", "-1")),
        ({"seed": 2**63}, ("seed", "2**63", str(2**63))),
        ({"sizes": (("B", 1), ("T", 4))}, ("size D", "missing", "B, T, D")),
        (
            {"sizes": (("B", 1), ("D", 2), ("T", -4))},
            ("size T", "at least 0", "-4"),
        ),
        ({"sizes": (("B", 1), ("D", 0), ("T", 4))}, ("size D", "at least 1", "0")),
        (
            {"sizes": (("B", 1), ("D", 2), ("T", 2.5))},
            ("size T", "an integer", "2.5"),
        ),
        (
            {"sizes": (("B", 1), ("D", 2), ("N", 3), ("T", 4))},
            ("size 'N'", "B, T, D"),
        ),
        ({"options": (("z", True),)}, ("option 'z'", "initial_state", "linear_scan")),
        ({"options": (("form", "log"),)}, ("option form", "a, g", "'log'")),
        (
            {"options": (("initial_state", 1),)},
            ("option initial_state", "true or false", "1"),
        ),
        ({"options": (("chunk", 0),)}, ("option chunk", "at least 1", "0")),
        ({"options": (("chunk", True),)}, ("option chunk", "an integer", "True")),
        (
            {"recipe": "negative_decay", "options": (("form", "g"),)},
            ("negative_decay", "form a", "form g"),
        ),
    ],
)
def test_a_bad_case_is_refused_by_name(
    change: dict[str, Any], words: tuple[str, ...]
) -> None:
    """The message names the argument, what was expected and what came."""
    fields = {
        "op": "linear_scan",
        "sizes": (("B", 1), ("D", 2), ("T", 4)),
        "dtype": "fp32",
        "recipe": "unit_decay",
        "seed": 0,
        **change,
    }
    with pytest.raises(CaseInvalid) as caught:
        build(Case(**fields))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "options", "recipe", "words"),
    [
        ({"G": 3}, {"keys": "grouped"}, "unit_decay", ("size G", "D = 4", "3")),
        ({"G": 0}, {}, "unit_decay", ("size G", "at least 1", "0")),
        ({"G": 2}, {"keys": "time"}, "unit_decay", ("size G", "keys time", "2")),
        ({}, {"keys": "headed"}, "unit_decay", ("option keys", "grouped", "headed")),
        ({}, {"z": False}, "exact_dyadic", ("exact_dyadic", "delta_softplus", "true")),
        (
            {},
            {"delta_softplus": False},
            "exact_dyadic",
            ("exact_dyadic", "option z", "true"),
        ),
        (
            {},
            {},
            "negative_decay",
            ("negative_decay", "linear_scan with form a", "selective_scan"),
        ),
    ],
)
def test_a_bad_selective_scan_case_is_refused_by_name(
    sizes: dict[str, int],
    options: dict[str, Any],
    recipe: str,
    words: tuple[str, ...],
) -> None:
    """The same for what only selective_scan has: groups, layouts, softplus and z."""
    case = make_case(
        "selective_scan",
        {"B": 1, "D": 4, "L": 3, "N": 2, **sizes},
        recipe=recipe,
        seed=0,
        options=options,
    )
    with pytest.raises(CaseInvalid) as caught:
        build(case)
    for word in words:
        assert word in str(caught.value)
