"""The case list of a verify run keeps its promises for any kernel."""

from collections import defaultdict
from itertools import product
from typing import Any

import pytest
from drawn_heads import HEAD_OPS
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.recipes import (
    RECIPES,
    accepts_everything,
    build,
    case_list,
    recipes_for,
)
from scancheck.recipes.catalog import QUICK_NAMES
from scancheck.recipes.op_rules import chains_of, rules_of

SLOW_RECIPES = {"gaussian_slow", "unit_decay", "impulse_at_chunk_edge"}
PROFILES = pytest.mark.parametrize("profile", ["quick", "full"])
KERNELS = {
    "plain": ("linear_scan", frozenset({"a", "b"})),
    "log": ("linear_scan", frozenset({"g", "b", "initial_state"})),
    "both": ("linear_scan", accepts_everything("linear_scan")),
    "bare": ("selective_scan", frozenset({"u", "delta", "A", "B", "C"})),
    "whole": ("selective_scan", accepts_everything("selective_scan")),
    "ssd bare": ("ssd", frozenset({"x", "dt", "A", "B", "C"})),
    **{op: (op, accepts_everything(op)) for op in HEAD_OPS},
}
EVERY_KERNEL = pytest.mark.parametrize(("op", "accepts"), KERNELS.values(), ids=KERNELS)


def steps_of(case: Case) -> int:
    """Tokens of a case."""
    return dict(case.sizes)[op_named(case.op).time_axis]


def has_first_state(case: Case) -> bool:
    """Whether the case gives an initial state."""
    return option(case, op_named(case.op).state) is True


def option(case: Case, name: str) -> Any:
    """One option of a case, None when absent."""
    return dict(case.options).get(name)


@EVERY_KERNEL
@PROFILES
def test_every_recipe_in_every_form_at_several_chunks(
    op: str, accepts: frozenset[str], profile: str
) -> None:
    """Each recipe of the profile is met over two chunk edges, in each accepted form."""
    cases = case_list(op, "fp32", accepts=accepts, profile=profile, chunk=32)
    met = {(c.recipe, option(c, "form")) for c in cases if steps_of(c) > 64}
    forms: list[str | None] = [None]
    if op == "linear_scan":
        forms = [f for f in ("a", "g") if f in accepts]
    known = {(r.name, form) for form in forms for r in recipes_for(op, form)}
    if profile == "quick":
        known = {(name, form) for name, form in known if name in QUICK_NAMES}
    assert met == known


@EVERY_KERNEL
@PROFILES
@pytest.mark.parametrize("chunk", [None, 2, 16, 100, 256, 1000])
def test_lengths(
    op: str, accepts: frozenset[str], profile: str, chunk: int | None
) -> None:
    """Short lengths, those around a chunk, slow decay over three edges to a tail."""
    cases = case_list(op, "fp32", accepts=accepts, profile=profile, chunk=chunk)
    size = chunk or 64
    lengths = {steps_of(case) for case in cases}
    assert {1, 2, 3, size - 1, size, size + 1} - {0} <= lengths
    crossing = [
        case
        for case in cases
        if case.recipe in SLOW_RECIPES
        and steps_of(case) > 3 * size
        and steps_of(case) % size
    ]
    assert crossing
    assert op_named(op).state not in accepts or any(map(has_first_state, crossing))
    long_cases = [n for n in map(steps_of, cases) if n >= 1024]
    assert len(long_cases) >= 2


@EVERY_KERNEL
def test_quick_is_quick(op: str, accepts: frozenset[str]) -> None:
    """About 30 cases and few tokens, mostly short: seconds for a loop in Python."""
    cases = case_list(op, "fp32", accepts=accepts)
    assert 29 <= len(cases) <= 40
    lengths = sorted(map(steps_of, cases))
    assert lengths[-3] <= 300
    assert sum(lengths) <= 8000


@EVERY_KERNEL
def test_full_is_full(op: str, accepts: frozenset[str]) -> None:
    """About 300 cases, also of whole chunks, up to 4099 tokens, two of 16 384 or so."""
    cases = case_list(op, "fp32", accepts=accepts, profile="full")
    assert 290 <= len(cases) <= 310
    lengths = sorted(map(steps_of, cases))
    assert lengths[-2] >= 16_384
    assert lengths[-3] == 4099
    # Each recipe meets several lengths in each form.
    met: dict[Any, list[int]] = defaultdict(list)
    for case in cases:
        met[case.recipe, option(case, "form")].append(steps_of(case))
    assert min(map(len, met.values())) >= 4
    assert all(len(set(lengths)) >= 4 for lengths in met.values())
    assert {128, 191, 256} <= set(lengths)


@EVERY_KERNEL
@PROFILES
def test_batches_and_first_states(
    op: str, accepts: frozenset[str], profile: str
) -> None:
    """Several cases have more than one row; half have a first state where accepted."""
    cases = case_list(op, "fp32", accepts=accepts, profile=profile)
    assert sum(dict(case.sizes)["B"] > 1 for case in cases) >= 5
    given_state = sum(map(has_first_state, cases))
    if op_named(op).state in accepts:
        assert len(cases) / 2 <= given_state < len(cases)
    else:
        assert given_state == 0


@EVERY_KERNEL
@PROFILES
def test_judged_recipes_have_enough_chains(
    op: str, accepts: frozenset[str], profile: str
) -> None:
    """Recipes with independent roundings have the 16 chains that rho needs."""
    for case in case_list(op, "fp32", accepts=accepts, profile=profile):
        if RECIPES[case.recipe].independent_roundings:
            assert chains_of(op_named(op), dict(case.sizes)) >= 16


@EVERY_KERNEL
@PROFILES
def test_only_what_the_kernel_takes(
    op: str, accepts: frozenset[str], profile: str
) -> None:
    """No case has an input, switch, form or layout that the kernel lacks; all build."""
    required = {spec.name for spec in op_named(op).inputs if spec.required}
    for case in case_list(op, "bf16", accepts=accepts, profile=profile, empty=True):
        inputs = build(case)
        assert set(inputs.tensors) <= accepts | required
        assert {n for n, on in inputs.switches.items() if on} <= accepts
        if op == "selective_scan":
            rank = inputs.tensors["B"].ndim
            layout = {2: "keys=constant", 3: None, 4: "keys=grouped"}[rank]
            assert layout is None or layout in accepts


def groupings(cases: list[Case]) -> set[bool]:
    """Whether value heads share keys, over all cases."""
    sizes = [{"HV": dict(case.sizes)["H"]} | dict(case.sizes) for case in cases]
    return {s["HV"] > s.get("G", s["H"]) for s in sizes}


@PROFILES
@pytest.mark.parametrize("op", HEAD_OPS)
def test_heads_vary(op: str, profile: str) -> None:
    """Key heads shared and not, one head and several, odd sizes, K above V and below.

    Optional inputs and switches are met present and absent.
    """
    cases = case_list(op, "fp32", accepts=accepts_everything(op), profile=profile)
    shared = "HV" in op_named(op).size_names or op == "ssd"
    assert groupings(cases) == ({True, False} if shared else {False})
    keys, values = ("N", "P") if op == "ssd" else ("K", "V")
    sizes = [dict(case.sizes) for case in cases]
    assert {s[keys] > s[values] for s in sizes} == {True, False}
    assert any(s[keys] % 2 and s[values] % 2 for s in sizes)
    assert {s["H"] > 1 for s in sizes} == {True, False}
    for name, default in rules_of(op).options.items():
        if isinstance(default, bool):
            assert {option(case, name) for case in cases} == {True, False}


@PROFILES
def test_options_of_selective_scan_vary(profile: str) -> None:
    """Each optional input and each layout is met present and absent."""
    cases = case_list(
        "selective_scan",
        "fp32",
        accepts=accepts_everything("selective_scan"),
        profile=profile,
    )
    for name in ("initial_state", "D", "z", "delta_bias", "delta_softplus"):
        assert {option(case, name) for case in cases} == {True, False}
    assert {option(c, "keys") for c in cases} == {"time", "grouped", "constant"}
    assert {dict(c.sizes).get("G", 1) for c in cases} == {1, 2}
    assert any(dict(c.sizes)["N"] % 2 for c in cases)


@EVERY_KERNEL
@PROFILES
@pytest.mark.parametrize("chunk", [None, 2, 100, 256])
def test_many_channels(
    op: str, accepts: frozenset[str], profile: str, chunk: int | None
) -> None:
    """Each form and layout has whole vectors of many channels, over two chunks."""
    cases = case_list(op, "fp16", accepts=accepts, profile=profile, chunk=chunk)
    wide = [case for case in cases if dict(case.sizes)[rules_of(op).lanes] > 24]
    size = chunk or 64
    for case in wide:
        sizes = dict(case.sizes)
        assert size < steps_of(case) <= size + 8
        assert sizes["B"] > 1
        assert option(case, op_named(op).state) == (op_named(op).state in accepts)
        if op in HEAD_OPS:
            assert {sizes[n] % 32 for n in ("K", "N", "V", "P") if n in sizes} == {0}
            continue
        whole = sizes["D"] if op == "linear_scan" else steps_of(case)
        assert whole % 8 == 0
        assert op == "linear_scan" or sizes["D"] // sizes.get("G", 1) % 16 == 0
    if op == "linear_scan":
        assert {option(case, "form") for case in wide} == accepts & {"a", "g"}
    elif op in HEAD_OPS:
        assert groupings(wide) == groupings(cases)
    else:
        layouts = {"time"} | ({"grouped"} if "keys=grouped" in accepts else set())
        assert {option(case, "keys") for case in wide} == layouts


@PROFILES
def test_required_inputs_are_always_given(profile: str) -> None:
    """A kernel that cannot do without z and a first state gets them every time."""
    needs = frozenset({"z", "initial_state"})
    cases = case_list(
        "selective_scan",
        "fp32",
        accepts=accepts_everything("selective_scan"),
        requires=needs,
        profile=profile,
    )
    for case in cases:
        assert needs <= set(build(case).tensors)
    assert "exact_dyadic" not in {case.recipe for case in cases}


@EVERY_KERNEL
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    chunk=st.none() | st.integers(1, 2000),
    dtype=st.sampled_from(["fp16", "bf16", "fp32", "fp64"]),
)
def test_the_list_is_a_function_of_its_arguments(
    op: str, accepts: frozenset[str], seed: int, chunk: int | None, dtype: str
) -> None:
    """The same arguments give the same distinct cases, another seed other draws."""

    def listed(seed: int) -> list[Case]:
        return case_list(op, dtype, accepts=accepts, seed=seed, chunk=chunk)

    cases = listed(seed)
    assert cases == listed(seed)
    assert len({case.id for case in cases}) == len(cases)
    others = {case.seed for case in listed(seed ^ 1)}
    assert len(others & {case.seed for case in cases}) < 3
    assert all(option(case, "chunk") == chunk for case in cases)


@pytest.mark.parametrize("accepts", [KERNELS["both"][1], KERNELS["log"][1]])
def test_empty_cases_come_last(accepts: frozenset[str]) -> None:
    """With `empty`, each form has a case without tokens and one without rows."""
    without = case_list("linear_scan", "fp32", accepts=accepts)
    with_empty = case_list("linear_scan", "fp32", accepts=accepts, empty=True)
    assert with_empty[: len(without)] == without
    assert not any(0 in dict(case.sizes).values() for case in without)
    added = {
        (option(case, "form"), axis)
        for case in with_empty[len(without) :]
        for axis in ("T", "B")
        if dict(case.sizes)[axis] == 0
    }
    assert added == set(product([f for f in ("a", "g") if f in accepts], ("T", "B")))


def test_unknown_words_are_refused() -> None:
    """An unknown op or profile, or a kernel without any form, is named."""
    accepts = frozenset({"a", "b"})
    with pytest.raises(CaseInvalid, match=r"linear_scan.*selective_scan"):
        case_list("linear", "fp32", accepts=accepts)
    with pytest.raises(CaseInvalid, match=r"quick, full.*'slow'"):
        case_list("linear_scan", "fp32", accepts=accepts, profile="slow")
    with pytest.raises(CaseInvalid, match="a or g"):
        case_list("linear_scan", "fp32", accepts=frozenset({"b"}))
