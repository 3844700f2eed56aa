"""Each rule of the power table on arrays made by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from naive_loops import LOOPS, run_loop
from power_rules import RULES, Comparison

from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.recipes.build import build
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import accepts_everything
from scancheck.recipes.inputs import cotangents
from scancheck.runner import execute
from scancheck.verdict import Verdict

ONES = np.ones(1000)


def comparison(got: object, **changes: object) -> Comparison:
    """A tensor held against ones, which the baseline misses by 1/1024."""
    values = np.asarray(got, dtype=np.float64)
    ones = np.ones_like(values)
    given = {"reference": ones, "exact": ones, "baseline": ones + 2.0**-10}
    given |= {"dtype": torch.float32} | changes
    return Comparison(got=values, **given)


def one_off(size: float) -> np.ndarray:
    """Ones with one of a thousand elements changed."""
    changed = ONES.copy()
    changed[7] += size
    return changed


@pytest.mark.parametrize("rule", RULES)
def test_equal_tensors_and_empty_ones_are_accepted(rule: str) -> None:
    """No rule has a quarrel with what is right, or with no elements."""
    assert RULES[rule](comparison(ONES))
    assert RULES[rule](comparison(np.ones((0, 3))))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 5.0])
def test_gross_errors_are_rejected(rule: str, wrong: float) -> None:
    """NaN, infinity and five for one are seen by all."""
    assert not RULES[rule](comparison(one_off(wrong)))


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ("assert_close", 1.25e-6, 1.4e-5),  # fp32: rtol 1.3e-6 and atol 1e-5
        ("allclose_1e4", 1.0e-4, 1.2e-4),
        ("rms_0005", 0.15, 0.16),  # 0.005 sqrt(1000) is 0.158
        ("twice_baseline", 2.0**-9, 2.1 * 2.0**-10),
    ],
)
def test_where_each_rule_draws_its_line(
    rule: str, accepted: float, rejected: float
) -> None:
    """One element off by just less, and by just more, than the rule allows."""
    assert RULES[rule](comparison(one_off(accepted)))
    assert not RULES[rule](comparison(one_off(rejected)))


def test_tolerances_of_assert_close_are_those_of_the_dtype() -> None:
    """What is too much in fp32 is nothing in bf16."""
    off = one_off(2.0**-7)
    assert not RULES["assert_close"](comparison(off))
    assert RULES["assert_close"](comparison(off, dtype=torch.bfloat16))


def test_rms_accepts_tiny_differences_beside_a_tiny_reference() -> None:
    """A largest difference of 1e-6 passes whatever the ratio, as in fla's tests."""
    tiny = 1e-7 * ONES
    assert RULES["rms_0005"](comparison(2 * tiny, reference=tiny))
    assert not RULES["rms_0005"](comparison(200 * tiny, reference=100 * tiny))


def test_an_exact_baseline_allows_nothing() -> None:
    """Twice no error is no error."""
    rule = RULES["twice_baseline"]
    assert rule(comparison(ONES, baseline=ONES))
    assert not rule(comparison(one_off(1e-9), baseline=ONES))


def as_kernel(op: str) -> Kernel:
    """The naive loop in the calling form of a kernel."""

    def call(**arguments: Any) -> Any:
        return tuple(LOOPS[op](**arguments).values())

    names = {spec.name for spec in OPS[op].inputs} | set(OPS[op].switches)
    return Kernel(name="loop", op=op, call=call, supports=tuple(names))


@pytest.mark.parametrize("op", LOOPS)
def test_loops_are_the_op(op: str) -> None:
    """The loop passes as a kernel, in fp32 with gradients, in every key layout."""
    request = Request(contract=Contract(), gradients=True)
    cases = case_list(op, "fp32", accepts=accepts_everything(op))
    short = [case for case in cases if dict(case.sizes)[OPS[op].time_axis] < 150]
    judged = [
        check_case(as_kernel(op), case, request, cotangent_kind="dense").verdict
        for case in short[:12]
    ]
    assert set(judged) == {Verdict.PASS}


@pytest.mark.parametrize("op", LOOPS)
def test_loop_results_are_those_of_the_loop(op: str) -> None:
    """Outputs, and gradients of all inputs, also of those that nothing depends on."""
    # Where nothing rounds, so that alignment in memory has no say either.
    cases = case_list(op, "fp32", accepts=accepts_everything(op))
    case = next(case for case in cases if case.recipe == "exact_dyadic")
    inputs = build(case)
    bars = cotangents(case, "final_state", 0)
    found = run_loop(op, inputs.tensors, inputs.switches, bars, torch.float32)
    outcome = execute(as_kernel(op), OPS[op], inputs, "fp32", cotangents=bars, runs=1)
    for got, want in (
        (found.outputs, outcome.outputs),
        (found.gradients, outcome.gradients),
    ):
        assert set(got) == set(want)
        assert all((values == want[name]).all() for name, values in got.items())


@pytest.mark.parametrize("op", LOOPS)
def test_loops_take_no_tokens(op: str) -> None:
    """Without tokens the final state is the initial one."""
    case = case_list(op, "fp32", accepts=accepts_everything(op))[0]
    sizes = dict(case.sizes) | {OPS[op].time_axis: 0}
    empty = replace(case, sizes=tuple(sorted(sizes.items())))
    inputs = build(empty)
    found = run_loop(op, inputs.tensors, inputs.switches, None, torch.float32)
    state = found.outputs[OPS[op].outputs[1].name]
    assert (state == inputs.tensors["initial_state"]).all()
