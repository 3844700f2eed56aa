"""accelerated_scan.*: accelerated-scan's torch reference and its Triton kernel.

Both are linear_scan: they take gates and tokens [B, C, T], contiguous, plain decays,
and compute x_t = gates_t x_{t-1} + tokens_t from zero. Source: accelerated-scan 0.3.1.

- `.ref`: Blelloch's tree in torch, in the dtype of its inputs; other lengths are padded
  with the identity (1, 0) to the next power of two. Gradients are autograd's.
- `.scalar`: Triton, a program for each channel, over blocks of 2048 tokens.
  tl.associative_scan combines in the dtype of the inputs, each product and sum rounded
  to it; the state between blocks is fp32. In fp64 it does not compile, since that state
  would change its type. Its backward is the same scan from the last token on, and the
  gradient of gates takes the states as they were returned, in the dtype of the inputs.

Left out is `.warp`, a compiled extension that wants a device and a power of two. Of the
package's modules importing .ref loads neither the others nor triton.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 2048  # tokens, whatever the length
_PACKAGE = "accelerated-scan"


def linear_scan(*, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D] in the dtype of `a` and `b`, by the reference."""
    from accelerated_scan.ref import scan

    gates, tokens = _channels_first(a, b)
    h: Tensor = scan(gates, tokens)
    return h.transpose(1, 2)


def scalar(*, a: "Tensor", b: "Tensor") -> "Tensor":
    """h [B, T, D] in the dtype of `a` and `b`, by the Triton kernel."""
    if b.device.type == "cpu":
        activate()
    from accelerated_scan.scalar import scan

    gates, tokens = _channels_first(a, b)
    h: Tensor = scan(gates, tokens)
    return h.transpose(1, 2)


def _channels_first(*tensors: "Tensor") -> "list[Tensor]":
    """[B, T, D] -> [B, D, T], contiguous."""
    return [x.transpose(1, 2).contiguous() for x in tensors]


def unavailable() -> str | None:
    """Why the reference cannot run here, or None."""
    if find_spec("accelerated_scan") is None:
        return f"{_PACKAGE} is not installed; pip install 'scancheck[{_PACKAGE}]'"
    return None


def scalar_unavailable() -> str | None:
    """Why the Triton kernel cannot run here, or None."""
    if find_spec("accelerated_scan") is not None and find_spec("triton") is None:
        return "triton is not installed; pip install triton"
    return unavailable()


def accelerated_scans() -> tuple[Kernel, Kernel]:
    """The reference under the default contract, and the Triton kernel under its own."""
    interpreted = device_unavailable() is not None
    return (
        Kernel(
            name="accelerated_scan.ref",
            op="linear_scan",
            call=linear_scan,
            dtypes=("fp32", "fp64"),
            gradients=True,
            unavailable=unavailable(),
            packages=(_PACKAGE,),
        ),
        Kernel(
            name="accelerated_scan.scalar",
            op="linear_scan",
            call=scalar,
            contract=Contract(
                compute="storage",
                structure=Structure(kind="chunk", chunk=BLOCK, inner="tree"),
            ),
            dtypes=("fp32", "fp16") if interpreted else ("fp32", "fp16", "bf16"),
            chunk=BLOCK,
            gradients=True,
            unavailable=scalar_unavailable(),
            packages=(_PACKAGE,),
            note=BF16_IS_WRONG if interpreted else None,
            devices=("cpu",) if interpreted else ("cuda",),
        ),
    )
