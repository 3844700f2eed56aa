"""A chunked machine on a case under a contract: errors beside what is allowed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from machines.chunked_rank_one import Machine, run
from numpy.typing import NDArray

from scancheck.bounds.budget import Budget, budget_for
from scancheck.case import Case, make_case
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import FORMATS, round_array
from scancheck.ops import OPS
from scancheck.oracles.ball import certified_radius
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes import build
from scancheck.recipes.inputs import cotangents

FloatArray = NDArray[np.float64]
Tensors = dict[str, FloatArray]

NAMES = ("delta_rule", "gated_delta_rule", "kda", "rwkv7")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# torch's exponential of a float is within two ulps.
CONTRACT = Contract(operands="storage", exp=ErrorModel(e0=4.0, e1=0.0))


def claim(op: str, chunk: int, **more: str) -> Contract:
    """The contract of the machine's chunks."""
    log = "none" if op == "delta_rule" else "diff"
    structure = Structure(kind="chunk", chunk=chunk)
    return replace(CONTRACT, **{"structure": structure, "log": log, **more})


def case_of(op: str, recipe: str, dtype: str, steps: int, chunk: int) -> Case:
    """Two rows of two heads, with an initial state."""
    heads = {"H": 2} if op == "rwkv7" else {"H": 1, "HV": 2}
    return make_case(
        op,
        {"B": 2, "T": steps, **heads, "K": 16, "V": 8},
        dtype=dtype,
        recipe=recipe,
        seed=1,
        options={"chunk": chunk, "initial_state": True},
    )


def drawn(case: Case) -> tuple[Tensors, Tensors]:
    """Tensors and dense cotangents."""
    return build(case).tensors, cotangents(case, "dense", case.seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def computed(
    machine: Machine, case: Case, tensors: Tensors, bars: Tensors | None = None
) -> Tensors:
    """Outputs and, for cotangents, gradients, stored as the case says."""
    op = OPS[case.op]
    names = [spec.name for spec in op.outputs]
    leaves = {n: torch.tensor(x, dtype=torch.float32) for n, x in tensors.items()}
    with one_thread():
        for leaf in leaves.values():
            leaf.requires_grad_(bars is not None)
        outputs = run(machine, case.op, leaves)
        got = dict(zip(names, outputs, strict=True))
        if bars is not None:
            given = [torch.tensor(bars[n], dtype=torch.float32) for n in names]
            gradients = torch.autograd.grad(outputs, list(leaves.values()), given)
            got |= dict(zip(leaves, gradients, strict=True))
    kinds = {spec.name: spec.kind for spec in (*op.inputs, *op.outputs)}
    return {
        n: round_array(
            FORMATS[case.dtype if kinds[n] == "storage" else "fp32"],
            x.detach().double().numpy(),
        )
        for n, x in got.items()
    }


def ratios(got: Tensors, truth: Solution, budget: Budget) -> dict[str, float]:
    """The largest error over its budget, where the budget says that there is one."""
    allowed = budget.outputs | budget.gradients
    found = {}
    for name, ball in (truth.outputs | truth.gradients).items():
        bound = allowed[name].error + certified_radius(ball)
        ratio = np.abs(got[name] - ball.value) / bound
        excused = allowed[name].overflows
        found[name] = float(np.where(excused, 0.0, np.nan_to_num(ratio, nan=9.0)).max())
    return found


def judged(machine: Machine, contract: Contract, case: Case) -> dict[str, float]:
    """Ratios of a machine under a contract on a case."""
    tensors, bars = drawn(case)
    budget = budget_for(OPS[case.op], tensors, {}, contract, case.dtype, bars)
    truth = solve(Fp64System(), OPS[case.op], tensors, {}, bars)
    return ratios(computed(machine, case, tensors, bars), truth, budget)
