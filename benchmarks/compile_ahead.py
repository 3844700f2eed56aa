"""What a kernel compiles for the cases of a run, by several processes beforehand.

Triton compiles a kernel anew for every number of heads and every width, one after the
other where one process calls it: most of the time of judging such a kernel. What has
been compiled is kept on disk, where the process that is judged finds it.
"""

import multiprocessing
import time
from contextlib import suppress
from dataclasses import replace

from scancheck.case import Case
from scancheck.contract import Contract
from scancheck.gate.loop import Judging
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.calling import op_of
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.registry import resolve_target
from scancheck.runner.device import device_for
from scancheck.runner.execute import execute

LIMIT_S = 120.0  # then whoever judges compiles what is left


def compile_ahead(
    kernel: Kernel, dtype: str, device: str, seed: int, cores: int
) -> int:
    """Calls the kernel on every case of the quick profile; in how many processes.

    A device without an index, as cuda, is its first one.
    """
    device = device_for(kernel, device)
    judging = Judging(
        kernel=replace(kernel, devices=(device,)),
        contract=kernel.contract or Contract(),
        declared=True,
        profile="quick",
        gradients=kernel.gradients,
        require=frozenset(),
        seed=seed,
        dtypes=(dtype,),
    )
    groups = by_widths(judging.cases(dtype))
    until = time.monotonic() + LIMIT_S
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(cores, len(groups))) as pool:
        for job in [
            pool.apply_async(call_all, (kernel.name, device, g)) for g in groups
        ]:
            # What a kernel does wrong is no exception, and seen where it is judged.
            with suppress(multiprocessing.TimeoutError):
                job.get(max(0.0, until - time.monotonic()))
    return min(cores, len(groups))


def by_widths(cases: list[Case]) -> list[list[Case]]:
    """Cases with the same heads and widths, which share what is compiled, together."""
    groups: dict[tuple[tuple[str, int], ...], list[Case]] = {}
    for case in cases:
        time_axis = op_named(case.op).time_axis
        key = tuple(x for x in case.sizes if x[0] not in ("B", time_axis))
        groups.setdefault(key, []).append(case)
    return sorted(groups.values(), key=len, reverse=True)


def call_all(name: str, device: str, cases: list[Case]) -> None:
    """One call of each case, with gradients where the kernel has them."""
    (kernel,) = resolve_target(name, None)
    kernel = replace(kernel, devices=(device,))
    for case in cases:
        bars = cotangents(case, "dense", case.seed) if kernel.gradients else None
        execute(kernel, op_of(case), build(case), case.dtype, cotangents=bars, runs=1)
