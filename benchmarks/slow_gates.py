"""Errors of selective_scan with slow gates, where they tell its variants apart.

    python benchmarks/slow_gates.py [--channels 256] [--device cuda] [-o FILE.md]

|A| is log-uniform in 2e-4 .. 2e-2, delta = 0.5 randn - 2 with softplus, L 4096, N 16,
in fp32, with D and without z. An error is the 2-norm of y's, relative to y in fp64. On
the CPU the kernels' models are judged; with --device cuda the kernels, and mamba_ssm's
where it is installed. Two rows are no kernel but limits: what is left of exact states
by rounding them and summing C h in fp32, in the order of the kernels, and the rounding
of the exact y. Two thousand channels take a minute on one core. Exit code 1: the
accurate variant is not 30 times better than mamba_ssm or, without that, than plain
steps with the hardware's ex2 as it is, which mamba_ssm has too.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scancheck.kernels.cuda.selective_scan_instances import VARIANTS
from scancheck.kernels.models import cuda_ex2
from scancheck.kernels.models.cuda_arithmetic import fma
from scancheck.kernels.models.cuda_functions import LOG2_E
from scancheck.kernels.models.cuda_selective_scan import PART, selective_scan
from scancheck.kernels.models.jit import jit

STEPS, STATES = 4096, 16
SLOWEST, FASTEST = 2e-4, 2e-2
REQUIRED = 30.0
PEER = "mamba_ssm"
UNSHIFTED = "fast without its shift"
EXACT_STATES = "exact states, rounded and summed in fp32"
EXACT_Y = "exact y, rounded to fp32"
Array = NDArray[Any]


def drawn(channels: int, seed: int = 0) -> dict[str, Array]:
    """The inputs of one batch row; B and C [N, L], of one group."""
    draw = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return draw.standard_normal(shape).astype(np.float32)

    logs = draw.uniform(np.log(SLOWEST), np.log(FASTEST), (channels, STATES))
    return {
        "u": normal(channels, STEPS),
        "delta": np.float32(0.5) * normal(channels, STEPS) - np.float32(2.0),
        "A": -np.exp(logs).astype(np.float32),
        "B": normal(STATES, STEPS),
        "C": normal(STATES, STEPS),
        "D": normal(channels),
    }


@jit()
def _read(C: Any, h: Any, t: Any) -> Any:
    """C . h as the sequential order sums it."""
    total = np.float32(0.0)
    for first in range(0, h.size, PART):
        part = C[first, t] * h[first]
        for n in range(first + 1, first + PART):
            part = fma(C[n, t], h[n], part)
        total = total + part if first else part
    return total


@jit()
def _in_fp64(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, y: Any, of_states: Any
):
    """Fills y in fp64, and of_states from the same states rounded to fp32."""
    states = A.shape[1]
    for row in range(u.shape[0]):
        h = np.zeros(states)
        rounded = np.zeros(states, np.float32)
        for t in range(u.shape[1]):
            d = np.log1p(np.exp(np.float64(delta[row, t])))
            written = d * np.float64(u[row, t])
            total = np.float64(D[row]) * np.float64(u[row, t])
            for n in range(states):
                h[n] = np.exp(d * np.float64(A[row, n])) * h[n]
                h[n] += written * np.float64(B[n, t])
                total += np.float64(C[n, t]) * h[n]
                rounded[n] = h[n]
            y[row, t] = total
            of_states[row, t] = fma(D[row], u[row, t], _read(C, rounded, t))


@jit()
def _unshifted(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, table: Any, y: Any
) -> Any:
    """Plain steps with the hardware's ex2 of the rounded product d A log2 e."""
    states = A.shape[1]
    for row in range(u.shape[0]):
        h = np.zeros(states, np.float32)
        for t in range(u.shape[1]):
            d = cuda_ex2.softplus(delta[row, t], table)
            written = d * u[row, t]
            for n in range(states):
                decay = cuda_ex2.exp2(d * (A[row, n] * LOG2_E), table)
                h[n] = fma(decay, h[n], written * B[n, t])
            y[row, t] = fma(D[row], u[row, t], _read(C, h, t))


def limits(inputs: dict[str, Array]) -> dict[str, Array]:
    """y in fp64, and what no kernel that keeps to fp32 there can improve on."""
    y = np.empty(inputs["u"].shape)
    of_states = np.empty_like(inputs["u"])
    _in_fp64(*inputs.values(), y, of_states)
    return {
        "fp64": y,
        EXACT_STATES: of_states,
        EXACT_Y: y.astype(np.float32),
    }


def _batched(inputs: dict[str, Array]) -> dict[str, torch.Tensor]:
    """u and delta [1, D, L], B and C [1, 1, N, L]."""
    tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
    for name, axes in (("u", 1), ("delta", 1), ("B", 2), ("C", 2)):
        tensors[name] = tensors[name][(None,) * axes]
    return tensors


def on_cpu(inputs: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """y of every variant, by its model.

    Fast and Tabulated have the same operations where there is no z.
    """
    tensors = _batched(inputs)
    for name, variant in (
        ("fast", "tabulated"),
        ("tabulated", "tabulated"),
        ("reproducible", "reproducible"),
        ("accurate", "accurate"),
    ):
        y, _ = selective_scan("sequential", variant, **tensors, delta_softplus=True)
        yield name, y[0].numpy()
    y_unshifted = np.empty_like(inputs["u"])
    _unshifted(*inputs.values(), cuda_ex2.table(), y_unshifted)
    yield UNSHIFTED, y_unshifted


def on_device(inputs: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """y of every kernel, in the sequential order, and of mamba_ssm's."""
    from scancheck.kernels.cuda.selective_scan import selective_scan as kernel

    tensors = {name: x.cuda() for name, x in _batched(inputs).items()}
    for variant in VARIANTS:
        y, _ = kernel(variant, "sequential", **tensors, delta_softplus=True)
        yield variant, y[0].cpu().numpy()
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError as error:
        print(f"mamba_ssm is left out: {error}", file=sys.stderr)
        return
    y = selective_scan_fn(**tensors, delta_softplus=True)
    yield PEER, y[0].cpu().numpy()


def errors(inputs: dict[str, Array], device: str = "cpu") -> dict[str, float]:
    """The error of each kernel or model, and of the two limits."""
    found = limits(inputs)
    exact = found.pop("fp64")
    ys = dict((on_cpu if device == "cpu" else on_device)(inputs)) | found
    size = np.linalg.norm(exact)
    return {name: float(np.linalg.norm(y - exact) / size) for name, y in ys.items()}


def table(found: dict[str, float]) -> str:
    """The errors as Markdown, and how many times smaller than that of fast they are."""
    rows = [
        f"| {name} | {error:.3g} | {found['fast'] / error:.3g} |"
        for name, error in found.items()
    ]
    header = ["| y by | relative error | better than fast |", "|---|---|---|"]
    return "\n".join(header + rows) + "\n"


def gain(found: dict[str, float]) -> tuple[str, float]:
    """How many times better than what the accurate variant is, required 30 times."""
    name = PEER if PEER in found else UNSHIFTED
    return name, found.get(name, 0.0) / found["accurate"]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = errors(drawn(options.channels), options.device)
    name, times = gain(found)
    where = "their CPU models"
    if options.device != "cpu":
        where = torch.cuda.get_device_name()
    text = (
        f"# selective_scan with slow gates, fp32: {where}\n\n{table(found)}\n"
        f"The accurate variant is {times:.3g} times better than {name}; required are "
        f"{REQUIRED:g}.\n"
    )
    print(text, end="")
    if options.output is not None:
        options.output.write_text(text)
    return int(times < REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
