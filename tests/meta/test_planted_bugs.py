"""Every planted bug is red and named by its own cause; what is right is not red."""

import pytest

from scancheck.bounds.budget import SUPPORTED_LOG
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import (
    ALGORITHMS,
    COMPENSATIONS,
    LOG_FORMS,
    OPS,
    model,
)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
        for kernel in faulty()
        for dtype in kernel.dtypes
    ],
)
def test_planted_bug_is_red_and_named(kernel: Kernel, dtype: str) -> None:
    """The quick profile catches the bug in this format, and says what is wrong."""
    result = verify(kernel.name, dtypes=[dtype], gradients=True)
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
FORMS_WITH_BOUNDS = [f for f in LOG_FORMS if f.removeprefix("log_") in SUPPORTED_LOG]
MODELS = [
    *(
        (model(op, algorithm, "plain"), "fp32")
        for op in OPS
        for algorithm in ALGORITHMS
    ),
    *((model(op, "chunk", variant), "fp32") for op in OPS for variant in COMPENSATIONS),
    *(
        (model(op, LOG_FORMS[form][0], form), "bf16")
        for op in OPS
        for form in FORMS_WITH_BOUNDS
    ),
    (model("linear_scan", "chunk", "plain"), "fp8_e4m3"),
    (model("selective_scan", "single_pass_warps", "plain"), "fp8_e4m3"),
]


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [pytest.param(*m, id=f"{m[0].name}-{m[1]}") for m in dict.fromkeys(MODELS)],
)
def test_model_passes(kernel: Kernel, dtype: str) -> None:
    """A model is within the budget of its own contract, and nothing is unseen."""
    result = verify(kernel, dtypes=[dtype])
    assert result.record.findings == ()
    assert result.exit_code == 0
