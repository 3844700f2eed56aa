"""How tensors are handed to functions of flash-linear-attention, and taken from them.

What all of them share: one state, K x V. Beyond that

- the normalised linear attention has a state of two halves, S and the running sum of
  keys z [N, 1, H, K]: it divides by K**-0.5 z . q + 1e-10, which is the op's. It holds
  z, the output before the division and the denominator in the dtype of the keys (of z,
  where a first one is given), and returns z in it;
- the gated delta product has the M steps of a token one after another, k, v and beta
  [B, T M, H, ...], and counts `cu_seqlens` in tokens, as the op does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from scancheck.adapters.fla_rows import AS_THEY_ARE, KEY_SUM, STEPS

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]
_OF_STEPS = ("k", "v", "beta")  # [B, T, M, ...] of the op


class Handing(NamedTuple):
    """The two conversions."""

    given: Callable[[Tensors], dict[str, Any]]  # the op's tensors -> arguments
    taken: Callable[..., "tuple[Tensor, ...]"]  # output, state, dtype -> the op's


def _as_it_is(tensors: Tensors) -> dict[str, Any]:
    return {**tensors}


def _one_state(output: "Tensor", state: "Tensor", dtype: Any) -> "tuple[Tensor, ...]":
    """A state in fp16 or bf16, which fused_recurrent_hgrn returns, goes on in fp32."""
    return output, state.float()


def _with_key_sum(tensors: Tensors) -> dict[str, Any]:
    """initial_key_sum [N, H, K] as the second half of the initial state."""
    arguments: dict[str, Any] = {**tensors}
    key_sum = arguments.pop("initial_key_sum", None)
    if key_sum is not None:
        state = arguments.get("initial_state")
        arguments["initial_state"] = (state, key_sum.unsqueeze(1))
    return arguments


def _two_states(output: "Tensor", state: Any, dtype: Any) -> "tuple[Tensor, ...]":
    """A first key sum, which is fp32, makes the output fp32, which the op's is not."""
    memory, key_sum = state
    return output.to(dtype), memory.float(), key_sum.squeeze(1).float()


def _in_steps(tensors: Tensors) -> dict[str, Any]:
    """M as num_householder, and the steps of all tokens in a row."""
    arguments: dict[str, Any] = {
        name: x.flatten(1, 2) if name in _OF_STEPS else x for name, x in tensors.items()
    }
    return arguments | {"num_householder": tensors["k"].shape[2]}


HANDINGS = {
    AS_THEY_ARE: Handing(_as_it_is, _one_state),
    KEY_SUM: Handing(_with_key_sum, _two_states),
    STEPS: Handing(_in_steps, _one_state),
}
