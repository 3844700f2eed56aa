"""Where kernels of flash-linear-attention have no gradients, as its sources say.

Read in 0.6.0. What the authors refuse is no fault of a kernel; what a kernel does not
compile for, and they nowhere say that it takes, neither.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from scancheck.adapters.fla_rows import CHUNK, Row
from scancheck.kernel import GradientSizes
from scancheck.kernels.cuda.toolkit import capabilities

# simple_gla/chunk.py, which these share, calls common/chunk_o.py: chunk_bwd_dv, which
# asserts it: Triton 3.7 read outside of shared memory there (pull request 1241).
EVEN = GradientSizes(
    names=("K", "V"),
    multiple=2,
    dtypes=("fp16", "bf16"),
    why="its chunk_bwd_dv refuses them",
)
DV_FAMILIES = ("linear_attn", "simple_gla", "retention", "lightning_attn")
# gla/chunk.py: chunk_gla_bwd_dA, which rwkv6 calls too, and
# generalized_delta_rule/dplr/chunk_o_bwd.py: chunk_dplr_bwd_dAu take blocks of the next
# power of two of V, without the floor of 16 that all others have, to tl.dot.
LEAST_WIDTH = 9
NARROW = {
    "gla": "chunk_gla_bwd_kernel_dA",
    "rwkv6": "chunk_gla_bwd_kernel_dA",
    "rwkv7": "chunk_dplr_bwd_kernel_dAu",
    "generalized_delta_rule": "chunk_dplr_bwd_kernel_dAu",
}
# common/chunk_o.py: chunk_bwd_dqkwg raises where there are gates of heads (issue 640).
GATED_FAMILIES = ("simple_gla", "gated_delta_rule", "gated_delta_product")
HOPPER = 9
WRONG_FROM, RIGHT_FROM = (3, 4, 0), (3, 7, 1)  # versions of Triton


def gradient_sizes(row: Row, *, interpreted: bool) -> GradientSizes | None:
    """What sizes the backward of a row's kernel takes; None: all.

    Interpreted, tl.dot takes blocks of any size.
    """
    if row.form != CHUNK:
        return None
    if row.family in DV_FAMILIES:
        return EVEN
    if row.family in NARROW and not interpreted:
        why = f"its {NARROW[row.family]} gives tl.dot less than the 16 that it takes"
        return GradientSizes(names=("V",), least=LEAST_WIDTH, why=why)
    return None


def no_gradients(row: Row, *, interpreted: bool) -> str | None:
    """Why a row's kernel has no gradients here, or None."""
    if not row.gradients:
        return "its authors have written no backward"
    if row.form != CHUNK or row.family not in GATED_FAMILIES or interpreted:
        return None
    hopper = any(major == HOPPER for major, _ in capabilities())
    # With TileLang installed its kernel is taken where it fits.
    if not hopper or find_spec("tilelang") is not None:
        return None
    triton = _triton()
    if triton is None or not WRONG_FROM <= triton < RIGHT_FROM:
        return None
    told = ".".join(map(str, triton))
    return (
        f"its chunk_bwd_dqkwg refuses Hopper GPUs with Triton {told}, which gets it "
        "wrong there; install Triton 3.7.1 or newer"
    )


def _triton() -> tuple[int, ...] | None:
    """Triton's version, or None."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version("triton"))
    except PackageNotFoundError:
        return None
    return tuple(map(int, numbers.groups())) if numbers else None
