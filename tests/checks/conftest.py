"""Small kernels and cases of linear_scan, and hand-made inputs for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from scancheck.case import Case, make_case
from scancheck.checks.oracle import CaseReport, Request, check_case, check_inputs
from scancheck.contract import Contract, parse_contract
from scancheck.kernel import Kernel
from scancheck.recipes.inputs import Inputs

Call = Callable[..., Any]


def scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    """A correct scan in the tensors' own format, or fp32 for shorter ones."""
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    decays, drives = a.to(wide), b.to(wide)
    state = decays.new_zeros(b.shape[0], b.shape[2])
    if initial_state is not None:
        state = initial_state
    rows = [b.to(wide)[:, :0]]
    for decay, drive in zip(decays.unbind(1), drives.unbind(1), strict=True):
        state = decay * state + drive
        rows.append(state[:, None])
    return torch.cat(rows, 1).to(b.dtype), state.clone()


@dataclass(frozen=True, slots=True)
class Bench:
    """What the tests of checks share."""

    scan: Call

    def kernel(self, call: Call, **facts: Any) -> Kernel:
        """The callable as a kernel of linear_scan."""
        return Kernel(name="tried", op="linear_scan", call=call, **facts)

    def case(
        self,
        recipe: str = "gaussian_slow",
        *,
        B: int = 2,
        T: int = 131,
        D: int = 8,
        dtype: str = "fp32",
        seed: int = 1,
        **options: Any,
    ) -> Case:
        """A case of linear_scan."""
        sizes = {"B": B, "T": T, "D": D}
        return make_case(
            "linear_scan", sizes, dtype=dtype, recipe=recipe, seed=seed, options=options
        )

    def request(self, contract: str = "", **facts: Any) -> Request:
        """A request under a contract in text."""
        return Request(contract=parse_contract(contract), **facts)

    def report(
        self, call: Call, case: Case, contract: str = "", bars: str | None = None
    ) -> CaseReport:
        """The report of a callable on a case, with gradients for `bars`."""
        request = self.request(contract, gradients=bars is not None)
        return check_case(self.kernel(call), case, request, cotangent_kind=bars)

    def given(
        self,
        call: Call,
        contract: Contract | None = None,
        *,
        dtype: str = "fp32",
        recipe: str = "gaussian_slow",
        **tensors: NDArray[np.float64],
    ) -> CaseReport:
        """The report of a callable on hand-made tensors."""
        B, T, D = tensors["b"].shape
        case = self.case(recipe, B=B, T=T, D=D, dtype=dtype)
        inputs = Inputs(tensors=dict(tensors), switches={})
        request = Request(contract=contract or Contract())
        return check_inputs(self.kernel(call), case, inputs, request)


@pytest.fixture(scope="session")
def bench() -> Bench:
    """Kernels, cases and reports of linear_scan."""
    return Bench(scan)


@pytest.fixture
def judged_alike() -> Callable[[CaseReport, CaseReport], None]:
    """Asserts that two reports of a case differ in last digits of ratios at most."""

    def check(here: CaseReport, there: CaseReport) -> None:
        for left, right in zip(here.checks, there.checks, strict=True):
            assert (left.verdict, left.tensor, left.index) == (
                right.verdict,
                right.tensor,
                right.index,
            )
            assert left.ratio == pytest.approx(right.ratio, rel=1e-2)
        for tensor, metrics in (here.metrics | here.gradient_metrics).items():
            other = (there.metrics | there.gradient_metrics)[tensor]
            assert np.array_equal(metrics.wrong, other.wrong)

    return check
