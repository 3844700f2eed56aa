"""Speed and error of the CUDA selective_scan kernels beside peers.

    python benchmarks/cuda_selective_scan.py [-o reports/h200/selective_scan_speed.md]

Writes the page and, beside it, its rows as JSON; a run that is cut off goes on where it
was, and --only takes some shapes by parts of their names. With --page the page is made
anew from the rows, on any machine; the measurements need a CUDA device. Peers that are
not installed are told with the reason. Exits 1 if a figure is missed.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from cuda_peers import (
    SELECTIVE_PEERS,
    mamba,
    selective_loop,
    triton_selective_scan,
)
from cuda_selective_scan_page import (
    BACKWARD,
    FEW,
    PEER,
    SHAPES,
    SLOW,
    STATES,
    VARIANTS,
    page,
)
from cuda_speed import (
    DTYPES,
    Job,
    Store,
    Timing,
    copy_rate,
    environment,
    exp_rate,
    free_memory,
    in_rounds,
    options_of,
    read,
    reference,
    time_of,
    time_once,
)
from evidence import chosen
from torch import Tensor

from scancheck.kernels.cuda.selective_scan_kernels import selective_scan
from scancheck.ops.selective_scan import SELECTIVE_SCAN

Tensors = dict[str, Tensor]

LOOP_STEPS = 4096
"""Of the loop in PyTorch: longer inputs are timed on the first of them and scaled."""
LOOPED = ("B16 D1536 L2048", FEW, "B1 D1536 L65536", "B8 D5120 L4096")
"""Shapes on which the loops in PyTorch and Triton are timed too."""


def forward(name: str, dtype: str, copy: float) -> list[Timing]:
    """Every variant and peer on one shape and dtype."""
    return in_rounds(forward_jobs(name, dtype, copy))


def forward_jobs(name: str, dtype: str, copy: float) -> Iterator[Job]:
    """The same, to be measured."""
    tensors = inputs(name, dtype)
    truth = reference(SELECTIVE_SCAN, tensors, {"delta_softplus": True})
    row = partial(
        Timing, shape=name, dtype=dtype, direction="forward", ms=None, copy=copy
    )
    calls = {variant: ours(variant, tensors) for variant in VARIANTS}
    calls[PEER] = mamba(tensors)
    for kernel, call in calls.items():
        yield Job(row(kernel=kernel), call, truth)
    if name == FEW:
        for kernel in ("fast", PEER):
            graph = row(kernel=f"{kernel}, CUDA graph")
            yield Job(graph, calls[kernel], timed=time_of_replay)
    if name in LOOPED:
        yield Job(row(kernel="Triton loop"), triton_selective_scan(tensors), truth)
        yield loop(row(kernel="PyTorch loop"), tensors)


def ours(variant: str, tensors: Tensors) -> Callable[[], Any]:
    """The kernel that chooses its order by the shape."""
    return partial(selective_scan(variant).call, **tensors, delta_softplus=True)


def time_of_replay(call: Callable[[], Any]) -> float:
    """Median milliseconds of a replay: nothing that the host does is in it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return time_of(graph.replay)


def loop(row: Timing, tensors: Tensors) -> Job:
    """The loop on the first steps, its time scaled to all."""
    length = tensors["u"].shape[2]
    steps = min(LOOP_STEPS, length)
    cut = {n: x[..., :steps] if x.ndim == 3 else x for n, x in tensors.items()}
    return Job(
        row,
        selective_loop(cut),
        timed=lambda call: length / steps * time_once(call),
    )


def backward(name: str, dtype: str, copy: float) -> list[Timing]:
    """The backward pass of each variant and of the peer, alone."""
    tensors = inputs(name, dtype)
    row = partial(
        Timing, shape=name, dtype=dtype, direction="backward", ms=None, copy=copy
    )
    scans: dict[str, Callable[..., Any]] = {
        variant: lambda leaves, variant=variant: ours(variant, leaves)()
        for variant in VARIANTS
    }
    scans[PEER] = lambda leaves: mamba(leaves)()
    pullbacks = {kernel: Pullback(scan, tensors) for kernel, scan in scans.items()}
    rows = in_rounds(Job(row(kernel=k), call) for k, call in pullbacks.items())
    return [
        replace(timing, extra=call.extra, kept=call.kept)
        for timing, call in zip(rows, pullbacks.values(), strict=True)
    ]


class Pullback:
    """The backward pass of a scan, whose forward pass runs at the first call.

    The first call tells bytes: kept by the forward pass beside its results, and at the
    peak of the backward pass beside the gradients.
    """

    def __init__(self, scan: Callable[[Tensors], Any], tensors: Tensors) -> None:
        self.scan = scan
        self.leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}
        self.cotangent = torch.randn_like(tensors["u"])
        self.y: Tensor | None = None
        self.extra: int | None = None
        self.kept: int | None = None

    def __call__(self) -> Any:
        if self.y is not None:
            return self._gradients(self.y)
        before = torch.cuda.memory_allocated()
        results = self.scan(self.leaves)
        outputs = results if isinstance(results, tuple) else (results,)
        self.kept = torch.cuda.memory_allocated() - before - _bytes(outputs)
        self.y = outputs[0]
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients = self._gradients(self.y)
        peak = torch.cuda.max_memory_allocated() - before
        self.extra = peak - _bytes(gradients)
        return gradients

    def _gradients(self, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            y, list(self.leaves.values()), self.cotangent, retain_graph=True
        )


def _bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(x.nbytes for x in tensors)


def inputs(name: str, dtype: str) -> Tensors:
    """Normal u, z, B, C; steps softplus(normal / 2 - 2); rates 1 to 16.

    Slow gates have rates whose logarithms are uniform in those of 2e-4 to 2e-2.
    """
    torch.manual_seed(0)
    (batch, channels, steps), kind = SHAPES[name], DTYPES[dtype]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda")

    if name in SLOW:
        A = 2e-4 * 100.0 ** torch.rand(channels, STATES, device="cuda")
    else:
        A = torch.arange(1.0, STATES + 1, device="cuda").repeat(channels, 1)
    stored = {
        "u": normal(batch, channels, steps),
        "delta": normal(batch, channels, steps) / 2 - 2,
        "B": normal(batch, STATES, steps),
        "C": normal(batch, STATES, steps),
        "z": normal(batch, channels, steps),
    }
    return {
        **{key: x.to(kind) for key, x in stored.items()},
        "A": -A,
        "D": normal(channels),
        "delta_bias": 0.1 * normal(channels),
    }


def main() -> int:
    """Measures what is not there yet, and writes the page."""
    options = options_of(__doc__, "reports/h200/selective_scan_speed.md").parse_args()
    rows_at = options.output.with_suffix(".json")
    if not options.page:
        known = environment(SELECTIVE_PEERS) | {"exp_per_s": f"{exp_rate():.4g}"}
        store = Store(rows_at, known)
        for name in SHAPES:
            if not chosen(name, options.only):
                continue
            for dtype in ("fp32",) if name in SLOW else DTYPES:
                for measure in (forward, backward) if name in BACKWARD else (forward,):
                    if store.has(name, dtype, measure.__name__):
                        continue
                    store.add(measure(name, dtype, copy_rate()))
                    free_memory()
                    print(name, dtype, measure.__name__, flush=True)
    text, good = page(*read(rows_at))
    options.output.write_text(text, encoding="utf-8")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
