"""What came of running a kernel on one case, as data."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scancheck.formats import FloatArray

Mask = NDArray[np.bool_]

ProblemKind = Literal[
    "raised",
    "wrong_count",
    "not_tensor",
    "device",
    "wrong_shape",
    "wrong_dtype",
    "aliases_input",
    "input_changed",
    "wrote_outside",
    "not_differentiable",
    "backward_raised",
    "device_error",  # a CUDA error, told by the call or left behind by it
    "crashed",  # its process ended (seen from outside it, as the next)
    "hung",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something a kernel must not do, whatever its numbers are worth."""

    kind: ProblemKind
    message: str  # one line, with the place in the kernel's file where it raised
    detail: str = ""  # the traceback, below the harness


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outputs and gradients of a kernel's runs on the same inputs.

    Arrays are float64 and hold the first run's values. They are there whenever that run
    gave outputs of the right kind, also beside a problem.
    """

    outputs: dict[str, FloatArray] = field(default_factory=dict)
    gradients: dict[str, FloatArray] = field(default_factory=dict)
    missing_gradients: tuple[str, ...] = ()  # None, taken as zero
    problem: Problem | None = None  # the first that was met
    differs: dict[str, Mask] = field(default_factory=dict)  # output bits between runs
    gradient_differs: dict[str, Mask] = field(default_factory=dict)
    changed_inputs: tuple[str, ...] = ()
    seconds: float = 0.0  # spent inside the kernel, all runs together
    device_lost: bool = False  # a fault: this process cannot use the device again

    @property
    def returned(self) -> tuple[str, ...]:
        """The names of the outputs that the kernel gave back."""
        return tuple(self.outputs)
