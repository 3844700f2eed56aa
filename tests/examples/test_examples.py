"""The scans of examples/ are right where they claim to be, and wrong as documented."""

from typing import Any

import pytest
import torch

from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.recipes.case_list import case_list
from scancheck.registry import resolve_target
from scancheck.verdict import Verdict


def example(name: str) -> Kernel:
    """The scan of the file of its name."""
    (kernel,) = resolve_target(f"examples/{name}.py:{name}", "linear_scan")
    return kernel


def judged(name: str, form: str, recipe: str, dtype: str, contract: Contract) -> Any:
    """The report on the recipe's first case of several chunks, gradients included."""
    accepts = frozenset({form, "b", "initial_state"})
    cases = case_list("linear_scan", dtype, accepts=accepts)
    case = next(c for c in cases if c.recipe == recipe and dict(c.sizes)["T"] > 100)
    request = Request(contract=contract, gradients=True)
    return check_case(example(name), case, request, cotangent_kind="dense")


@pytest.fixture(autouse=True)
def _in_the_checkout(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Targets are named from the checkout's root."""
    monkeypatch.chdir(request.config.rootpath)


@pytest.mark.parametrize("recipe", ["gaussian_slow", "exact_dyadic", "exact_reset"])
def test_cumprod_scan_is_right_on_ordinary_decays(recipe: str) -> None:
    """Outputs and gradients pass, also where a decay is exactly zero."""
    report = judged("cumprod_scan", "a", recipe, "fp32", Contract())
    assert report.verdict is Verdict.PASS


def test_cumprod_scan_loses_gradients_of_strong_decays() -> None:
    """Where its running product underflows, only the gradient of the decays fails."""
    report = judged("cumprod_scan", "a", "decay_near_zero", "fp32", Contract())
    red = {c.tensor for c in report.checks if c.verdict is Verdict.FAIL}
    assert red == {"a"}
    assert (report.outcome.gradients["a"] == 0).any()


def test_heinsen_scan_is_right_within_a_shorter_arithmetic() -> None:
    """In fp64 it errs less than tf32 may; the budget of its own format is too small."""
    shorter = Contract(compute="tf32")
    report = judged("heinsen_scan", "g", "gaussian_slow", "fp64", shorter)
    assert report.verdict is Verdict.PASS
    report = judged("heinsen_scan", "g", "decay_near_zero", "fp32", Contract())
    assert report.verdict is Verdict.FAIL


def test_complex_logcumsumexp_of_torch_gives_nan() -> None:
    """A finding about torch, which an update may end: a negative sum, then e^700."""
    terms = torch.tensor([3.1415927j, 700.0])
    assert torch.logcumsumexp(terms, 0)[1].isnan()
