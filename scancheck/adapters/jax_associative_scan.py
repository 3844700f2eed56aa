"""jax.lax.associative_scan: jax's scan over pairs (a, b) as linear_scan.

The combine is that of `torch_associative_scan`. The scan is compiled by `jax.jit`, once
per shape, and its gradient is `jax.vjp` of it, which recomputes the forward. torch's
autograd meets it in a Function; values cross as numpy arrays, so that fp32 and fp64 are
what it takes.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scancheck.kernel import Kernel

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan(*, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D], scanned by jax on the CPU from a zero state."""
    h: Tensor = _function().apply(a, b)
    return h


@cache
def _function() -> Any:
    """The scan as a torch.autograd.Function; jax and torch are imported here."""
    import jax
    import numpy as np
    import torch

    def scan(a: Any, b: Any) -> Any:
        return jax.lax.associative_scan(_combine, (a, b), axis=1)[1]

    def pullback(a: Any, b: Any, h_bar: Any) -> Any:
        return jax.vjp(scan, a, b)[1](h_bar)

    def on_cpu(call: Callable[..., Any], *tensors: "Tensor") -> Any:
        """What `call` makes of the tensors, as numpy arrays in their dtype."""
        # Without x64 jax takes fp64 arrays for fp32; the setting is a context's.
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            found = call(*(x.detach().numpy() for x in tensors))
            return jax.tree.map(np.array, found)

    forward_compiled, pullback_compiled = jax.jit(scan), jax.jit(pullback)

    class AssociativeScan(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, a: "Tensor", b: "Tensor") -> "Tensor":
            context.save_for_backward(a, b)
            return torch.from_numpy(on_cpu(forward_compiled, a, b))

        @staticmethod
        def backward(context: Any, h_bar: "Tensor") -> Any:
            found = on_cpu(pullback_compiled, *context.saved_tensors, h_bar)
            return tuple(map(torch.from_numpy, found))

    return AssociativeScan


def _combine(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def unavailable() -> str | None:
    """Why it cannot run here, or None."""
    if find_spec("jax") is None:
        return "jax is not installed; pip install 'scancheck[jax]'"
    return None


def jax_associative_scan() -> Kernel:
    """The kernel, judged under the default contract."""
    return Kernel(
        name="jax.lax.associative_scan",
        op="linear_scan",
        call=linear_scan,
        dtypes=("fp32", "fp64"),
        gradients=True,
        unavailable=unavailable(),
        packages=("jax",),
        devices=("cpu",),
    )
