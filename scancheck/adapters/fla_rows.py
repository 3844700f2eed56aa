"""The kernels of flash-linear-attention that are adapted, one row each.

A row says what a kernel of fla calls the op's tensors, and sets what its defaults leave
different from the op. Source: the signatures in fla/ops of flash-linear-attention 0.6.0
and of commit bc3b101d.

Left out are what no op has (iplr, comba, gsa, ttt and others), second forms of what is
here (parallel_*, fused_chunk_*), and fused_mul_recurrent_rwkv7: it takes kk and a with
b = -a kk, and a quotient of the op's two tensors would not be what was drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHUNK, RECURRENT = "chunk", "fused_recurrent"  # how names of functions begin
# How tensors are handed over (`fla_calls`): as they are; with the sum of keys as the
# state's second half; with the steps of a token one after another.
AS_THEY_ARE, KEY_SUM, STEPS = "as they are", "key sum", "steps"
_ALL = ("fp32", "fp16", "bf16")
PACKED = ("cu_seqlens",)
EITHER_WAY = (*PACKED, "reverse")
_QKV = ("q", "k", "v")
_RKVW = ("r", "w", "k", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel of fla, and how its conventions differ from the op's."""

    family: str  # its package in fla.ops
    function: str  # its name there
    op: str
    tensors: tuple[str, ...]  # the op's inputs that it takes
    names: Mapping[str, str] = field(default_factory=dict)  # op's name -> fla's
    fixed: Mapping[str, Any] = field(default_factory=dict)  # further arguments
    chunk: int | None = None  # tokens per chunk that it takes by itself
    gradients: bool = True
    dtypes: tuple[str, ...] = _ALL
    one_to_one: bool = False  # wants as many key heads as value heads
    calls: tuple[str, ...] = PACKED  # how it can be called beside a row each
    handed: str = AS_THEY_ARE  # or KEY_SUM, STEPS
    setting: str = ""  # behind its name: which of two adapters of one function
    needs: str | None = None  # a function of the family's utils that tells versions

    @property
    def name(self) -> str:
        """Its name as a kernel."""
        return f"fla.{self.function}" + (f".{self.setting}" if self.setting else "")

    @property
    def form(self) -> str:
        """CHUNK or RECURRENT."""
        return RECURRENT if self.function.startswith(RECURRENT) else CHUNK


def _chunk(
    family: str, op: str, *tensors: str, tokens: int = 64, **differing: Any
) -> Row:
    return Row(
        family=family,
        function=f"{CHUNK}_{family}",
        op=op,
        tensors=(*tensors, "initial_state"),
        chunk=tokens,
        **differing,
    )


def _recurrent(family: str, op: str, *tensors: str, **differing: Any) -> Row:
    return Row(
        family=family,
        function=f"{RECURRENT}_{family}",
        op=op,
        tensors=(*tensors, "initial_state"),
        **differing,
    )


# The chunk form divides by a normaliser unless told otherwise, the recurrent one not.
_LINEAR: dict[str, Any] = {"one_to_one": True, "fixed": {"normalize": False}}
# With it the state has a second half, the sum of keys, which older versions lack.
_NORMALIZED: dict[str, Any] = {
    "one_to_one": True,
    "fixed": {"normalize": True},
    "handed": KEY_SUM,
    "setting": "normalize",
    "needs": "normalize_with_z_state",
}
# Log decays -(8 / H) (1 - layer / layers) j: those of layer 0, whatever the layers.
_LIGHTNING: dict[str, Any] = {
    "one_to_one": True,
    "fixed": {"layer_idx": 0, "num_layers": 1},
}
# The chunk form has scale 1 by itself, the recurrent one K**-0.5.
_RWKV7: dict[str, Any] = {"fixed": {"scale": 1.0}}
# The engine of both, under its own name.
_DPLR: dict[str, Any] = {
    "family": "generalized_delta_rule",
    "op": "rwkv7",
    "tensors": (*_RKVW, "a", "b", "initial_state"),
    "names": {"r": "q", "w": "gk"},
    **_RWKV7,
}
# x is what is added, the input gate (1 - exp(g) in HGRN) already in it.
_HGRN: dict[str, Any] = {"names": {"b": "x"}}

ROWS = (
    _chunk("linear_attn", "linear_attention", *_QKV, **_LINEAR),
    _recurrent("linear_attn", "linear_attention", *_QKV, calls=EITHER_WAY, **_LINEAR),
    _chunk(
        "linear_attn",
        "normalized_linear_attention",
        *_QKV,
        "initial_key_sum",
        **_NORMALIZED,
    ),
    _recurrent(
        "linear_attn",
        "normalized_linear_attention",
        *_QKV,
        "initial_key_sum",
        calls=EITHER_WAY,
        **_NORMALIZED,
    ),
    _chunk("simple_gla", "simple_gla", *_QKV, "g", one_to_one=True),
    _recurrent(
        "simple_gla", "simple_gla", *_QKV, "g", one_to_one=True, calls=EITHER_WAY
    ),
    _chunk("retention", "retention", *_QKV, one_to_one=True),
    _recurrent("retention", "retention", *_QKV, one_to_one=True, calls=EITHER_WAY),
    _chunk("lightning_attn", "lightning_attention", *_QKV, **_LIGHTNING),
    _recurrent(
        "lightning_attn",
        "lightning_attention",
        *_QKV,
        calls=EITHER_WAY,
        **_LIGHTNING,
    ),
    # The chunk form calls the gate g and has none for values.
    _chunk("gla", "gla", *_QKV, "gk", names={"gk": "g"}),
    _recurrent("gla", "gla", *_QKV, "gk", "gv", calls=EITHER_WAY),
    _chunk("rwkv6", "rwkv6", *_RKVW, "u"),
    _recurrent("rwkv6", "rwkv6", *_RKVW, "u", calls=EITHER_WAY),
    # The chunk form refuses fp32 by an assertion.
    _chunk("delta_rule", "delta_rule", *_QKV, "beta", one_to_one=True, dtypes=_ALL[1:]),
    _recurrent("delta_rule", "delta_rule", *_QKV, "beta", one_to_one=True),
    _chunk("gated_delta_rule", "gated_delta_rule", *_QKV, "g", "beta"),
    _recurrent(
        "gated_delta_rule", "gated_delta_rule", *_QKV, "g", "beta", gradients=False
    ),
    # No recurrent form; the chunk form refuses fp32 by an assertion.
    _chunk(
        "gated_delta_product",
        "gated_delta_product",
        *_QKV,
        "g",
        "beta",
        dtypes=_ALL[1:],
        handed=STEPS,
    ),
    _chunk("kda", "kda", *_QKV, "g", "beta"),
    _recurrent("kda", "kda", *_QKV, "g", "beta", gradients=False),
    _chunk("rwkv7", "rwkv7", *_RKVW, "a", "b", tokens=16, **_RWKV7),
    _recurrent("rwkv7", "rwkv7", *_RKVW, "a", "b", gradients=False, **_RWKV7),
    Row(function="chunk_dplr_delta_rule", chunk=16, **_DPLR),
    Row(
        function="fused_recurrent_dplr_delta_rule",
        gradients=False,
        calls=EITHER_WAY,
        **_DPLR,
    ),
    _chunk("hgrn", "linear_scan", "g", "b", tokens=128, calls=(), **_HGRN),
    _recurrent("hgrn", "linear_scan", "g", "b", **_HGRN),
)
