"""mamba_ssm.selective_state_update: a token at a time, as models generate.

One Triton kernel for both ops, read in mamba_ssm 2.3.2.post1. It writes the next state
over the one that it is given, in that one's format, here fp32, and reads the output
from the new one. `.selective_scan` is called as Mamba's model does: state [B, D, N], u
and dt [B, D], A [D, N], B and C [B, N]. `.ssd` as Mamba-2's: state [B, H, P, N], x
[B, H, P], B and C [B, G, N], and dt, A, D and dt_bias of a head repeated over P (and N)
without a copy, which the kernel knows by their strides and takes as one number.

The op's tensors of all tokens are given one after another (`scancheck.decode`), so that
the order is sequential, and there are no gradients. D and dt_bias are optional there
too, but where one is None the call raises (`*... if D is not None else 0`): zeros stand
in for them. Keys of several groups or constant ones are not given to `.selective_scan`.

Its softplus is log(exp(dt) + 1), without digits far below zero, as in the chunks.
Without a CUDA device it runs in Triton's interpreter.
"""

from typing import TYPE_CHECKING, Any

from scancheck.adapters.mamba_ssm import DTYPES, PACKAGES, triton_module, unavailable
from scancheck.adapters.triton_interpreter import BF16_IS_WRONG
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable
from scancheck.kernels.models.decode import over_sequence
from scancheck.ops import op_named

if TYPE_CHECKING:
    from torch import Tensor

FUNCTION = "selective_state_update"
_SOURCE = f"ops/triton/{FUNCTION}.py"
CONTRACT = Contract(structure=Structure(kind="sequential"))
LONGEST_INTERPRETED = (
    70  # tokens: a launch each, of which one takes a tenth of a second
)


def selective_scan_step(
    last_state: "Tensor",
    u: "Tensor",
    delta: "Tensor",
    A: "Tensor",
    B: "Tensor",
    C: "Tensor",
    D: "Tensor | None" = None,
    z: "Tensor | None" = None,
    delta_bias: "Tensor | None" = None,
    delta_softplus: bool = False,
) -> "Tensor":
    """y [B, D] of one token; last_state [B, D, N] becomes the next one."""
    nothing = A.new_zeros(A.shape[0])
    y: Tensor = _function(u.device.type == "cpu")(
        last_state,
        u,
        delta,
        A,
        B,
        C,
        D=nothing if D is None else D,
        z=z,
        dt_bias=nothing if delta_bias is None else delta_bias,
        dt_softplus=delta_softplus,
    )
    return y


def ssd_step(
    state: "Tensor",
    x: "Tensor",
    dt: "Tensor",
    A: "Tensor",
    B: "Tensor",
    C: "Tensor",
    D: "Tensor | None" = None,
    z: "Tensor | None" = None,
    dt_bias: "Tensor | None" = None,
    dt_softplus: bool = False,
) -> "Tensor":
    """y [B, H, P] of one token; state [B, H, P, N] becomes the next one."""
    width, states = state.shape[2:]
    nothing = A.new_zeros(A.shape[0])
    skip, bias = (nothing if x is None else x for x in (D, dt_bias))
    y: Tensor = _function(x.device.type == "cpu")(
        state,
        x,
        dt[..., None].expand(-1, -1, width),
        A[:, None, None].expand(-1, width, states),
        B,
        C,
        D=skip[:, None].expand(-1, width),
        z=z,
        dt_bias=bias[:, None].expand(-1, width),
        dt_softplus=dt_softplus,
    )
    return y


def _function(interpreted: bool) -> Any:
    return getattr(triton_module(f"ops.triton.{FUNCTION}", interpreted), FUNCTION)


STEPS = {"selective_scan": selective_scan_step, "ssd": ssd_step}


def mamba_ssm_steps() -> tuple[Kernel, ...]:
    """The step as a kernel of each of its two ops."""
    interpreted = device_unavailable() is not None
    dtypes = tuple(name for name in DTYPES if not (interpreted and name == "bf16"))
    return tuple(
        Kernel(
            name=f"mamba_ssm.{FUNCTION}.{op}",
            op=op,
            call=over_sequence(op_named(op), step),
            contract=CONTRACT,
            dtypes=dtypes,
            unavailable=unavailable(FUNCTION, _SOURCE, "triton", "einops"),
            packages=PACKAGES,
            longest=LONGEST_INTERPRETED if interpreted else None,
            note=BF16_IS_WRONG if interpreted else None,
            devices=("cpu",) if interpreted else ("cuda",),
        )
        for op, step in STEPS.items()
    )
