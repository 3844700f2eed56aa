"""Speed of the oracles, beside a plain mpmath loop timed in the same run.

    python benchmarks/oracles.py

A state-element-step is one entry of the state moved on by one step. The certified
oracle computes the value, its radius, the companions M, W and V, and all readouts; the
mpmath loop computes S_t = w_t S_{t-1} + k_t v_t^T alone, without a readout. Targets
hold for the recurrence in normal form; the whole of selective_scan, with softplus, silu
and all products around it, is told beside them. Ops with matrix states are measured as
`verify` runs them, from stored tensors to references and budgets, and have a target
forwards.
"""

import sys
from collections.abc import Callable
from functools import partial

import mpmath
import numpy as np
from figures import Figure, report, seconds
from numpy.typing import NDArray

from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract, Structure
from scancheck.ops import OPS
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Lowered
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles.ball import Ball
from scancheck.oracles.double_double import exact_double_double
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.fp64 import Fp64System, solve_fp64
from scancheck.oracles.ladder import solve_fp64_rung
from scancheck.oracles.tile_ball import TileBall

FloatArray = NDArray[np.float64]

# Ops with a matrix state, and the contracts of their budgets: tile by tile an oracle
# forms what is lowered next while it scans, so they are long enough for several tiles.
HEADS = {"B": 1, "T": 2048, "H": 4, "K": 64, "V": 64}
WITH_HEADS = {
    "linear_attention": ("unknown", "sequential"),
    "gla": ("unknown", "sequential"),
    "gated_delta_rule": ("sequential",),
    "kda": ("sequential",),
}
GRADIENT_STEPS = 512

GROUPS, STEPS, KEYS, LANES = 4, 64, 64, 64
STATE = KEYS * LANES


def normal_form() -> tuple[dict[str, FloatArray], FloatArray]:
    """Inputs of a tile with one decay per key, and a state."""
    rng = np.random.default_rng(1)
    inputs = {
        "w": rng.uniform(0.9, 1.0, (GROUPS, STEPS, KEYS, 1)),
        "v": rng.normal(size=(GROUPS, STEPS, LANES)),
        "k": rng.normal(size=(GROUPS, STEPS, KEYS, 1)),
        "r": rng.normal(size=(GROUPS, STEPS, KEYS, 1)),
    }
    return inputs, rng.normal(size=(GROUPS, KEYS, LANES))


def mpmath_steps_per_second(steps: int = 3) -> float:
    """Steps of one 64 x 64 state, entry by entry, at mpmath's default precision."""
    inputs, states = normal_form()
    numbers = np.frompyfunc(mpmath.mpf, 1, 1)
    w, k = (numbers(inputs[n][0, :steps, :, 0]).tolist() for n in "wk")
    v, state = numbers(inputs["v"][0, :steps]).tolist(), numbers(states[0]).tolist()

    def run() -> None:
        for t in range(steps):
            for i in range(KEYS):
                decay, key, row = w[t][i], k[t][i], state[i]
                for j in range(LANES):
                    row[j] = decay * row[j] + key * v[t][j]

    return steps / seconds(run, 5)


def fp64_tile_seconds(tiles: int = 4) -> float:
    """Time for one tile of the certified oracle, all companions included."""
    inputs, state = normal_form()
    balls = {n: Ball(x, np.abs(x) * 2.0**-53) for n, x in inputs.items()}
    lowered, system = Lowered(**balls), Fp64System(companions=True)
    begun = system.begin(Ball(state, np.zeros_like(state)))

    def run() -> None:
        carried = begun
        for tile in range(tiles):
            place = tile * STEPS, tiles * STEPS
            _, carried, _ = system.forward(lowered, carried, *place, False)

    return seconds(run, 20) / tiles


def selective_tile_seconds(N: int, D: int, T: int) -> float:
    """Time for a tile of selective_scan in normal form, decays exp(d A) formed."""
    rng = np.random.default_rng(4)

    def ball(value: FloatArray) -> TileBall:
        return TileBall(value, np.abs(value) * 2.0**-52)

    times, rates = rng.exponential(size=(1, T, 1, D)), -rng.uniform(1, 16, (1, 1, N, D))
    lowered = Lowered(
        w=(ball(times) * ball(rates)).exp(),
        v=ball(rng.normal(size=(1, T, D))),
        k=ball(rng.normal(size=(1, T, N, 1))),
        r=ball(rng.normal(size=(1, T, N, 1))),
    )
    system = Fp64System(companions=True)
    begun = system.begin(ball(rng.normal(size=(1, N, D))))
    return seconds(lambda: system.forward(lowered, begun, 0, T, False), 20)


def double_double_tile_seconds() -> float:
    """Time for one tile of the double-double oracle."""
    inputs, state = normal_form()
    lowered = Lowered(**{n: exact_double_double(x) for n, x in inputs.items()})
    system = DoubleDoubleSystem()
    begun = system.begin(exact_double_double(state))
    return seconds(lambda: system.forward(lowered, begun, 0, STEPS, False), 10)


def selective_seconds(B: int, D: int, N: int, L: int) -> float:
    """Time for the whole of selective_scan: lowering, scan and epilogue."""
    rng = np.random.default_rng(2)
    tensors = {n: rng.normal(size=(B, D, L)) for n in ("u", "delta", "z")}
    tensors |= {n: rng.normal(size=(B, N, L)) for n in ("B", "C")}
    tensors |= {n: rng.normal(size=D) for n in ("D", "delta_bias")}
    tensors["A"] = -rng.uniform(1.0, 16.0, (D, N))
    arguments = SELECTIVE_SCAN, tensors, {"delta_softplus": True}
    return seconds(lambda: solve_fp64(*arguments, companions=True), 10)


def linear_seconds(B: int, T: int, D: int) -> float:
    """Time for the whole of linear_scan."""
    rng = np.random.default_rng(3)
    tensors = {
        "a": rng.uniform(0.9, 1.0, (B, T, D)),
        "b": rng.normal(size=(B, T, D)),
    }
    return seconds(lambda: solve_fp64(LINEAR_SCAN, tensors, {}, companions=True), 20)


def drawn_with_heads(name: str, steps: int) -> tuple[dict[str, FloatArray], ...]:
    """Tensors of an op as fp32 holds them, and cotangents of its outputs."""
    rng = np.random.default_rng(5)
    sizes = HEADS | {"T": steps, "HV": HEADS["H"]}
    op = OPS[name]

    def normal(axes: tuple[str, ...]) -> FloatArray:
        return rng.normal(size=[sizes[axis] for axis in axes])

    given = [spec for spec in op.inputs if spec.required]
    tensors = {spec.name: normal(spec.axes) for spec in given}
    for gate in ("g", "gk"):
        if gate in tensors:
            tensors[gate] = -0.1 * np.abs(tensors[gate])
    if "beta" in tensors:
        tensors["beta"] = rng.uniform(size=tensors["beta"].shape)
        tensors["k"] /= np.linalg.norm(tensors["k"], axis=-1, keepdims=True)
    held = {name: x.astype(np.float32).astype(float) for name, x in tensors.items()}
    return held, {spec.name: normal(spec.axes) for spec in op.outputs}


def heads_figures() -> list[Figure]:
    """Oracle and budgets of ops with heads, forwards and with gradients."""
    found = []
    for name, kinds in WITH_HEADS.items():
        op = OPS[name]
        for steps in (HEADS["T"], GRADIENT_STEPS):
            tensors, bars = drawn_with_heads(name, steps)
            forward = steps == HEADS["T"]
            cotangents = None if forward else bars
            sizes = HEADS | {"T": steps}
            shape = _shape(sizes) + ("" if forward else ", gradients")

            oracle = partial(solve_fp64_rung, op, tensors, {}, cotangents)
            runs: dict[str, Callable[[], object]] = {f"certified fp64, {name}": oracle}
            for kind in kinds:
                contract = Contract(structure=Structure(kind=kind))
                runs[f"budget, {name}, {kind} order"] = partial(
                    budget_for, op, tensors, {}, contract, "fp32", cotangents
                )
            for label, run in runs.items():
                found.append(
                    Figure(
                        name=label,
                        shape=shape,
                        value=_entries(sizes) / seconds(run, 5),
                        unit="state-element-steps/s",
                        target=5e8 if forward else None,
                    )
                )
    return found


def figures() -> list[Figure]:
    """All of them."""
    plain = mpmath_steps_per_second()
    fp64 = fp64_tile_seconds()
    double_double = double_double_tile_seconds()
    shape = f"K {KEYS}, V {LANES}, G {GROUPS}, T {STEPS} a tile"
    steps = GROUPS * STEPS
    unit = "state-element-steps/s"
    selective = {"B": 1, "D": 256, "N": 16, "L": 4096}
    tile = {"N": 16, "D": 256, "T": 256}
    linear = {"B": 1, "T": 1024, "D": 1024}
    return [
        Figure(
            name="plain mpmath loop, value alone",
            shape=f"K {KEYS}, V {LANES}",
            value=plain,
            unit="steps/s",
        ),
        Figure(
            name="certified fp64, normal form",
            shape=shape,
            value=steps * STATE / fp64,
            unit=unit,
            target=5e8,
        ),
        Figure(
            name="certified fp64 against mpmath",
            shape=shape,
            value=steps / fp64 / plain,
            unit="times",
            target=500,
        ),
        Figure(
            name="certified fp64, selective scan in normal form",
            shape=_shape(tile),
            value=_entries(tile) / selective_tile_seconds(**tile),
            unit=unit,
            target=2.5e8,
        ),
        Figure(
            name="certified fp64, selective_scan with all its gates",
            shape=_shape(selective),
            value=_entries(selective) / selective_seconds(**selective),
            unit=unit,
        ),
        Figure(
            name="certified fp64, linear_scan",
            shape=_shape(linear),
            value=_entries(linear) / linear_seconds(**linear),
            unit=unit,
            target=2.5e8,
        ),
        Figure(
            name="double-double, normal form",
            shape=shape,
            value=steps * STATE / double_double,
            unit=unit,
        ),
        Figure(
            name="double-double against mpmath",
            shape=shape,
            value=steps / double_double / plain,
            unit="times",
            target=200,
        ),
        *heads_figures(),
    ]


def _shape(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _entries(sizes: dict[str, int]) -> int:
    return int(np.prod(list(sizes.values())))


if __name__ == "__main__":
    sys.exit(report(figures()))
