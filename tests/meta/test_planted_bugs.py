"""Every planted bug is red and named by its own cause; what is right is not red."""

import pytest

from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import ALGORITHMS, OPS, VARIANTS, model


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


# One model of each algorithm and variant; all of them are judged by the campaign.
MODELS = [
    model(op, algorithm, variant)
    for op in OPS
    for algorithm in ALGORITHMS
    for variant in VARIANTS
    if variant != "log_diff" or algorithm.startswith("chunk")
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kernel", MODELS, ids=lambda kernel: kernel.name)
def test_model_passes(kernel: Kernel, dtype: str) -> None:
    """A model is within the budget of its own contract, and nothing is unseen."""
    result = verify(kernel.name, dtypes=[dtype])
    assert result.record.findings == ()
    assert result.exit_code == 0
