"""flash_scan: a tile-and-carry scan in Triton as linear_scan, compiled or interpreted.

No package has it: it stands for what people write in Triton today, and is judged as any
stranger's kernel is. `flash_scan_triton` has the source. Tiles are scanned in any
order, states go from tile to tile in fp32.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable

if TYPE_CHECKING:
    from torch import Tensor

TILE = 64  # tokens, as in flash_scan_triton, which cannot be imported without Triton
CONTRACT = Contract(structure=Structure(kind="chunk", chunk=TILE, inner="tree"))


def linear_scan(
    *, a: "Tensor", b: "Tensor", initial_state: "Tensor | None" = None
) -> "tuple[Tensor, Tensor]":
    """h [B, T, D] in the dtype of `b` and the final state [B, D] in fp32."""
    if b.device.type == "cpu":
        activate()
    from scancheck.adapters.flash_scan_triton import flash_scan

    return flash_scan(a, b, initial_state)


def unavailable() -> str | None:
    """Why it cannot run here, or None."""
    if find_spec("triton") is None:
        return "triton is not installed; pip install 'scancheck[fla]'"
    return None


def flash_scan() -> Kernel:
    """The kernel, on a CUDA device where there is one."""
    interpreted = device_unavailable() is not None
    return Kernel(
        name="flash_scan",
        op="linear_scan",
        call=linear_scan,
        contract=CONTRACT,
        dtypes=("fp32", "fp16") if interpreted else ("fp32", "fp16", "bf16"),
        chunk=TILE,
        gradients=True,
        edge_sizes=True,
        unavailable=unavailable(),
        packages=("triton",),
        note=BF16_IS_WRONG if interpreted else None,
        devices=("cpu",) if interpreted else ("cuda",),
    )
