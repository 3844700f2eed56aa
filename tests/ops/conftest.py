"""Numbers that carry how large roundings of fp64 can get, for comparison with torch."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scancheck.ops.normal_form import Op

# The step formulas are a module beside these tests.
sys.path.insert(0, str(Path(__file__).parent))

FloatArray = NDArray[np.float64]

U = 2.0**-53


def solutions(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray],
    engines: tuple[str, ...],
) -> dict[str, Any]:
    """The op solved by the engines that are named, and with magnitudes."""
    from scancheck.oracles.ball import exact_ball
    from scancheck.oracles.engine import solve
    from scancheck.oracles.fp64 import Fp64System
    from scancheck.oracles.numbers import ArrayNumber
    from scancheck.oracles.systems import GenericSystem

    class Sized(ArrayNumber):
        """A value, and a magnitude that one rounding of each operation adds up to.

        To first order: a relative error u in every intermediate result moves a result
        by at most u times its magnitude, per operation on the longest path.
        """

        __slots__ = ()

        def __add__(self, other: Self) -> Self:
            (v, m), (w, n) = self.components, other.components
            return self.like(v + w, m + n)

        def __mul__(self, other: Self) -> Self:
            (v, m), (w, n) = self.components, other.components
            return self.like(v * w, m * n)

        def __neg__(self) -> Self:
            v, m = self.components
            return self.like(-v, m)

        def one_minus(self) -> Self:
            v, m = self.components
            return self.like(1 - v, 1 + m)

        def exp(self) -> Self:
            v, m = self.components
            return self.like(np.exp(v), np.exp(v) * (1 + m))

        def softplus(self) -> Self:
            v, m = self.components
            value = np.logaddexp(v, 0.0)
            return self.like(value, value + m / (1 + np.exp(-v)))

        def sigmoid(self) -> Self:
            v, m = self.components
            value = 1 / (1 + np.exp(-v))
            return self.like(value, value * (1 + m))

        def silu(self) -> Self:
            return self * self.sigmoid()

        def silu_slope(self) -> Self:
            v, m = self.components
            s = 1 / (1 + np.exp(-v))
            return self.like(s * (1 + v * (1 - s)), s * (1 + m) * (1 + m))

        def reciprocal(self) -> Self:
            v, m = self.components
            return self.like(1 / v, m / v**2)

        def maximum(self, other: Self) -> Self:
            (v, m), (w, n) = self.components, other.components
            return self.like(np.maximum(v, w), np.where(v > w, m, n))

        def exceeds(self, other: Self) -> Self:
            more = (self.components[0] > other.components[0]).astype(float)
            return self.like(more, more)

        def held(self) -> Self:
            return self

        def sum(self, axis: Any) -> Self:
            return self.like(*(np.sum(part, axis) for part in self.components))

    class Balls(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return exact_ball(values)

    class Magnitudes(GenericSystem):
        def constant(self, values: FloatArray) -> Any:
            return Sized(values, np.abs(values))

    systems = {"generic": Balls(), "fp64": Fp64System(), "sized": Magnitudes()}
    return {
        name: solve(system, op, tensors, switches, cotangents)
        for name, system in systems.items()
        if name in (*engines, "sized")
    }


def differentiated(
    call: Callable[..., tuple[torch.Tensor, ...]],
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray],
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Outputs of `call` on fp64 tensors, and torch's gradients of its inputs."""
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in tensors.items()}
    returned = call(**leaves, **switches)
    found = dict(zip((spec.name for spec in op.outputs), returned, strict=True))
    total = sum(
        (found[name] * torch.tensor(bar)).sum() for name, bar in cotangents.items()
    )
    gradients: dict[str, FloatArray] = {n: np.zeros_like(v) for n, v in tensors.items()}
    if isinstance(total, torch.Tensor) and total.requires_grad:
        for leaf in leaves.values():
            leaf.grad = None
        total.backward()  # type: ignore[no-untyped-call]
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                gradients[name] = leaf.grad.numpy()
    return {n: v.detach().numpy() for n, v in found.items()}, gradients


def disagreements(
    solved: Mapping[str, Any],
    outputs: Mapping[str, FloatArray],
    gradients: Mapping[str, FloatArray],
    operations: int,
) -> list[str]:
    """Names of tensors that torch's roundings and the radii together do not explain."""
    from scancheck.oracles.ball import certified_radius

    wrong = []
    for engine in (name for name in solved if name != "sized"):
        for kind, want in (("outputs", outputs), ("gradients", gradients)):
            balls = getattr(solved[engine], kind)
            sizes = getattr(solved["sized"], kind)
            if set(balls) != set(want):
                wrong.append(f"{engine} {kind}: {sorted(balls)}, not {sorted(want)}")
                continue
            for name, ball in balls.items():
                magnitude = sizes[name].components[1]
                allowed = certified_radius(ball) + operations * U * magnitude
                if ball.shape != want[name].shape:
                    wrong.append(f"{engine} {name}: {ball.shape}")
                elif not (np.abs(ball.value - want[name]) <= allowed).all():
                    wrong.append(f"{engine} {name}")
    return wrong


@pytest.fixture(scope="session")
def against_torch() -> Callable[..., list[str]]:
    """Compares an op's engines with torch; gives the names that disagree."""

    def compare(
        op: Op,
        call: Callable[..., tuple[torch.Tensor, ...]],
        tensors: Mapping[str, FloatArray],
        switches: Mapping[str, bool],
        cotangents: Mapping[str, FloatArray],
        operations: int,
        engines: tuple[str, ...] = ("generic", "fp64"),
    ) -> list[str]:
        solved = solutions(op, tensors, switches, cotangents, engines)
        outputs, gradients = differentiated(call, op, tensors, switches, cotangents)
        return disagreements(solved, outputs, gradients, operations)

    return compare
