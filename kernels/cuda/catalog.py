"""The CUDA kernels by name, each with the contract of what it computes."""

from functools import partial
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import linear_scan_instances
from scancheck.kernels.cuda.toolkit import unavailable

if TYPE_CHECKING:
    import torch

CHUNK = 256
"""Of linear_scan where the caller names none."""


def kernels() -> tuple[Kernel, ...]:
    """Every CUDA kernel; those that cannot run here say why."""
    return tuple(linear_scan(variant) for variant in linear_scan_instances.VARIANTS)


def linear_scan(variant: str, chunk: int = CHUNK) -> Kernel:
    """The single-pass linear_scan in chunks of that many steps."""
    shape = "single_pass" if chunk == CHUNK else f"single_pass{chunk}"
    return Kernel(
        name=f"cuda.linear_scan.{shape}.{variant}",
        op="linear_scan",
        call=partial(_linear_scan, variant, chunk),
        contract=Contract(
            structure=Structure(kind="chunk", chunk=chunk),
            fma="yes",
            comp="none" if variant == "plain" else variant,
            ftz="no",
        ),
        dtypes=tuple(linear_scan_instances.STORAGE),
        chunk=chunk,
        gradients=False,
        edge_sizes=True,
        unavailable=unavailable(),
    )


def sources() -> dict[str, tuple[str, ...]]:
    """Every source file with the instances that calls can take."""
    return {
        linear_scan_instances.SOURCE: tuple(linear_scan_instances.instances()),
    }


def _linear_scan(
    variant: str,
    chunk: int,
    *,
    a: "torch.Tensor",
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> Any:
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(variant, chunk, a, b, initial_state)
