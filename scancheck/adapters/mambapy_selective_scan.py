"""mambapy.selective_scan: both selective scans of mambapy's MambaBlock.

The methods take x, delta [B, L, D], A [D, N], B, C [B, L, N] and D [D], and compute
h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t from zero and y_t = C_t h_t + D x_t.
`selective_scan` scans by `mambapy.pscan`, whose backward is written by hand;
`selective_scan_seq` token by token. The block applies softplus, its bias and silu(z)
outside of them. Both want one dtype for all tensors: bf16 states meet fp32 decays in a
matrix product that torch refuses.
"""

from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING

from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel

if TYPE_CHECKING:
    from torch import Tensor

CONTRACTS = {
    "selective_scan": None,
    # Each step is one multiplication and one addition, from the first token on.
    "selective_scan_seq": Contract(
        structure=Structure(kind="sequential"), range="sequential"
    ),
}


def selective_scan(
    method: str,
    *,
    u: "Tensor",
    delta: "Tensor",
    A: "Tensor",
    B: "Tensor",
    C: "Tensor",
    D: "Tensor",
) -> "Tensor":
    """y [B, D, L] by the named method of MambaBlock."""
    from mambapy.mamba import MambaBlock

    # The methods read no weights, so that the block's sizes alone stand in for it.
    channels, states = A.shape
    block = SimpleNamespace(config=SimpleNamespace(d_inner=channels, d_state=states))
    tokens_first = (x.transpose(1, 2) for x in (u, delta, B, C))
    x, step, keys, queries = tokens_first
    y: Tensor = getattr(MambaBlock, method)(block, x, step, A, keys, queries, D)
    return y.transpose(1, 2)


def unavailable() -> str | None:
    """Why it cannot run here, or None."""
    if find_spec("mambapy") is None:
        return "mambapy is not installed; pip install 'scancheck[mambapy]'"
    return None


def mambapy_selective_scan(method: str) -> Kernel:
    """The kernel of one method: selective_scan or selective_scan_seq."""
    return Kernel(
        name=f"mambapy.{method}",
        op="selective_scan",
        call=partial(selective_scan, method),
        contract=CONTRACTS[method],
        dtypes=("fp32", "fp64"),
        gradients=True,
        unavailable=unavailable(),
        packages=("mambapy",),
    )
