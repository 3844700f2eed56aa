"""Every planted bug is red and named by its own cause; what is right is not red."""

from collections.abc import Callable

import pytest

from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import (
    ALGORITHMS,
    COMPENSATIONS,
    LOG_FORMS,
    SCANS,
    model,
)

# One format of each bug, in turn; benchmarks/campaign.py judges all of them in full.
ONE_FORMAT = [
    pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
    for index, kernel in enumerate(faulty())
    for dtype in (kernel.dtypes[index % len(kernel.dtypes)],)
]


@pytest.mark.parametrize(("kernel", "dtype"), ONE_FORMAT)
def test_planted_bug_is_red_and_named(
    kernel: Kernel, dtype: str, causes_until: Callable[[Kernel, str], list[str]]
) -> None:
    """A case of the quick profile is red, and says what is wrong."""
    assert kernel.symptom in causes_until(kernel, dtype)


@pytest.mark.parametrize("op", SCANS)
def test_planted_bug_fails_a_whole_run(op: str) -> None:
    """The run of `scancheck verify` ends red, and names the bug among its findings."""
    kernel = next(k for k in faulty() if k.op == op)
    result = verify(kernel.name, dtypes=["fp32"], gradients=True)
    assert result.exit_code == 1
    assert kernel.symptom in [finding.cause for finding in result.record.findings]


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
        for kernel in controls()
        for dtype in kernel.dtypes
    ],
)
def test_control_passes(kernel: Kernel, dtype: str) -> None:
    """The same parts without a fault pass, with every part of the op seen."""
    result = verify(kernel.name, dtypes=[dtype], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())


# Each algorithm plain, and each variant once; the campaign judges every registered one.
MODELS = {
    f"{kernel.name}-{dtype}": (kernel, dtype)
    for kernel, dtype in (
        *(
            (model(op, algorithm, "plain"), "fp32")
            for op in SCANS
            for algorithm in ALGORITHMS
        ),
        *(
            (model(op, "chunk", variant), "fp32")
            for op in SCANS
            for variant in COMPENSATIONS
        ),
        *(
            (model(op, LOG_FORMS[form][0], form), "bf16")
            for op in SCANS
            for form in LOG_FORMS
        ),
        (model("linear_scan", "chunk", "plain"), "fp8_e4m3"),
        (model("selective_scan", "single_pass_warps", "plain"), "fp8_e4m3"),
    )
}


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [pytest.param(*m, id=key) for key, m in MODELS.items()],
)
def test_model_passes(kernel: Kernel, dtype: str) -> None:
    """A model is within the budget of its own contract, and nothing is unseen."""
    result = verify(kernel, dtypes=[dtype])
    assert result.record.findings == ()
    assert result.exit_code == 0
