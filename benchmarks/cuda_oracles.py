"""Speed of the oracles on a CUDA device, and of judging a case beside them.

    python benchmarks/cuda_oracles.py [-o reports/h200/oracle_speed.md] [--match REGEX]

A state-element-step is one entry of the state moved on by one step. The scan is what
the rung's kernel does for the recurrence in normal form, a call the whole of an op, all
gates included. Writes the page and, beside it, its figures as JSON, after each figure.
With --match only figures whose name or place has it are measured, and the others are
kept as the page has them. A figure that cannot be measured is told, and the next one
comes. Exits 1 if a target is missed or a figure could not be measured.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda_speed import commit_here, environment, free_memory
from figures import Figure
from oracle_page import NO_PLAIN_PASS, Job, Page

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
from scancheck.recipes.inputs import Inputs
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
CALLS, SHORT_S = 21, 0.3
LONG_S = 1.0  # of a call that is not worth another one


def seconds(run: Callable[[], object]) -> float:
    """Median wall-clock time of a call, device idle before and after.

    The first call compiles kernels; the second one counts alone if it is long.
    """
    synchronize = cuda_card.arrays().cuda.runtime.deviceSynchronize

    def once() -> float:
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        return time.perf_counter() - start

    once()
    second = once()
    if second > LONG_S:
        return second
    times: list[float] = []
    while len(times) < CALLS and (len(times) < 3 or sum(times) < SHORT_S):
        times.append(once())
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


def rate(
    name: str,
    shape: str,
    entries: int,
    prepare: Callable[[], Callable[[], Any]],
    target: float | None = None,
) -> Job:
    """State-element-steps per second of what `prepare` gives to run."""

    def measure() -> Figure:
        value = entries / seconds(prepare())
        return Figure(name=name, shape=shape, value=value, unit=UNIT, target=target)

    return Job(name=name, shape=shape, measure=measure)


def rates() -> Iterator[Job]:
    """Both rungs, where a state has one entry a lane."""
    fp64, double_double = CudaFp64System, CudaDoubleDoubleSystem

    def scanned(system: Any) -> Callable[[], Any]:
        return scan(system, on_card(linear_tensors(DIAGONAL)))

    def called(system: Any) -> Callable[[], Any]:
        return call(system, LINEAR_SCAN, on_card(linear_tensors(DIAGONAL)), {})

    where, entries = "B{} T{} D{}".format(*DIAGONAL), _entries(DIAGONAL)
    with_companions = partial(fp64, companions=True)
    for name, prepare, target in (
        ("certified fp64, scan", lambda: scanned(fp64()), FP64_RATE),
        (
            "certified fp64 with the budget's companions, scan",
            lambda: scanned(with_companions()),
            None,
        ),
        ("certified fp64, call", lambda: called(fp64()), FP64_RATE),
        ("double-double, scan", lambda: scanned(double_double()), DOUBLE_DOUBLE_RATE),
        ("double-double, call", lambda: called(double_double()), DOUBLE_DOUBLE_RATE),
    ):
        yield rate(name, where, entries, prepare, target)
    where, entries = "B{} T{} D{}".format(*FROM_HOST), _entries(FROM_HOST)
    name = "certified fp64, call, arrays to and from the host"
    yield rate(name, where, entries, from_host)
    where = "selective_scan " + " ".join(f"{k}{n}" for k, n in SELECTIVE.items())
    entries = _entries(tuple(SELECTIVE.values()))
    for name, system in (("certified fp64", fp64), ("double-double", double_double)):
        prepare = partial(selective_call, system)
        yield rate(f"{name}, call, all gates", where, entries, prepare)


def from_host() -> Callable[[], Any]:
    """A call from arrays of the host to arrays of the host."""
    tensors = {
        n: x.cpu().double().numpy() for n, x in linear_tensors(FROM_HOST).items()
    }
    return partial(solve_fp64_on_card, LINEAR_SCAN, tensors, {}, None, "cuda")


def selective_call(system: Callable[[], Any]) -> Callable[[], Any]:
    """A call of selective_scan with every gate, on the device."""
    torch.manual_seed(0)
    B, D, N, L = SELECTIVE.values()
    shapes = {
        **dict.fromkeys(("u", "delta", "z"), (B, D, L)),
        **dict.fromkeys(("B", "C"), (B, N, L)),
        **dict.fromkeys(("D", "delta_bias"), (D,)),
    }
    tensors = {n: torch.randn(s, device="cuda") for n, s in shapes.items()}
    tensors["A"] = -1 - 15 * torch.rand(D, N, device="cuda")
    switches = {"delta_softplus": True}
    return call(system(), SELECTIVE_SCAN, on_card(tensors), switches)


def matrix_states() -> Iterator[Job]:
    """Certified fp64 and the budget of ops with matrix states, gates included."""
    for name in MATRIX_STATES:
        op = OPS[name]
        sizes = {axis: HEADS[axis] for axis in op.size_names}
        entries = int(np.prod(op.group_shape(sizes))) * sizes["T"]
        where = f"{name} " + " ".join(f"{k}{n}" for k, n in sizes.items())
        rules = rules_for(SEQUENTIAL, "fp32")
        budget = CardErrorSystem if op.diagonal else CardRankOneSystem
        for what, system in (
            ("certified fp64, call", CudaFp64System),
            ("sequential budget, call", partial(budget, rules)),
        ):
            prepare = partial(heads_call, name, system)
            yield rate(what, where, entries, prepare, MATRIX_RATE)


@lru_cache(maxsize=1)
def heads_inputs(name: str) -> Inputs:
    """An op's inputs, drawn on the host: that takes longer than what is measured."""
    sizes = {axis: HEADS[axis] for axis in OPS[name].size_names}
    return build(make_case(name, sizes, recipe="gaussian_slow", seed=0))


def heads_call(name: str, system: Callable[[], Any]) -> Callable[[], Any]:
    """A call of an op with heads, arrays on the device."""
    inputs = heads_inputs(name)
    there = {n: cuda_card.float64(x) for n, x in inputs.tensors.items()}
    return call(system(), OPS[name], there, inputs.switches)


def judging() -> Iterator[Job]:
    """Judging a case over the oracle alone, by contract and shape."""
    for shape in JUDGED:
        where = "B{} T{} D{}".format(*shape)
        for name, (variant, contract) in CASES.items():
            if can_screen(frozenset({"a", "b"}), contract, "fp32"):
                told = f"judging over the oracle alone, {name}"
                measure = partial(judged, told, shape, variant, contract)
                yield Job(name=told, shape=where, measure=measure)


@lru_cache(maxsize=1)
def alone(shape: tuple[int, int, int]) -> float:
    """Seconds of the oracle alone."""
    return seconds(
        call(CudaFp64System(), LINEAR_SCAN, on_card(linear_tensors(shape)), {})
    )


def judged(
    name: str, shape: tuple[int, int, int], variant: str, contract: Contract
) -> Figure:
    """The time of judging what a kernel returned, over that of the oracle alone."""
    oracle = alone(shape)
    free_memory()
    tensors = linear_tensors(shape)
    stored = on_card(tensors, np.float32)
    h, final_state = linear_scan("single_pass", variant).call(**tensors)
    got = on_card({"h": h, "final_state": final_state}, np.float32)
    factor = lambda_factor(_entries(shape), FALSE_ALARM_RATE)
    judge = partial(screen, stored, got, contract, "fp32", lambda_factor=factor)
    passed = all(one.is_plain_pass for one in judge().values())
    return Figure(
        name=name,
        shape="B{} T{} D{}".format(*shape) + ("" if passed else NO_PLAIN_PASS),
        value=seconds(judge) / oracle,
        unit="",
        target=MOST_TIMES_ORACLE,
        at_least=False,
    )


def _entries(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def main(arguments: list[str] | None = None) -> int:
    """Measures, and prints and keeps each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path("reports/h200/oracle_speed.md")
    parser.add_argument("-o", "--output", type=Path, default=default)
    parser.add_argument("--match", help="measure these, and keep the others")
    options = parser.parse_args(arguments)
    jobs = list(chain(rates(), matrix_states(), judging()))
    wanted = re.compile(options.match or "")
    asked = [job for job in jobs if wanted.search(f"{job.name}, {job.shape}")]
    if not asked:
        raise SystemExit(f"--match {options.match}: no figure has it")
    written = Page(options.output, environment(()) | {"commit": commit_here()})
    if options.match:
        written.take_up()
    order = [job.key for job in jobs]
    for job in asked:
        written.add(job)
        figure = written.figures.get(job.key)
        told = written.failures.get(job.key, "")
        value = told if figure is None else f"{figure.value:.4g}"
        print(job.name, job.shape, value, flush=True)
        written.write(order)
    missed = [key for key, figure in written.figures.items() if not figure.passed]
    return int(bool(missed or written.failures))


if __name__ == "__main__":
    sys.exit(main())
