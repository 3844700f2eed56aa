"""Planted bugs on a CUDA device: each is named there by the cause it has on the CPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty

pytestmark = pytest.mark.gpu

CausesUntil = Callable[[Kernel, str], list[str]]

# The first bug of each cause, on fp32, which all of them have.
ONE_OF_EACH = {str(kernel.symptom): kernel for kernel in reversed(faulty())}


@pytest.mark.parametrize("symptom", sorted(ONE_OF_EACH))
def test_a_planted_bug_is_named(symptom: str, causes_until: CausesUntil) -> None:
    """A case of the quick profile is red, and says what is wrong."""
    kernel = replace(ONE_OF_EACH[symptom], devices=("cuda:0",))
    assert symptom in causes_until(kernel, "fp32")


@pytest.mark.parametrize("kernel", controls(), ids=lambda kernel: str(kernel.name))
def test_a_control_has_no_cause(kernel: Kernel, causes_until: CausesUntil) -> None:
    """The same parts without a fault pass every case there."""
    assert causes_until(replace(kernel, devices=("cuda:0",)), "fp32") == []
