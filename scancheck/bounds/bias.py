"""Errors of functions that lie in one direction.

An approximation of exp is off by much the same at arguments that are much the same, as
those of slow gates are: exp by the ex2.approx of an H200 is off by -0.38 u on average
for decays of 0.98 to 0.998, where single errors reach 1.6 u. Over hundreds of tokens
that outgrows every rounding: a delta rule in fp32 that computes so, with all else
rounded to nearest, had 3.3 times the error that independent errors of at most
e0 + e1 |x| predict.

So of a function's error, at most e0 + e1 |x| by the contract, one rounding of its
result is counted as independent. The rest may be bias: results lie 2 u apart, so that
where arguments are spread errors fill an interval of 2 u around their mean, which is
e0 + e1 |x| - u at most. What a common bias does is found by running the op in fp64 with
every function off by all of its own, upwards.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.rules import Rules
from scancheck.ops.normal_form import Lowered, Op
from scancheck.oracles import cuda_card
from scancheck.oracles.ball import Ball, exact_ball
from scancheck.oracles.cuda_ball import CudaBall, exact_cuda_ball
from scancheck.oracles.cuda_fp64 import CudaFp64System, cuda_stretch
from scancheck.oracles.cuda_rungs import on_card
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, FloatArray]
Model = tuple[float, float]  # e0 and e1 of a relative error e0 + e1 |x|

# Of a unit: far above the roundings of fp64, and small over long sequences.
VISIBLE = 2.0**-40


def rounded_functions(rules: Rules) -> Rules:
    """The rules with functions that are off by one rounding at most."""
    exp, softplus, silu = (
        (min(e0, rules.u), 0.0) for e0, _ in (rules.exp, rules.softplus, rules.silu)
    )
    return replace(rules, exp=exp, softplus=softplus, silu=silu)


@dataclass(frozen=True, slots=True)
class Bias:
    """What else functions are off by, e0 + e1 |x|."""

    exp: Model
    softplus: Model
    silu: Model

    @classmethod
    def of(cls, rules: Rules) -> Self:
        """Enlarged where a unit of the rules is close to fp64's."""
        scale = enlarged(rules)

        def rest(model: Model) -> Model:
            return scale * max(0.0, model[0] - rules.u), scale * model[1]

        return cls(rest(rules.exp), rest(rules.softplus), rest(rules.silu))


def enlarged(rules: Rules) -> float:
    """How many times larger a bias is than that of the contract."""
    return max(1.0, VISIBLE / rules.u)


def bias_of(
    rules: Rules,
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    exact: Arrays,
    cotangents: Arrays | None = None,
    *,
    device: str = "cpu",
) -> dict[str, FloatArray]:
    """By how much functions' bias moves each output and gradient that `exact` names.

    `exact` holds the values without it, in fp64; an entry that is not finite with it
    is left out, as 0. With a CUDA `device` the recurrence runs there.
    """
    bias = Bias.of(rules)
    given = op, tensors, switches, cotangents
    # Overflow is no surprise here.
    with np.errstate(over="ignore", invalid="ignore"):
        if device == "cpu":
            found = solve(BiasedFp64System(bias), *given)
        else:
            stretch = cuda_stretch(cotangents is not None)
            with on_card(device):
                found = solve(BiasedCudaSystem(bias), *given, stretch=stretch)
        numbers = {**found.outputs, **found.gradients}
        moved = {n: cuda_card.on_cpu(numbers[n].value) - x for n, x in exact.items()}
    scale = enlarged(rules)
    return {n: np.where(np.isfinite(x), x / scale, 0.0) for n, x in moved.items()}


class BiasedBall(Ball):
    """A ball whose functions are off by their bias."""

    __slots__ = ("bias",)

    def __init__(self, bias: Bias, *components: Any) -> None:
        super().__init__(*components)
        self.bias = bias

    def like(self, *components: Any) -> Self:
        """The same bias with other components."""
        return type(self)(self.bias, *components)

    def exp(self) -> Self:
        """exp(x)."""
        return self._off(super().exp(), *self.bias.exp)

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._off(super().softplus(), *self.bias.softplus)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)), by the models of exp and silu."""
        e0, e1 = self.bias.exp
        return self._off(super().sigmoid(), e0 + self.bias.silu[0], e1)

    def silu(self) -> Self:
        """x sigmoid(x), by the contract's model of silu."""
        return self * self._off(super().sigmoid(), *self.bias.silu)

    def _off(self, result: Self, e0: float, e1: float) -> Self:
        size = abs(self.value)
        # exp(-inf) is exactly 0, whatever e1 |x| says.
        own = e0 + e1 * np.where(size == math.inf, 0.0, size)
        return self.like(result.value * (1.0 + own), result.radius)


class BiasedCudaBall(BiasedBall, CudaBall):
    """The same on the card; no product waits, whose exp would have no bias."""

    __slots__ = ()

    def __mul__(self, other: Any) -> Any:
        return self._elementwise("Multiply", other)


class BiasedFp64System(Fp64System):
    """The fp64 oracle with functions that are off."""

    def __init__(self, bias: Bias) -> None:
        super().__init__()
        self.bias = bias

    def constant(self, values: FloatArray) -> Ball:
        """Stored values."""
        exact = exact_ball(np.asarray(values, dtype=np.float64))
        return BiasedBall(self.bias, *exact.components)

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Ball, Any, Any]:
        """As of the oracle; what is read has the bias of functions too."""
        o, after, states = super().forward(lowered, state, start, total, keep)
        return BiasedBall(self.bias, *o.components), after, states


class BiasedCudaSystem(CudaFp64System):
    """The fp64 oracle on the card with functions that are off."""

    def __init__(self, bias: Bias) -> None:
        super().__init__()
        self.bias = bias

    def constant(self, values: Any) -> CudaBall:
        """Stored values, moved to the card."""
        return BiasedCudaBall(self.bias, *exact_cuda_ball(values).components)

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        """As of the oracle; what is read has the bias of functions too."""
        o, after, states = super().forward(lowered, state, start, total, keep)
        return BiasedCudaBall(self.bias, *o.components), after, states
