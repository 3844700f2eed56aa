"""Kernels that are executed in a process of their own, call after call."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.kernel_server import FOR_ONE_KERNEL
from scancheck.ops import op_named
from scancheck.ops.calling import Calling, called, sizes_of
from scancheck.ops.normal_form import Op
from scancheck.recipes.inputs import Inputs
from scancheck.runner.execute import execute
from scancheck.runner.outcome import Outcome, Problem
from scancheck.runner.poison import filling_byte, memory_filled_with
from scancheck.runner.process import (
    CASE_LIMIT_S,
    AnsweringProcess,
    Ended,
    allowed_s,
)
from scancheck.runner.serving import Answer, KernelInterrupt

Loader = Callable[[], Kernel]  # picklable: called again in each process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The arguments of one `execute`."""

    op: str
    calling: Calling | None
    inputs: Inputs
    dtype: str
    cotangents: Mapping[str, FloatArray] | None
    runs: int
    byte: int  # which memory that was not written holds


@contextmanager
def in_own_process(
    kernel: Kernel, load: Loader, *, limit_s: float = CASE_LIMIT_S
) -> Iterator[Kernel]:
    """The kernel, executed in a process of its own as long as the context lasts.

    `load` gives it there. What ends that process or makes the device unusable costs the
    outcome of one call, an ERROR; the next call gets a fresh process. Raises
    CaseInvalid where the kernel cannot be loaded there.
    """
    process = AnsweringProcess(
        partial(_prepare, load), preload=FOR_ONE_KERNEL, threads=torch.get_num_threads()
    )
    try:
        process.start()
        yield replace(kernel, elsewhere=partial(_execute, process, limit_s))
    finally:
        process.close()


def _execute(
    process: AnsweringProcess,
    limit_s: float,
    op: Op,
    inputs: Inputs,
    dtype: str,
    *,
    cotangents: Mapping[str, FloatArray] | None,
    runs: int,
) -> Outcome:
    """As `execute`, by way of the process."""
    question = _Question(
        op=op.name,
        calling=op.calling,
        inputs=inputs,
        dtype=dtype,
        cotangents=cotangents,
        runs=runs,
        byte=filling_byte(),
    )
    try:
        outcome = process.ask(
            question, allowed_s(limit_s, sizes_of(op, inputs.tensors)[op.time_axis])
        )
    except Ended as ended:
        if not ended.in_kernel:
            raise RuntimeError(f"the harness: {ended}") from None
        message = f"the kernel {ended}"
        if ended.kind == "hung":
            message += "; one that still compiles then needs a longer --case-time"
        return Outcome(problem=Problem(kind=ended.kind, message=message))
    except KernelInterrupt as error:
        return Outcome(problem=Problem(kind="raised", message=str(error)))
    assert isinstance(outcome, Outcome)
    return outcome


def _prepare(load: Loader) -> tuple[Answer, str]:
    kernel = load()
    return partial(_answer, kernel), kernel.devices[0]


def _answer(kernel: Kernel, question: _Question) -> Outcome:
    with memory_filled_with(question.byte):
        return execute(
            kernel,
            called(op_named(question.op), question.calling),
            question.inputs,
            question.dtype,
            cotangents=question.cotangents,
            runs=question.runs,
        )
