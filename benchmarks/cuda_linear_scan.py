"""Speed of the CUDA linear_scan kernels, as shares of a copy and against peers.

    python benchmarks/cuda_linear_scan.py [-o reports/h200/linear_scan_speed.md]

Times are medians of triton.testing.do_bench. A share is bytes read and written, over
the time, over what a copy of 2 GiB moves in the same run. Peers that are not installed
are left out with the reason. Needs a CUDA device.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench

from scancheck.kernels.cuda.catalog import linear_scan
from scancheck.kernels.cuda.linear_scan_instances import ALGORITHMS, VARIANTS

SHAPES = ((8, 4096, 2048), (1, 65536, 2048))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FORWARD_ARRAYS, BACKWARD_ARRAYS = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One measured kernel."""

    shape: tuple[int, int, int]  # B, T, D
    dtype: str
    name: str
    milliseconds: float | None  # None: it does not run here
    arrays: int  # of the size of h, read or written
    note: str = ""


def time_of(call: Callable[[], Any]) -> float:
    """Median milliseconds of a call."""
    return float(do_bench(call, warmup=10, rep=40, return_mode="median"))


def copy_rate() -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.empty(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2e3 * source.nbytes / time_of(lambda: target.copy_(source))


def timings(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Timing]:
    """Every kernel and peer on one shape and dtype."""

    def measured(name: str, call: Callable[[], Any], arrays: int) -> Timing:
        try:
            spent, note = time_of(call), ""
        except Exception as error:
            spent, note = None, f"{type(error).__name__}: {error}".splitlines()[0]
        told = str(dtype).removeprefix("torch.")
        return Timing(
            shape=shape,
            dtype=told,
            name=name,
            milliseconds=spent,
            arrays=arrays,
            note=note,
        )

    a = (1 - 0.1 * torch.rand(shape, device="cuda")).to(dtype)
    g, b = a.float().log().to(dtype), torch.randn(shape, device="cuda").to(dtype)
    for variant, policy in VARIANTS.items():
        gates = {"g": g} if policy.of_decays is None else {"a": a}
        call = linear_scan("single_pass", variant).call
        yield measured(
            f"single_pass.{variant}",
            lambda call=call, gates=gates: call(**gates, b=b),
            FORWARD_ARRAYS,
        )
    for algorithm in list(ALGORITHMS)[1:]:
        call = linear_scan(algorithm, "plain").call
        yield measured(
            f"{algorithm}.plain", lambda call=call: call(a=a, b=b), FORWARD_ARRAYS
        )
    yield measured("single_pass.plain backward", backward(a, b), BACKWARD_ARRAYS)
    yield measured("accelerated_scan.scalar", triton_scan(a, b), FORWARD_ARRAYS)
    yield measured("fla chunk_hgrn", chunk_hgrn(g, b), FORWARD_ARRAYS)


def backward(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """The backward pass of the plain kernel alone."""
    leaves = [x.clone().requires_grad_() for x in (a, b)]
    h, _ = linear_scan("single_pass", "plain").call(a=leaves[0], b=leaves[1])
    return lambda: torch.autograd.grad(h, leaves, b, retain_graph=True)


def triton_scan(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """accelerated-scan's Triton kernel on its own layout, [B, C, T]."""

    def call() -> Any:
        from accelerated_scan.scalar import scan

        return scan(gates, tokens)

    gates, tokens = a.mT.contiguous(), b.mT.contiguous()
    return call


def chunk_hgrn(g: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """flash-linear-attention's chunked kernel."""

    def call() -> Any:
        from fla.ops.hgrn import chunk_hgrn

        return chunk_hgrn(b, g)

    return call


def table(rows: list[Timing], rate: float) -> str:
    """The rows as a Markdown table; ratios are to the plain kernel of their group."""
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; "
        f"copy {rate / 1e9:.0f} GB/s",
        "",
        "| B, T, D | dtype | kernel | ms | share of copy | times plain |",
        "|---|---|---|---|---|---|",
    ]
    plain: dict[Any, float] = {}
    for row in rows:
        where = f"| {', '.join(map(str, row.shape))} | {row.dtype} | {row.name} "
        if row.milliseconds is None:
            lines.append(f"{where}| {row.note} | | |")
            continue
        width = torch.tensor([], dtype=getattr(torch, row.dtype)).element_size()
        moved = row.arrays * width * torch.Size(row.shape).numel()
        share = moved / (row.milliseconds / 1e3) / rate
        base = plain.setdefault((row.shape, row.dtype), row.milliseconds)
        lines.append(
            f"{where}| {row.milliseconds:.4f} | {share:.3f} "
            f"| {row.milliseconds / base:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints the table, and keeps it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, help="Markdown file to write")
    output = parser.parse_args().o
    rate = copy_rate()
    rows = []
    for shape in SHAPES:
        for dtype in DTYPES:
            rows += timings(shape, dtype)
    text = table(rows, rate)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
