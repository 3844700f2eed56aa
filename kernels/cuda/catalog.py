"""The CUDA kernels by name, each with the contract of what it computes."""

from functools import partial
from typing import TYPE_CHECKING

from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import (
    selective_scan_backward_instances,
    selective_scan_instances,
    selective_scan_kernels,
)
from scancheck.kernels.cuda.error_models import REPRODUCIBLE_ERRORS
from scancheck.kernels.cuda.linear_scan_instances import (
    ALGORITHMS,
    BACKWARD,
    CHUNK,
    FORWARD,
    STORAGE,
    VARIANTS,
    instances,
)
from scancheck.kernels.cuda.toolkit import unavailable

if TYPE_CHECKING:
    import torch

_FAST_EXP = ErrorModel(e0=2.83, e1=1.22)
"""ex2.approx.ftz(x log2 e): 2**-22.5 (PTX ISA, ex2), and the rounded product."""


def kernels() -> tuple[Kernel, ...]:
    """Every CUDA kernel; those that cannot run here say why."""
    return (
        *(linear_scan("single_pass", variant) for variant in VARIANTS),
        *(linear_scan(algorithm, "plain") for algorithm in list(ALGORITHMS)[1:]),
        *selective_scan_kernels.kernels(),
    )


def linear_scan(algorithm: str, variant: str) -> Kernel:
    """The kernel of one algorithm and variant."""
    given = VARIANTS[variant].of_decays is not None
    return Kernel(
        name=f"cuda.linear_scan.{algorithm}.{variant}",
        op="linear_scan",
        call=partial(
            _linear_scan if given else _linear_scan_of_logs, algorithm, variant
        ),
        contract=linear_scan_contract(variant),
        dtypes=tuple(STORAGE),
        chunk=CHUNK,
        gradients=True,
        edge_sizes=True,
        devices=("cuda",),
        unavailable=unavailable(),
    )


def linear_scan_contract(variant: str) -> Contract:
    """What a variant claims, by any algorithm: no carry has more additions on its way
    than one chunk after another, and gradients are computed in chunks by all.

    The exponentials alone flush subnormal results.
    """
    in_logs = variant.endswith("segsum")
    return Contract(
        structure=Structure(kind="chunk", chunk=CHUNK),
        fma="yes",
        log="segsum" if in_logs else "none",
        comp=variant if variant in ("kahan", "full") else "none",
        exp=_FAST_EXP if variant.startswith("fast") else REPRODUCIBLE_ERRORS["exp"],
        ftz="yes",
        range="log" if in_logs else "products",
    )


def sources() -> dict[str, tuple[str, ...]]:
    """Every source file with the instances that calls can take."""
    return {source: instances(source) for source in (FORWARD, BACKWARD)} | {
        module.SOURCE: tuple(module.instances())
        for module in (selective_scan_instances, selective_scan_backward_instances)
    }


def _linear_scan(
    algorithm: str,
    variant: str,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(algorithm, variant, a, g, b, initial_state)


def _linear_scan_of_logs(
    algorithm: str,
    variant: str,
    *,
    g: "torch.Tensor",
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(algorithm, variant, None, g, b, initial_state)
