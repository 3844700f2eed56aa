"""The backward pass of selective_scan on a CUDA device.

Of the forward pass it has the states before each E = 16 or 32 steps, N / E floats a
channel and step, and makes the others again. Sums over channels, batch rows
and steps have a fixed order, without atomics. Blocks leave the gradients of B and C as
partial sums over their channels, and those of A, D and delta_bias as sums over the
steps of their batch row: at most WORKSPACE bytes (64 MiB) at a time. Problems with more
are taken in slices of steps and of batch rows, told by the shape alone.
"""

from collections.abc import Mapping

import numpy as np
import torch

from scancheck.kernels.cuda.compile import function, function_with_shared
from scancheck.kernels.cuda.launch import CUDA_NAMES, aligned, launch, pointer
from scancheck.kernels.cuda.selective_scan_backward_instances import (
    ROWS_SUM,
    SOURCE,
    Instance,
    Slice,
    chosen,
    key_sum,
    parts,
    slices,
)
from scancheck.kernels.cuda.selective_scan_instances import STORAGE, Problem
from scancheck.kernels.cuda.selective_scan_problem import key_strides, strides

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor | None]
_DTYPES = {source: dtype for dtype, source in STORAGE.items()}


def backward(
    variant: str,
    problem: Problem,
    delta_softplus: bool,
    tensors: Tensors,
    y_bar: Tensor | None,
    last_bar: Tensor | None,
    wanted: Mapping[str, bool],
) -> dict[str, Tensor | None]:
    """The gradient of each input in its dtype; None where it is not wanted.

    `tensors` are the checked inputs by name, and as "edges" the states before each E
    steps, [B, ceil(L / E), D, N], where E is the instance's edge_steps; y_bar and
    last_bar are the cotangents, None for zeros. Runs on the current device.
    """
    u = tensors["u"]
    assert u is not None
    if u.numel() == 0:
        return _without_steps(tensors, last_bar, wanted)
    if y_bar is not None and not _fits(y_bar, problem):
        # Autograd hands on expanded tensors, as of a sum.
        y_bar = y_bar.clone(memory_format=torch.contiguous_format)
    if last_bar is not None:
        last_bar = last_bar.contiguous()
    dtype = _DTYPES[CUDA_NAMES[u.dtype]]
    instance = chosen(problem, dtype, variant)
    taken = slices(problem, instance)

    bars = {name: _like(tensors[name]) for name in ("u", "delta", "B", "C", "A")}
    for name in ("z", "D", "delta_bias", "initial_state"):
        bars[name] = _like(tensors[name]) if wanted[name] else None
    if bars["initial_state"] is None and taken[0].begin > 0:
        shape = problem.batch, problem.channels, problem.states
        bars["initial_state"] = u.new_empty(shape, dtype=torch.float32)
    constant = [
        name
        for name, is_constant in (("B", problem.constant_b), ("C", problem.constant_c))
        if is_constant
    ]
    most = max(part.rows.stop - part.rows.start for part in taken)
    by_row = {
        name: u.new_empty((most, *bar.shape), dtype=torch.float32)
        for name in ("A", "D", "delta_bias", *constant)
        if (bar := bars[name]) is not None
    }
    key_sums = None
    if len(constant) < 2:
        lines = most * max(part.end - part.begin for part in taken)
        width = problem.groups * parts(problem, instance) * 2 * problem.states
        key_sums = u.new_empty(lines * width, dtype=torch.float32)

    sources = {**tensors, "y_bar": y_bar, "last_bar": last_bar}
    for part in taken:
        _scan(instance, problem, delta_softplus, sources, bars, by_row, key_sums, part)
        if key_sums is not None:
            _sum_keys(dtype, instance, problem, bars, constant, key_sums, part)
        if part.begin == 0:
            for name, sums in by_row.items():
                _sum_rows(sums, bars[name], part)
    return {name: bar if wanted[name] else None for name, bar in bars.items()}


def _fits(y_bar: Tensor, problem: Problem) -> bool:
    if problem.aligned:
        return aligned(16 // y_bar.element_size(), y_bar) and y_bar.stride(-1) == 1
    return y_bar.stride(-1) == 1


def _like(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.new_empty(x.shape)


def _without_steps(
    tensors: Tensors, last_bar: Tensor | None, wanted: Mapping[str, bool]
) -> dict[str, Tensor | None]:
    """Gradients where there are no steps, channels or batch rows."""
    bars: dict[str, Tensor | None] = {}
    for name, is_wanted in wanted.items():
        x = tensors[name]
        bars[name] = None if x is None or not is_wanted else torch.zeros_like(x)
    initial_bar = bars["initial_state"]
    if initial_bar is not None and last_bar is not None:
        initial_bar.copy_(last_bar)
    return bars


def _scan(
    instance: Instance,
    problem: Problem,
    delta_softplus: bool,
    sources: Tensors,
    bars: Tensors,
    by_row: Tensors,
    key_sums: Tensor | None,
    part: Slice,
) -> None:
    """Launches the adjoint scan of one slice."""

    def rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[part.rows]

    by_batch = {
        name: rows(sources[name])
        for name in ("u", "delta", "z", "edges", "y_bar", "last_bar")
    }
    keys = {}
    for name, is_constant in (("B", problem.constant_b), ("C", problem.constant_c)):
        keys[name] = sources[name] if is_constant else rows(sources[name])
    before = rows(bars["initial_state"])
    pointers = (
        *(by_batch[name] for name in ("u", "delta", "z")),
        *keys.values(),
        *(sources[name] for name in ("A", "D", "delta_bias")),
        by_batch["edges"],
        by_batch["y_bar"],
        by_batch["last_bar"] if part.end == problem.steps else before,
        *(rows(bars[name]) for name in ("u", "delta", "z")),
        before,
        *(by_row.get(name) for name in ("A", "D", "delta_bias")),
        by_row["B"] if problem.constant_b else None,
        by_row["C"] if problem.constant_c else None,
        key_sums,
    )
    batch = part.rows.stop - part.rows.start
    A = sources["A"]
    assert A is not None
    words = (
        *map(pointer, pointers),
        batch,
        problem.channels,
        problem.steps,
        problem.states,
        problem.groups,
        part.begin,
        part.end,
        *(s for n in ("u", "delta", "z", "y_bar") for s in strides(by_batch[n], 2)),
        *(s for x in keys.values() for s in key_strides(x)),
        A.stride(0),
        int(delta_softplus),
    )
    launch(
        function_with_shared(
            SOURCE, instance.expression, instance.shared, torch.cuda.current_device()
        ),
        batch * problem.groups * parts(problem, instance),
        (instance.threads,),
        (_packed(words),),
        instance.shared,
    )


def _sum_keys(
    dtype: str,
    instance: Instance,
    problem: Problem,
    bars: Tensors,
    constant: list[str],
    key_sums: Tensor,
    part: Slice,
) -> None:
    """Adds the partial sums of one slice into the gradients of B and C."""
    tiles = -(-(part.end - part.begin) // 32)
    to = [
        None if name in constant or (bar := bars[name]) is None else bar[part.rows]
        for name in ("B", "C")
    ]
    words = (
        pointer(key_sums),
        *map(pointer, to),
        parts(problem, instance),
        problem.steps,
        problem.states,
        part.begin,
        part.end,
        tiles,
    )
    launch(
        function(SOURCE, key_sum(dtype)),
        (part.rows.stop - part.rows.start) * problem.groups * tiles,
        (256,),
        (_packed(words),),
    )


def _sum_rows(sums: Tensor | None, to: Tensor | None, part: Slice) -> None:
    """Adds the sums of a slice's batch rows into one gradient."""
    assert to is not None
    launch(
        function(SOURCE, ROWS_SUM),
        -(-to.numel() // 128),
        (128,),
        (
            pointer(sums),
            pointer(to),
            part.rows.stop - part.rows.start,
            to.numel(),
            int(part.rows.start > 0),
        ),
    )


def _packed(words: tuple[int, ...]) -> int:
    """The words as one argument of a kernel."""
    packed: int = np.array(words, dtype=np.int64).view(f"V{8 * len(words)}")  # type: ignore[assignment]
    return packed
