"""A failure is laid out on as few tokens as keep it, with every step's numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.checks.step_by_step import step_by_step
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import faulty
from scancheck.kernels.models.catalog import model


def chunked(chunk: int, fault: str) -> Kernel:
    """linear_scan in chunks, whose carry has a fault of that name."""

    def call(*, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h, out = torch.zeros_like(b[:, 0]), []
        for t in range(b.shape[1]):
            if fault == "carry" and t and t % chunk == 0:
                h = h * 1.5
            h = a[:, t] * h + b[:, t]
            if fault == "token" and t == 37:
                h = h + 1.0
            out.append(h)
        return torch.stack(out, 1)

    return Kernel(name="tested", op="linear_scan", call=call, chunk=chunk)


def reported(kernel: Kernel, **options: Any) -> tuple[CaseReport, Request]:
    """The report on ordinary data, 3 chunks of 64 long."""
    sizes = {"B": 2, "T": 192, "D": 3}
    if kernel.op == "selective_scan":
        sizes = {"B": 2, "L": 192, "D": 4, "N": 3}
    case = make_case(
        kernel.op, sizes, recipe="gaussian_slow", seed=3, options=options or None
    )
    request = Request(contract=kernel.contract or Contract())
    return check_case(kernel, case, request), request


def test_two_chunks_of_four_where_the_chunk_can_be_chosen() -> None:
    """A carry fault is shown on eight tokens, right in the first chunk, wrong after."""
    kernel = chunked(64, "carry")
    report, request = reported(kernel)
    found = step_by_step(kernel, report, request, lambda chunk: chunked(chunk, "carry"))
    assert found is not None
    assert (found.tokens, found.chunk) == (8, 4)
    assert [step.wrong for step in found.steps] == [False] * 4 + [True] * 4
    state = 0.0
    for step in found.steps:
        state = step.a * state + step.b
        assert abs(step.wanted - state) < 1e-5 * max(1.0, abs(state))
        assert (abs(step.got - step.wanted) > 1e-3) == step.wrong


def test_the_kernels_own_chunk_where_it_cannot() -> None:
    """The eight tokens are those around the edge of the second chunk."""
    kernel = chunked(64, "carry")
    report, request = reported(kernel)
    found = step_by_step(kernel, report, request)
    assert found is not None
    assert (found.tokens, found.chunk) == (68, 64)
    assert [step.token for step in found.steps] == list(range(60, 68))
    assert [step.wrong for step in found.steps] == [False] * 4 + [True] * 4


def test_a_fault_that_survives_no_cut_is_shown_whole() -> None:
    """A fault at one token of the sequence keeps the sequence."""
    kernel = replace(chunked(64, "token"), chunk=None)
    report, request = reported(kernel)
    found = step_by_step(kernel, report, request)
    assert found is not None
    assert found.tokens > 37
    assert next(step.token for step in found.steps if step.wrong) == 37


def test_a_kernel_that_is_right_has_no_steps() -> None:
    """Without a wrong element there is nothing to lay out."""
    kernel = model("linear_scan", "chunk", "plain")
    report, request = reported(kernel, form="g")
    assert step_by_step(kernel, report, request) is None


FAULTY: dict[str, Callable[[], Kernel]] = {
    kernel.name: (lambda kernel=kernel: kernel) for kernel in faulty()
}


# They read another row, or a scale that all of A has in common.
TAKES_SEVERAL_CHAINS = ("decay_of_first_row_for_all", "A_quantised")


@pytest.mark.parametrize("name", sorted(FAULTY))
def test_planted_bugs_are_laid_out(name: str) -> None:
    """Where a planted bug shows on this case, the steps hold its first wrong token."""
    kernel = FAULTY[name]()
    report, request = reported(kernel)
    found = step_by_step(kernel, report, request)
    wrong = report.metrics and next(iter(report.metrics.values())).wrong.any()
    alone = not any(word in name for word in TAKES_SEVERAL_CHAINS)
    assert (found is not None) == (bool(wrong) and alone)
    if found is not None:
        assert any(step.wrong for step in found.steps)
        assert len(found.steps) <= 8
        assert found.tokens <= 192
