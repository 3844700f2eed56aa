"""Speed of the CUDA linear_scan kernels, as shares of a copy and beside peers.

    python benchmarks/cuda_linear_scan.py [-o reports/h200/linear_scan_speed.md]

Writes the page and, beside it, its rows as JSON; a run that is cut off goes on where it
was, and --only takes some shapes by parts of their names. With --page the page is made
anew from the rows, on any machine; the measurements need a CUDA device. Peers that are
not installed are told with the reason. Exits 1 if a figure is missed.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from cuda_linear_scan_page import SHAPES, page
from cuda_peers import (
    LINEAR_PEERS,
    accelerated_scan,
    accelerated_scan_of,
    chunk_hgrn,
    linear_loop,
)
from cuda_speed import (
    DTYPES,
    Job,
    Store,
    Timing,
    copy_rate,
    environment,
    free_memory,
    in_rounds,
    options_of,
    read,
    reference,
    time_once,
)
from evidence import chosen
from torch import Tensor

from scancheck.kernels.cuda.catalog import linear_scan
from scancheck.kernels.cuda.linear_scan_instances import ALGORITHMS, VARIANTS
from scancheck.ops.linear_scan import LINEAR_SCAN

LOOP_STEPS = 4096
"""Of the loop in PyTorch, which is timed on the first steps and scaled."""


def forward(name: str, dtype: str, copy: float) -> Iterator[Job]:
    """Every kernel and peer on one shape and dtype."""
    a, g, b = inputs(name, dtype)
    row = partial(
        Timing, shape=name, dtype=dtype, direction="forward", ms=None, copy=copy
    )
    truth = {
        gate: reference(LINEAR_SCAN, {gate: x, "b": b}, {})
        for gate, x in (("a", a), ("g", g))
    }
    for variant, policy in VARIANTS.items():
        gate = "g" if policy.of_decays is None else "a"
        call = partial(
            linear_scan("single_pass", variant).call, **{gate: {"a": a, "g": g}[gate]}
        )
        kernel = f"single_pass.{variant}"
        yield Job(row(kernel=kernel), partial(call, b=b), truth[gate])
    for algorithm in list(ALGORITHMS)[1:]:
        call = partial(linear_scan(algorithm, "plain").call, a=a, b=b)
        yield Job(row(kernel=f"{algorithm}.plain"), call, truth["a"])
    turned = truth["a"].mT
    kernel = "accelerated_scan.scalar"
    yield Job(row(kernel=kernel), accelerated_scan(a, b), turned)
    yield Job(row(kernel="fla.chunk_hgrn"), chunk_hgrn(g, b), truth["g"])
    yield loop(row(kernel="PyTorch loop"), a, b)


def loop(row: Timing, a: Tensor, b: Tensor) -> Job:
    """The loop on the first steps, its time scaled to all."""
    steps = min(LOOP_STEPS, b.shape[1])
    times = b.shape[1] // steps
    call = linear_loop(a[:, :steps], b[:, :steps])
    return Job(row, call, timed=lambda call: times * time_once(call))


def backward(name: str, dtype: str, copy: float) -> Iterator[Job]:
    """The backward pass of each variant and of peers, alone."""
    a, g, b = inputs(name, dtype)
    row = partial(
        Timing, shape=name, dtype=dtype, direction="backward", ms=None, copy=copy
    )
    for variant, policy in VARIANTS.items():
        gate, values = ("a", a) if policy.of_decays is not None else ("g", g)
        kernel = linear_scan("single_pass", variant).call

        def scan(x: Tensor, y: Tensor, kernel: Any = kernel, gate: str = gate) -> Any:
            return kernel(**{gate: x}, b=y)[0]

        call = pullback(scan, values, b)
        yield Job(row(kernel=f"single_pass.{variant}"), call)
    turned = a.mT.contiguous(), b.mT.contiguous()
    call = pullback(lambda x, y: accelerated_scan_of(x, y)(), *turned)
    yield Job(row(kernel="accelerated_scan.scalar"), call)
    call = pullback(lambda x, y: chunk_hgrn(x, y)()[0], g, b)
    yield Job(row(kernel="fla.chunk_hgrn"), call)


def pullback(
    scan: Callable[[Tensor, Tensor], Tensor], gate: Tensor, b: Tensor
) -> Callable[[], Any]:
    """The backward pass of a scan; its forward pass runs at the first call."""
    leaves = [x.detach().requires_grad_() for x in (gate, b)]
    cotangent, outputs = torch.randn_like(b), []

    def call() -> Any:
        if not outputs:
            outputs.append(scan(*leaves))
        return torch.autograd.grad(outputs[0], leaves, cotangent, retain_graph=True)

    return call


def inputs(name: str, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Decays in 0.9 to 1, their logarithms, and normal drives."""
    torch.manual_seed(0)
    shape, kind = SHAPES[name], DTYPES[dtype]
    decays = 1 - 0.1 * torch.rand(shape, device="cuda")
    b = torch.randn(shape, device="cuda").to(kind)
    return decays.to(kind), decays.log().to(kind), b


def main() -> int:
    """Measures what is not there yet, and writes the page."""
    options = options_of(__doc__, "reports/h200/linear_scan_speed.md").parse_args()
    rows_at = options.output.with_suffix(".json")
    if not options.page:
        store = Store(rows_at, environment(LINEAR_PEERS))
        for name in SHAPES:
            if not chosen(name, options.only):
                continue
            for dtype in DTYPES:
                for measure in (forward, backward):
                    if store.has(name, dtype, measure.__name__):
                        continue
                    store.add(in_rounds(measure(name, dtype, copy_rate())))
                    free_memory()
                    print(name, dtype, measure.__name__, flush=True)
    text, good = page(*read(rows_at))
    options.output.write_text(text, encoding="utf-8")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
