"""A fault of each kind in a CUDA source turns verify red, and is named."""

from dataclasses import replace
from typing import Any

import pytest

from scancheck.case import Case
from scancheck.gate import loop, verify
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.kernels.faulty.cuda_sources import (
    FAULTS,
    SourceFault,
    kernel_of,
    planted,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

CASES = 20


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the quick profile, and those of many channels."""
    every = loop.case_list

    def some(*given: Any, **options: Any) -> list[Case]:
        cases = every(*given, **options)
        wide = [case for case in cases if dict(case.sizes)["D"] > 32]
        return cases[:CASES] + wide

    monkeypatch.setattr(loop, "case_list", some)


def verdict_of(fault: SourceFault) -> Any:
    """The result of its kernel as it is compiled now."""
    kernel = replace(kernel_of(fault), devices=("cuda:0",))
    return verify(kernel, dtypes=(fault.dtype,), gradients=True)


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault.kernel.split('.')[1]}-{fault.name}"
)
def test_a_planted_fault_is_caught(fault: SourceFault) -> None:
    """The verdict is red with the fault, and one finding names its cause."""
    with planted(fault):
        result = verdict_of(fault)
    assert result.exit_code == 1, result.explain()
    causes = {finding.cause for finding in result.record.findings}
    assert fault.symptoms & causes, result.explain()


@pytest.mark.parametrize("kernel", sorted({fault.kernel for fault in FAULTS}))
def test_the_same_cases_pass_without_faults(kernel: str) -> None:
    """What is red above is green from the sources as they are."""
    fault = next(fault for fault in FAULTS if fault.kernel == kernel)
    result = verdict_of(fault)
    assert not result.record.findings, result.explain()
