"""torch.associative_scan: torch's scan over pairs (a, b) as linear_scan.

The combine of two neighbouring stretches is (a, b) then (a', b') = (a a', a' b + b').
The function is a prototype in a private module. Mode "generic" calls the combine on
many tokens at once through vmap, and autograd goes through what it did; "pointwise" has
a backward of its own.
"""

import re
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable

if TYPE_CHECKING:
    from torch import Tensor

# The first torch whose associative_scan takes tensors there in each mode: read in
# torch/_higher_order_ops/associative_scan.py of 2.4.1, 2.5.1, 2.13.0 and 2.14.0.
FIRST = {
    "generic": {"cpu": (2, 5), "cuda": (2, 5)},
    "pointwise": {"cpu": (2, 14), "cuda": (2, 5)},
}
REFUSAL = {
    "generic": "its associative_scan has no combine_mode",
    "pointwise": "its associative_scan takes CUDA or XPU tensors alone in this mode",
}


def linear_scan(mode: str, *, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D], scanned in combine mode `mode` from a zero state.

    Raises ValueError for an empty batch or no channels: torch 2.13 and 2.14 return
    fewer tokens than they were given there, because the recursion takes a part without
    elements for one without tokens.
    """
    from torch._higher_order_ops.associative_scan import associative_scan

    if 0 in (b.shape[0], b.shape[2]):
        raise ValueError("associative_scan loses tokens of tensors without elements")
    h: Tensor
    with _static_shapes():
        _, h = associative_scan(combine, (a, b), dim=1, combine_mode=mode)
    # A single token comes back as the very input; an output has memory of its own.
    return h.clone() if b.shape[1] <= 1 else h


def _static_shapes() -> "AbstractContextManager[Any]":
    """A context in which torch compiles the scan anew for every shape.

    Mode "pointwise" goes through Dynamo, which takes sizes as symbols from the second
    shape on and then fails on requires_grad inputs (torch 2.14.1); that failure would
    hide the numbers.
    """
    import torch._dynamo.config as config

    return config.patch(  # type: ignore[no-any-return]
        automatic_dynamic_shapes=False, recompile_limit=1_000_000
    )


def combine(
    left: "tuple[Tensor, Tensor]", right: "tuple[Tensor, Tensor]"
) -> "tuple[Tensor, Tensor]":
    """The affine map of two stretches of tokens, `left` the earlier one."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def unavailable(mode: str, device: str = "cpu") -> str | None:
    """Why the mode cannot run there with the installed torch, or None."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return "torch is not installed"
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers and tuple(map(int, numbers.groups())) >= FIRST[mode][device]:
        return None
    first = ".".join(map(str, FIRST[mode][device]))
    where = {"cpu": "the CPU", "cuda": "a CUDA device"}[device]
    return f"torch {installed}: {REFUSAL[mode]}; {where} needs torch {first} or newer"


def torch_associative_scan(mode: str) -> Kernel:
    """The kernel of one combine mode, judged under the default contract."""
    devices = tuple(d for d in FIRST[mode] if unavailable(mode, d) is None)
    absent = device_unavailable() is not None
    reason = unavailable(mode) if absent or not devices else None
    return Kernel(
        name=f"torch.associative_scan.{mode}",
        op="linear_scan",
        call=partial(linear_scan, mode),
        dtypes=("fp32", "fp64"),
        gradients=True,
        unavailable=reason,
        packages=("torch",),
        devices=devices or ("cpu",),
    )
