"""Speed of the oracles on a CUDA device, and of judging a case beside them.

    python benchmarks/cuda_oracles.py [-o reports/h200/oracle_speed.md]

A state-element-step is one entry of the state moved on by one step. The scan is what
the rung's kernel does for the recurrence in normal form, a call the whole of an op, all
gates included. Writes the page and, beside it, its figures as JSON. Exits 1 if a target
is missed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda_speed import commit_here, environment, figures_table, free_memory
from figures import Figure

from scancheck.bounds.card import CardErrorSystem, CardRankOneSystem
from scancheck.bounds.moments import lambda_factor
from scancheck.bounds.rules import rules_for
from scancheck.campaign.trial import FALSE_ALARM_RATE
from scancheck.case import make_case
from scancheck.contract import Contract, Structure
from scancheck.kernels.cuda.catalog import linear_scan, linear_scan_contract
from scancheck.ops import OPS
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Op
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles import cuda_card
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System, cuda_stretch
from scancheck.oracles.cuda_rungs import solve_fp64_on_card
from scancheck.oracles.engine import solve
from scancheck.recipes.build import build
from scancheck.screen import can_screen, screen

DIAGONAL = (1, 2048, 131072)  # B, T, D
FROM_HOST = (1, 2048, 16384)
SELECTIVE = {"B": 4, "D": 1536, "N": 16, "L": 2048}
JUDGED = (DIAGONAL, (8, 4096, 2048), (1, 65536, 2048), (2, 1024, 2048), (1, 256, 512))
CASES = {
    "contract without any claim": ("plain", Contract()),
    **{
        f"contract of {variant}": (variant, linear_scan_contract(variant))
        for variant in ("plain", "kahan", "full")
    },
}
"""What is judged by which contract."""
FP64_RATE, DOUBLE_DOUBLE_RATE, MOST_TIMES_ORACLE = 1e11, 5e10, 3.0
# Ops whose state is a matrix, with their recipes' tensors.
MATRIX_STATES = ("linear_attention", "gla", "gated_delta_rule", "kda")
HEADS = {"B": 4, "T": 2048, "H": 8, "HV": 8, "K": 64, "V": 64}
MATRIX_RATE = 2e10
SEQUENTIAL = Contract(structure=Structure(kind="sequential"))
UNIT = "state-element-steps/s"
CALLS, SHORT_S = 21, 0.5

WHAT = """\
Times are medians of whole calls by the clock of the host, the device idle before and
after, arrays on the device unless said otherwise; so what the host does is in them. The
oracle alone is its call on the same case, from fp64 arrays to values and radii of both
outputs. Judging is `scancheck.screen.screen`: the same scan, the budget, the second
moment where the contract has one, and the comparison with what a kernel
cuda.linear_scan.single_pass returned in fp32, down to the sums on the host.
"""

FEW_LANES = """\
What holds judging back where lanes are few, by Nsight Compute at 297354d on
[1, 65536, 2048] (`ncu --kernel-name judge_lanes --set full`): one warp on each of 64
multiprocessors, 220 instructions a step and 3.5 cycles for each, of which 1.5 wait for
the result before and 0.6 for memory. Prefetching the table of paths changed nothing
(6.8 and 7.3 times the oracle). At one instruction a cycle it would be 1.8 times; lanes
are independent, steps are not, so only several warps for one lane could come nearer.
"""


def seconds(run: Callable[[], object]) -> float:
    """Median wall-clock time of a call, device idle before and after."""
    xp = cuda_card.arrays()
    times: list[float] = []
    run()
    run()
    while len(times) < CALLS and (len(times) < 3 or sum(times) < SHORT_S):
        xp.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        run()
        xp.cuda.runtime.deviceSynchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def linear_tensors(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Decays in 0.9 to 1 and drives in 0.5 to 1.5, fp32, on the device.

    No state is near zero, where a budget may be larger than it: such an element is
    looked at in full, another time than that of the screening.
    """
    torch.manual_seed(0)
    a = 1 - 0.1 * torch.rand(shape, device="cuda")
    return {"a": a, "b": 0.5 + torch.rand(shape, device="cuda")}


def on_card(tensors: Mapping[str, Any], dtype: Any = np.float64) -> dict[str, Any]:
    """The tensors as CuPy's arrays."""
    xp = cuda_card.arrays()
    return {name: xp.asarray(x).astype(dtype) for name, x in tensors.items()}


def scan(system: Any, arrays: Mapping[str, Any]) -> Callable[[], Any]:
    """The scan of linear_scan alone, by an oracle."""
    lowered, _ = LINEAR_SCAN.lower(
        {name: system.constant(x) for name, x in arrays.items()}, None
    )
    batch, steps, lanes = arrays["b"].shape
    begun = system.begin(system.constant(np.zeros((batch, 1, lanes))))
    return lambda: system.forward(lowered, begun, 0, steps, False)


def call(
    system: Any, op: Op, arrays: Mapping[str, Any], switches: Mapping[str, bool]
) -> Callable[[], Any]:
    """The whole of an op by an oracle, results on the device."""
    return lambda: solve(system, op, arrays, switches, stretch=cuda_stretch(False))


def rates() -> Iterator[Figure]:
    """State-element-steps per second of both rungs."""
    arrays, entries = on_card(linear_tensors(DIAGONAL)), _entries(DIAGONAL)
    where = "B{} T{} D{}".format(*DIAGONAL)

    def rate(name: str, run: Callable[[], Any], target: float | None = None) -> Figure:
        value = entries / seconds(run)
        return Figure(name=name, shape=where, value=value, unit=UNIT, target=target)

    fp64, double_double = CudaFp64System(), CudaDoubleDoubleSystem()
    yield rate("certified fp64, scan", scan(fp64, arrays), FP64_RATE)
    with_companions = scan(CudaFp64System(companions=True), arrays)
    yield rate("certified fp64 with the budget's companions, scan", with_companions)
    yield rate("certified fp64, call", call(fp64, LINEAR_SCAN, arrays, {}), FP64_RATE)
    free_memory()
    name = "double-double, scan"
    yield rate(name, scan(double_double, arrays), DOUBLE_DOUBLE_RATE)
    name, run = "double-double, call", call(double_double, LINEAR_SCAN, arrays, {})
    yield rate(name, run, DOUBLE_DOUBLE_RATE)
    del arrays, run
    free_memory()
    tensors = {
        n: x.cpu().double().numpy() for n, x in linear_tensors(FROM_HOST).items()
    }
    where, entries = "B{} T{} D{}".format(*FROM_HOST), _entries(FROM_HOST)
    run = partial(solve_fp64_on_card, LINEAR_SCAN, tensors, {}, None, "cuda")
    yield rate("certified fp64, call, arrays to and from the host", run)
    free_memory()
    arrays, entries = selective_arrays(), _entries(tuple(SELECTIVE.values()))
    where = "selective_scan " + " ".join(f"{k}{n}" for k, n in SELECTIVE.items())
    run = call(fp64, SELECTIVE_SCAN, arrays, {"delta_softplus": True})
    yield rate("certified fp64, call, all gates", run)
    run = call(double_double, SELECTIVE_SCAN, arrays, {"delta_softplus": True})
    yield rate("double-double, call, all gates", run)


def selective_arrays() -> dict[str, Any]:
    """selective_scan's inputs with every gate, on the device."""
    torch.manual_seed(0)
    B, D, N, L = SELECTIVE.values()
    shapes = {
        **dict.fromkeys(("u", "delta", "z"), (B, D, L)),
        **dict.fromkeys(("B", "C"), (B, N, L)),
        **dict.fromkeys(("D", "delta_bias"), (D,)),
    }
    tensors = {n: torch.randn(s, device="cuda") for n, s in shapes.items()}
    return on_card(tensors | {"A": -1 - 15 * torch.rand(D, N, device="cuda")})


def matrix_states() -> Iterator[Figure]:
    """Certified fp64 and the budget of ops with matrix states, gates included."""
    for name in MATRIX_STATES:
        op = OPS[name]
        sizes = {axis: HEADS[axis] for axis in op.size_names}
        inputs = build(make_case(name, sizes, recipe="gaussian_slow", seed=0))
        there = {n: cuda_card.float64(x) for n, x in inputs.tensors.items()}
        groups, keys, lanes = op.group_shape(sizes)
        entries = groups * keys * lanes * sizes["T"]
        where = f"{name} " + " ".join(f"{k}{n}" for k, n in sizes.items())
        rules = rules_for(SEQUENTIAL, "fp32")
        budget = CardErrorSystem if op.diagonal else CardRankOneSystem
        for what, system in (
            ("certified fp64, call", CudaFp64System()),
            ("sequential budget, call", budget(rules)),
        ):
            value = entries / seconds(call(system, op, there, inputs.switches))
            yield Figure(
                name=what, shape=where, value=value, unit=UNIT, target=MATRIX_RATE
            )
            free_memory()


def judging() -> Iterator[Figure]:
    """Judging a case over the oracle alone, by contract and shape."""
    for shape in JUDGED:
        tensors = linear_tensors(shape)
        stored = on_card(tensors, np.float32)
        alone = seconds(call(CudaFp64System(), LINEAR_SCAN, on_card(tensors), {}))
        factor = lambda_factor(_entries(shape), FALSE_ALARM_RATE)
        for name, (variant, contract) in CASES.items():
            if not can_screen(frozenset(tensors), contract, "fp32"):
                continue
            h, final_state = linear_scan("single_pass", variant).call(**tensors)
            got = on_card({"h": h, "final_state": final_state}, np.float32)
            judge = partial(screen, stored, got, contract, "fp32", lambda_factor=factor)
            passed = all(one.is_plain_pass for one in judge().values())
            yield Figure(
                name=f"judging over the oracle alone, {name}",
                shape="B{} T{} D{}".format(*shape)
                + ("" if passed else ", which is not a plain pass"),
                value=seconds(judge) / alone,
                unit="",
                target=MOST_TIMES_ORACLE,
                at_least=False,
            )
        free_memory()


def _entries(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def page(figures: list[Figure], known: Mapping[str, str]) -> str:
    """The page as Markdown."""
    told = ", ".join(f"{k} {v}" for k, v in sorted(known.items()))
    return "\n".join(
        [
            f"# Speed of the oracles on {known.get('cuda_device', 'no device')}\n",
            f"Made by `python benchmarks/cuda_oracles.py`.\n{WHAT}",
            figures_table(figures),
            FEW_LANES,
            f"Environment: {told}\n",
        ]
    )


def main() -> int:
    """Measures, and prints and keeps each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path("reports/h200/oracle_speed.md")
    parser.add_argument("-o", "--output", type=Path, default=default)
    output = parser.parse_args().output
    known = environment(()) | {"commit": commit_here()}
    figures: list[Figure] = []
    for figure in chain(rates(), matrix_states(), judging()):
        figures.append(figure)
        print(figure.name, figure.shape, f"{figure.value:.4g}", flush=True)
        write(output, figures, known)
    return int(not all(figure.passed for figure in figures))


def write(output: Path, figures: list[Figure], known: Mapping[str, str]) -> None:
    """The page, and beside it the figures as JSON."""
    data = {
        "schema_version": 1,
        "environment": known,
        "figures": [asdict(f) | {"passed": f.passed} for f in figures],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps(data, indent=2) + "\n")
    output.write_text(page(figures, known), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
