"""Planted bugs of packed, reversed and padded calls are red and named."""

from collections.abc import Callable

import pytest

from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.sequence_catalog import (
    sequence_controls,
    sequence_faulty,
)

LEAKS = ("sequence_leak", "padding_leak")  # what only a relation shows
BUGS = [
    pytest.param(kernel, kernel.dtypes[index % len(kernel.dtypes)], id=kernel.name)
    for index, kernel in enumerate(sequence_faulty())
    if kernel.symptom not in LEAKS
]


@pytest.mark.parametrize(("kernel", "dtype"), BUGS)
def test_planted_bug_is_red_and_named(
    kernel: Kernel, dtype: str, causes_until: Callable[[Kernel, str], list[str]]
) -> None:
    """A case of the quick profile is red, and says what is wrong."""
    assert kernel.symptom in causes_until(kernel, dtype)


@pytest.mark.parametrize(
    "kernel",
    [k for k in sequence_faulty() if k.symptom in LEAKS],
    ids=lambda kernel: kernel.name,
)
def test_nan_of_others_is_red_and_named(kernel: Kernel) -> None:
    """What is right for finite numbers everywhere lets NaN through."""
    result = verify(kernel.name, dtypes=["fp32"])
    assert result.verdict == "NONFINITE"
    assert {finding.cause for finding in result.record.findings} == {kernel.symptom}


@pytest.mark.parametrize("kernel", sequence_controls(), ids=lambda kernel: kernel.name)
def test_control_passes(kernel: Kernel) -> None:
    """The same parts without a fault pass, with every part of a call seen."""
    result = verify(kernel.name, dtypes=["fp32"], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())
    assert "boundaries of packed sequences" in result.record.seen
    assert "padding of a row" in result.record.seen
    assert "direction of a reversed call" in result.record.seen


@pytest.mark.parametrize("op", ["linear_scan", "selective_scan"])
def test_scans_in_chunks_pass(op: str) -> None:
    """Chunks are counted from the first token of each sequence."""
    result = verify(f"model.{op}.chunk64.plain", dtypes=["bf16"], gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())
