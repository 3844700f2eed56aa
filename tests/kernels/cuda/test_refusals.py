"""What the CUDA kernels refuse is told before anything is launched."""

import pytest
import torch

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.catalog import kernels, linear_scan
from scancheck.kernels.cuda.launch import aligned, check_tensor


def test_every_kernel_says_why_it_cannot_run_here() -> None:
    """A registered kernel has a contract, and one reason for all where there is one."""
    assert len({kernel.unavailable for kernel in kernels()}) == 1
    assert all(kernel.contract is not None for kernel in kernels())


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": 1, "g": 1, "b": 1}, "expected one of a and g; got both"),
        ({"b": 1}, "expected one of a and g; got neither"),
        ({"a": 1, "b": 1}, "linear_scan b: expected a CUDA tensor; got cpu"),
    ],
)
def test_refused_before_launch(tensors: dict[str, int], words: str) -> None:
    """A wrong call is one sentence that names the argument."""
    given = {name: torch.ones(1, 2, 3) for name in tensors}
    with pytest.raises(CaseInvalid, match=words):
        linear_scan("single_pass", "plain").call(**given)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2, 3), r"expected shape \[2, 4\]; got \[2, 3\]"),
        (torch.ones(2, 4, dtype=torch.float64), "expected dtype .*; got torch.float64"),
        (torch.ones(4, 2).mT, r"contiguous last axis .*strides \[1, 2\]"),
        (torch.ones(1).expand(2, 4), r"contiguous last axis .*strides \[0, 0\]"),
    ],
)
def test_tensor_that_does_not_fit(tensor: torch.Tensor, words: str) -> None:
    """Shape, dtype and a last axis with gaps are named with what was expected."""
    with pytest.raises(CaseInvalid, match=f"op x: .*{words}"):
        check_tensor("op", "x", tensor, shape=(2, 4))


def test_tensor_that_fits() -> None:
    """Strides of other axes, and of an axis of one, are free."""
    check_tensor("op", "x", torch.ones(4, 8)[::2, :4], shape=(2, 4))
    check_tensor("op", "x", torch.ones(2, 4)[:, ::4], shape=(2, 1))
    check_tensor("op", "x", torch.ones(4, 0).mT, shape=(0, 4))


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(3, 8), True),
        (torch.ones(3, 6), False),
        (torch.ones(3, 10)[:, :8], False),
        (torch.ones(3, 12)[:, 1:9], False),
        (torch.ones(1, 10)[:, :8], True),
        (None, True),
    ],
)
def test_alignment(tensor: torch.Tensor | None, expected: bool) -> None:
    """Vectors of four need rows of a multiple of four that start at one."""
    assert aligned(4, tensor) is expected
