"""The ladder's first two rungs on the card, their solutions brought back."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import Op
from scancheck.oracles import cuda_card
from scancheck.oracles.ball import Ball
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System, cuda_stretch
from scancheck.oracles.double_double import DoubleDouble
from scancheck.oracles.engine import Solution, solve

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, FloatArray]


def solve_fp64_on_card(
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    cotangents: Arrays | None,
    device: str,
) -> Solution:
    """Balls for outputs and gradients, as `solve_fp64` gives them."""
    stretch = cuda_stretch(cotangents is not None)
    with on_card(device):
        system = CudaFp64System()
        solution = solve(system, op, tensors, switches, cotangents, stretch=stretch)
        return _brought_back(solution, Ball)


def solve_double_double_on_card(
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    cotangents: Arrays | None,
    device: str,
) -> Solution:
    """Double-doubles for outputs and gradients."""
    stretch = cuda_stretch(cotangents is not None)
    with on_card(device):
        system = CudaDoubleDoubleSystem()
        solution = solve(system, op, tensors, switches, cotangents, stretch=stretch)
        return _brought_back(solution, DoubleDouble)


def on_card(device: str) -> AbstractContextManager[Any]:
    """A context in which `device` ("cuda" or "cuda:1") is the current one.

    Raises CaseInvalid for any other name.
    """
    kind, colon, index = device.partition(":")
    if kind != "cuda" or (colon and not index.isdecimal()):
        raise CaseInvalid(f"device: expected cpu, cuda or cuda:N; got {device!r}")
    if not index:
        return nullcontext()
    selected: AbstractContextManager[Any] = cuda_card.arrays().cuda.Device(int(index))
    return selected


def _brought_back(solution: Solution, kind: type[Any]) -> Solution:
    def back(number: Any) -> Any:
        return kind(*map(cuda_card.on_cpu, number.components))

    return Solution(
        outputs={name: back(number) for name, number in solution.outputs.items()},
        gradients={name: back(number) for name, number in solution.gradients.items()},
    )
