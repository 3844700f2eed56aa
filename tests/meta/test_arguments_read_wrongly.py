"""A kernel that reads one argument wrongly is red in the quick profile."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.checks.experiments import likely_cause
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import Contract
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.kernels.faulty import calling_form
from scancheck.ops import op_named
from scancheck.recipes import case_list
from scancheck.runner import accepted_parameters
from scancheck.verdict import RED

STATE_LIKE = ("A", "D", "delta_bias", "initial_state")


def reading(name: str, change: Callable[[Tensor, torch.dtype], Tensor]) -> Any:
    """A correct selective_scan, but for one argument that is changed first."""

    def selective_scan(
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        initial_state: Tensor | None = None,
        delta_softplus: bool = False,
    ) -> Any:
        tensors = {
            "u": u,
            "delta": delta,
            "A": A,
            "B": B,
            "C": C,
            "D": D,
            "z": z,
            "delta_bias": delta_bias,
            "initial_state": initial_state,
        }
        given = {n: tensor for n, tensor in tensors.items() if tensor is not None}
        if name in given:
            given[name] = change(given[name], u.dtype)
        form = calling_form.Form()
        return calling_form.selective_scan(form, given, delta_softplus=delta_softplus)

    return selective_scan


def shortened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as if it had been stored in the format of u."""
    return x.to(dtype).to(x.dtype)


def made_negative(x: Tensor, dtype: torch.dtype) -> Tensor:
    """-|x|: right for every A that decays."""
    return -x.abs()


def of_first_group(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys of the first group for every channel."""
    return x[:, :1].expand_as(x) if x.ndim == 4 else x


def of_next_group(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys of the group after the channel's own."""
    return x.roll(-1, 1) if x.ndim == 4 else x


def kernel_of(call: Any) -> Kernel:
    """The call as a kernel."""
    return Kernel(name="tried", op="selective_scan", call=call)


def red_reports(call: Any, dtype: str, *layouts: str) -> Iterator[CaseReport]:
    """The red cases of the quick profile."""
    kernel = kernel_of(call)
    accepts = accepted_parameters(kernel, op_named(kernel.op)) | set(layouts)
    for case in case_list(kernel.op, dtype, accepts=accepts):
        report = check_case(kernel, case, Request(contract=Contract()))
        if report.verdict in RED:
            yield report


def red_recipes(call: Any, dtype: str) -> Iterator[str]:
    """The recipe of each of them."""
    return (report.case.recipe for report in red_reports(call, dtype))


@pytest.mark.parametrize("name", STATE_LIKE)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_cast_of_an_fp32_argument_is_red(name: str, dtype: str) -> None:
    """An argument that is always fp32, cast to the format of u, is found."""
    assert any(red_recipes(reading(name, shortened), dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_a_made_negative_is_red(dtype: str) -> None:
    """A kernel that takes every A to decay is found, by the states that grow alone."""
    red = set(red_recipes(reading("A", made_negative), dtype))
    assert red == {"growth"}


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_same_without_a_fault_passes(dtype: str) -> None:
    """What the wrong readers share is right."""
    assert not set(red_recipes(reading("", made_negative), dtype))


@pytest.mark.parametrize("change", [of_first_group, of_next_group])
@pytest.mark.parametrize("name", ["B", "C"])
def test_keys_of_another_group_are_named(name: str, change: Any) -> None:
    """A key that is read with a wrong number of its group is told as that."""
    call = reading(name, change)
    causes = [
        likely_cause(kernel_of(call), report, report.checks[0])[0]
        for report in red_reports(call, "fp32", "keys=grouped")
    ]
    assert "key_group" in causes
