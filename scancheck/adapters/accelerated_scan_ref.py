"""accelerated_scan.ref: accelerated-scan's torch reference (Blelloch) as linear_scan.

`accelerated_scan.ref.scan` takes gates and tokens [B, C, T], contiguous, plain decays,
and computes x_t = gates_t x_{t-1} + tokens_t from zero, in the dtype of its inputs;
other lengths are padded with the identity (1, 0) to the next power of two. Gradients
are autograd's. The package's other scans (.scalar, .warp) are for GPUs; importing .ref
loads neither them nor triton.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from scancheck.kernel import Kernel

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan(*, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D] in the dtype of `a` and `b`."""
    from accelerated_scan.ref import scan

    gates, tokens = (x.transpose(1, 2).contiguous() for x in (a, b))
    h: Tensor = scan(gates, tokens)
    return h.transpose(1, 2)


def unavailable() -> str | None:
    """Why it cannot run here, or None."""
    if find_spec("accelerated_scan") is None:
        return (
            "accelerated-scan is not installed; "
            "pip install 'scancheck[accelerated-scan]'"
        )
    return None


def accelerated_scan_ref() -> Kernel:
    """The kernel, judged under the default contract."""
    return Kernel(
        name="accelerated_scan.ref",
        op="linear_scan",
        call=linear_scan,
        dtypes=("fp32", "fp64"),
        gradients=True,
        unavailable=unavailable(),
        packages=("accelerated-scan",),
    )
