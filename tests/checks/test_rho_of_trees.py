"""rho on correct trees, whose products of decays near 1 once were rounded one way."""

import pytest

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.kernels.models.catalog import model
from scancheck.verdict import Verdict


@pytest.mark.parametrize("seed", [1, 5])
def test_a_correct_tree_is_no_suspect_on_slow_decays(seed: int) -> None:
    """Two draws that reached rho = 4.2 and 4.5 when decays came close to 1 pass."""
    case = make_case(
        "linear_scan",
        {"B": 2, "T": 1025, "D": 8},
        recipe="gaussian_slow",
        seed=seed,
        options={"form": "a", "initial_state": True},
    )
    kernel = model("linear_scan", "hillis_steele", "plain")
    report = check_case(kernel, case, Request(contract=Contract()))
    assert report.verdict is Verdict.PASS
    rhos = [check.rho for check in report.checks if check.rho is not None]
    assert rhos and max(rhos) < 2.35
