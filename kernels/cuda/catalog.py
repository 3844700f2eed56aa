"""The CUDA kernels by name, each with the contract of what it computes."""

from functools import partial
from typing import TYPE_CHECKING

from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import (
    linear_scan_instances,
    selective_scan_backward_instances,
    selective_scan_instances,
    selective_scan_kernels,
)
from scancheck.kernels.cuda.error_models import REPRODUCIBLE_ERRORS
from scancheck.kernels.cuda.toolkit import unavailable

if TYPE_CHECKING:
    import torch

_FAST_EXP = ErrorModel(e0=2.83, e1=1.22)
"""ex2.approx.ftz(x log2 e): 2**-22.5 (PTX ISA, ex2), and the rounded product."""

CHUNK = 256
"""Of linear_scan where the caller names none."""


def kernels() -> tuple[Kernel, ...]:
    """Every CUDA kernel; those that cannot run here say why."""
    return (
        *(linear_scan(variant) for variant in linear_scan_instances.VARIANTS),
        *selective_scan_kernels.kernels(),
    )


def linear_scan(variant: str, chunk: int = CHUNK) -> Kernel:
    """The single-pass linear_scan in chunks of that many steps."""
    shape = "single_pass" if chunk == CHUNK else f"single_pass{chunk}"
    given = linear_scan_instances.VARIANTS[variant].of_decays is not None
    return Kernel(
        name=f"cuda.linear_scan.{shape}.{variant}",
        op="linear_scan",
        call=partial(_linear_scan if given else _linear_scan_of_logs, variant, chunk),
        contract=linear_scan_contract(variant, chunk),
        dtypes=tuple(linear_scan_instances.STORAGE),
        chunk=chunk,
        gradients=True,
        edge_sizes=True,
        unavailable=unavailable(),
    )


def linear_scan_contract(variant: str, chunk: int) -> Contract:
    """What a variant claims: the exponentials alone flush subnormal results."""
    return Contract(
        structure=Structure(kind="chunk", chunk=chunk),
        fma="yes",
        log="segsum" if variant == "segsum" else "none",
        comp=variant if variant in ("kahan", "full") else "none",
        exp=_FAST_EXP if variant == "fast" else REPRODUCIBLE_ERRORS["exp"],
        ftz="yes",
        range="log" if variant == "segsum" else "products",
    )


def sources() -> dict[str, tuple[str, ...]]:
    """Every source file with the instances that calls can take."""
    return {
        source: tuple(linear_scan_instances.instances(source))
        for source in (linear_scan_instances.FORWARD, linear_scan_instances.BACKWARD)
    } | {
        module.SOURCE: tuple(module.instances())
        for module in (selective_scan_instances, selective_scan_backward_instances)
    }


def _linear_scan(
    variant: str,
    chunk: int,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(variant, chunk, a, g, b, initial_state)


def _linear_scan_of_logs(
    variant: str,
    chunk: int,
    *,
    g: "torch.Tensor",
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(variant, chunk, None, g, b, initial_state)
