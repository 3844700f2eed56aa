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
    CHUNKS,
    FORWARD,
    STATES,
    STORAGE,
    VARIANTS,
    WITH_OPTIONS,
    check_options,
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
        *(linear_scan(*WITH_OPTIONS, chunk=k) for k in CHUNKS if k != CHUNK),
        *(linear_scan(*WITH_OPTIONS, state=state) for state in STATES[1:]),
        *selective_scan_kernels.kernels(),
    )


def linear_scan(
    algorithm: str, variant: str, *, chunk: int = CHUNK, state: str = "fp32"
) -> Kernel:
    """The kernel of one algorithm and variant.

    `chunk` is its steps per chunk, `state` the format that the state is rounded to at
    chunk edges. Raises CaseInvalid for an option or a combination that does not exist.
    """
    check_options(algorithm, variant, chunk, state)
    given = VARIANTS[variant].of_decays is not None
    shape = algorithm if chunk == CHUNK else f"{algorithm}{chunk}"
    parts = ["cuda", "linear_scan", shape, variant]
    if state != "fp32":
        parts.append(f"state_{state}")
    return Kernel(
        name=".".join(parts),
        op="linear_scan",
        call=partial(
            _linear_scan if given else _linear_scan_of_logs,
            algorithm,
            variant,
            chunk,
            state,
        ),
        contract=linear_scan_contract(variant, chunk=chunk, state=state),
        dtypes=tuple(STORAGE),
        chunk=chunk,
        gradients=True,
        edge_sizes=True,
        devices=("cuda",),
        unavailable=unavailable(),
    )


def linear_scan_contract(
    variant: str, *, chunk: int = CHUNK, state: str = "fp32"
) -> Contract:
    """What a variant claims, by any algorithm: no carry has more additions on its way
    than one chunk after another, and gradients are computed in chunks by all.

    The exponentials alone flush subnormal results.
    """
    in_logs = variant.endswith("segsum")
    short = state != "fp32"
    return Contract(
        state=state if short else "compute",
        state_every=chunk if short else 1,
        structure=Structure(kind="chunk", chunk=chunk),
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
    chunk: int,
    state: str,
    *,
    a: "torch.Tensor | None" = None,
    g: "torch.Tensor | None" = None,
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(algorithm, variant, chunk, state, a, g, b, initial_state)


def _linear_scan_of_logs(
    algorithm: str,
    variant: str,
    chunk: int,
    state: str,
    *,
    g: "torch.Tensor",
    b: "torch.Tensor",
    initial_state: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    from scancheck.kernels.cuda.linear_scan import linear_scan

    return linear_scan(algorithm, variant, chunk, state, None, g, b, initial_state)
