"""mambapy.pscan: mambapy's parallel scan (Blelloch) as linear_scan.

`mambapy.pscan.pscan` takes A and X [B, L, D, N] and computes H_t = A_t H_{t-1} + X_t
from zero, in the dtype of its inputs; other lengths are padded with zeros to the next
power of two. Its backward is written by hand.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from scancheck.kernel import Kernel

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan(*, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D], with a state of one element per channel (N = 1)."""
    from mambapy.pscan import pscan

    h: Tensor = pscan(a[..., None], b[..., None])
    return h[..., 0]


def unavailable() -> str | None:
    """Why it cannot run here, or None."""
    if find_spec("mambapy") is None:
        return "mambapy is not installed; pip install 'scancheck[mambapy]'"
    return None


def mambapy_pscan() -> Kernel:
    """The kernel, judged under the default contract."""
    return Kernel(
        name="mambapy.pscan",
        op="linear_scan",
        call=linear_scan,
        dtypes=("fp32", "fp64"),
        gradients=True,
        unavailable=unavailable(),
        packages=("mambapy",),
    )
