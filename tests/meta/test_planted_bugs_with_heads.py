"""Planted bugs of ops with heads are red and named; models and controls are not red."""

from collections.abc import Callable

import pytest

from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.chunk_catalog import chunk_controls, chunk_faulty
from scancheck.kernels.faulty.step_catalog import step_controls, step_faulty
from scancheck.kernels.models.step_calls import FAMILIES

DTYPES = ("fp32", "bf16", "fp16")
BUGS = [
    pytest.param(kernel, kernel.dtypes[index % len(kernel.dtypes)], id=kernel.name)
    for index, kernel in enumerate((*step_faulty(), *chunk_faulty()))
]


@pytest.mark.parametrize(("kernel", "dtype"), BUGS)
def test_planted_bug_is_red_and_named(
    kernel: Kernel, dtype: str, causes_until: Callable[[Kernel, str], list[str]]
) -> None:
    """A case of the quick profile is red, and says what is wrong."""
    assert kernel.symptom in causes_until(kernel, dtype)


@pytest.mark.parametrize(
    "kernel", (*step_controls(), *chunk_controls()), ids=lambda kernel: kernel.name
)
def test_control_passes(kernel: Kernel) -> None:
    """The same parts without a fault pass, with every part of the op seen."""
    result = verify(kernel.name, dtypes=["fp32"], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(f"model.{op}.sequential.plain", DTYPES[index % 3], id=op)
        for index, op in enumerate(FAMILIES)
    ],
)
def test_step_form_passes(name: str, dtype: str) -> None:
    """Each op's model passes with gradients, and every part of the op is seen."""
    result = verify(name, dtypes=[dtype], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("model.linear_attention.chunk64.plain", "fp32"),
        ("model.gla.chunk64_blocks16.log_diff", "bf16"),
        ("model.rwkv7.chunk64.log_diff", "fp16"),
        ("model.gated_delta_rule.chunk64.log_diff.inverse_block", "fp32"),
    ],
)
def test_chunks_pass(name: str, dtype: str) -> None:
    """Chunks of matrix products do too."""
    result = verify(name, dtypes=[dtype], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())
