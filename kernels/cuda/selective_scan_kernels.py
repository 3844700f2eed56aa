"""selective_scan's CUDA kernels by name, each with the contract of what it computes."""

from functools import partial
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.error_models import (
    FAST_DECAY,
    FAST_ERRORS,
    REPRODUCIBLE_DECAY,
    REPRODUCIBLE_ERRORS,
    TABULATED_DECAY,
    TABULATED_ERRORS,
)
from scancheck.kernels.cuda.selective_scan_instances import (
    ORDERS,
    STATE_STEPS,
    STATES,
    STORAGE,
    VARIANTS,
    check_options,
)
from scancheck.kernels.cuda.toolkit import unavailable

if TYPE_CHECKING:
    import torch

_LAYOUTS = ("keys=grouped", "keys=constant")
_MODELS = {
    "fast": (FAST_DECAY, FAST_ERRORS),
    "reproducible": (REPRODUCIBLE_DECAY, REPRODUCIBLE_ERRORS),
    "tabulated": (TABULATED_DECAY, TABULATED_ERRORS),
    "accurate": (REPRODUCIBLE_DECAY, REPRODUCIBLE_ERRORS),
}

TIME_TILE = 256
"""Steps of a tile of the order in time, or two in fp32."""

_TIME_CHUNK = 32
"""In the order of time a term goes through at most 26 additions in its own tile and
that of the output, and 4 for each tile of at least 128 steps in between: fewer than
through sequential chunks of 32 steps, 32 + T / 32."""

_SUMMED_STEPS = 5.0
"""Roundings on the way to a sum of d over four vectors of eight steps, added in pairs.
In the order of time the decay over such a stretch is one exponential of their sum,
whose relative error the exponential multiplies by |x|."""

ACCURATE_DECAY = ErrorModel(e0=0.0, e1=10.5)
"""Of the accurate recurrence, whose decay 1 + m or w has an error in proportion to |x|.

Where w lies in 2**(+-1/2), in u of |m| <= 1.2 |x| w: 1.22 of A log2(e) and 1 of the
product, times 1.2 in 2**f - 1; 1.3 of the polynomial; 1 of f p; 3 of the increment
m h + drive, its sum with the rest, and the rest where the increment is the larger.
Together 8 |m| <= 9.6 |x| w. Elsewhere, |x| >= 0.34: 1.32 of w and 2 of the sum are
at most 9.8 |x| w, and 1.23 |x| of the argument is beside the 0.18 counted above.
"""

_DRIVE_ROUNDINGS = 3.0
"""Of the accurate recurrence's drive, which no compensation sees."""


def kernels() -> tuple[Kernel, ...]:
    """The kernel that chooses the order by itself, of each variant, and each order.

    One variant also with states in other formats.
    """
    found = [selective_scan(variant) for variant in VARIANTS]
    for order in ORDERS:
        variants = [v for v in VARIANTS if order != "time" or v != "accurate"]
        found += [selective_scan(variant, order) for variant in variants]
    for state in STATES[1:]:
        found.append(selective_scan("reproducible", "sequential", state=state))
    return tuple(found)


def selective_scan(
    variant: str, order: str | None = None, *, state: str = "fp32"
) -> Kernel:
    """The kernel of one variant, in one order or, with None, the faster one's.

    `state` is the format that the sequential order rounds the state to every
    STATE_STEPS steps. Raises CaseInvalid for an option or a combination that does not
    exist.
    """
    check_options(variant, order, state)
    parts = ["cuda", "selective_scan", order or "auto", variant]
    if state != "fp32":
        parts += [f"state_{state}", f"every_{STATE_STEPS}"]
    only = "sequential" if variant == "accurate" else order
    return Kernel(
        name=".".join(parts),
        op="selective_scan",
        call=partial(_selective_scan, variant, order, state),
        contract=contract(variant, only, state),
        dtypes=tuple(STORAGE),
        chunk=None if only == "sequential" else TIME_TILE,
        gradients=True,
        layouts=("keys=grouped",) if order == "time" else _LAYOUTS,
        edge_sizes=True,
        devices=("cuda",),
        unavailable=unavailable(),
    )


def contract(variant: str, order: str | None, state: str = "fp32") -> Contract:
    """What a variant computes in that order; None: in either."""
    short = state != "fp32"
    decay, functions = _MODELS[variant]
    softplus = functions["softplus"]
    if variant == "accurate":
        decay = ACCURATE_DECAY
        softplus = ErrorModel(e0=softplus.e0 + _DRIVE_ROUNDINGS, e1=softplus.e1)
    elif order != "sequential":
        decay = ErrorModel(e0=decay.e0, e1=decay.e1 + _SUMMED_STEPS)
    structures = {
        "sequential": Structure(kind="sequential"),
        "time": Structure(kind="chunk", chunk=_TIME_CHUNK),
        None: Structure(kind="unknown"),
    }
    return Contract(
        state=state if short else "compute",
        state_every=STATE_STEPS if short else 1,
        structure=structures[order],
        fma="yes",
        comp="full" if variant == "accurate" else "none",
        exp=decay,
        softplus=softplus,
        silu=functions["silu"],
        ftz="yes",
        range="sequential" if order == "sequential" else "products",
    )


def _selective_scan(
    variant: str,
    order: str | None,
    state: str,
    *,
    u: "torch.Tensor",
    delta: "torch.Tensor",
    A: "torch.Tensor",
    B: "torch.Tensor",
    C: "torch.Tensor",
    D: "torch.Tensor | None" = None,
    z: "torch.Tensor | None" = None,
    delta_bias: "torch.Tensor | None" = None,
    initial_state: "torch.Tensor | None" = None,
    delta_softplus: bool = False,
) -> Any:
    from scancheck.kernels.cuda.selective_scan import selective_scan

    return selective_scan(
        variant,
        order,
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        delta_bias,
        initial_state,
        delta_softplus,
        state,
    )
