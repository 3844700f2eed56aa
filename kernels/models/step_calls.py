"""The ops of steps by name, and each as a callable with the op's signature."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.chunk_frame import ChunkForm
from scancheck.kernels.models.delta_rule import DELTA_RULE, GATED_DELTA_RULE, KDA
from scancheck.kernels.models.gated_delta_product import GATED_DELTA_PRODUCT
from scancheck.kernels.models.gla import GLA
from scancheck.kernels.models.linear_attention import (
    LIGHTNING_ATTENTION,
    LINEAR_ATTENTION,
    RETENTION,
    SIMPLE_GLA,
)
from scancheck.kernels.models.mlstm import MLSTM
from scancheck.kernels.models.normalized_linear_attention import (
    NORMALIZED_LINEAR_ATTENTION,
)
from scancheck.kernels.models.rwkv6 import RWKV6
from scancheck.kernels.models.rwkv7 import RWKV7
from scancheck.kernels.models.ssd import SSD, SSD_OF_SOFTPLUS

FAMILIES = {
    "linear_attention": LINEAR_ATTENTION,
    "normalized_linear_attention": NORMALIZED_LINEAR_ATTENTION,
    "simple_gla": SIMPLE_GLA,
    "retention": RETENTION,
    "lightning_attention": LIGHTNING_ATTENTION,
    "gla": GLA,
    "rwkv6": RWKV6,
    "ssd": SSD,
    "delta_rule": DELTA_RULE,
    "gated_delta_rule": GATED_DELTA_RULE,
    "gated_delta_product": GATED_DELTA_PRODUCT,
    "kda": KDA,
    "rwkv7": RWKV7,
    "mlstm": MLSTM,
}
# Of an op with a switch: its name, and the family where it is on.
SWITCHED = {"ssd": ("dt_softplus", SSD_OF_SOFTPLUS)}


def step_call(
    op: str,
    resolved: Callable[[str], tuple[Arithmetic, Algorithm | ChunkForm]],
    without: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """The model of `op`, whose signature lists the op's tensors and switches.

    `resolved` gives the arithmetic and the algorithm for a storage format; optional
    inputs in `without` are not taken.
    """
    off, (switch, on) = FAMILIES[op], SWITCHED.get(op, (None, FAMILIES[op]))
    signature = signature_of(op, without)

    def call(**arguments: Any) -> Any:
        from scancheck.kernels.models.step_autograd import run_steps

        bound = signature.bind(**arguments)
        bound.apply_defaults()
        family = on if switch and bound.arguments.pop(switch) else off
        tensors = tuple(bound.arguments.get(name) for name in family.names)
        return run_steps(resolved, family, tensors)

    call.__name__ = call.__qualname__ = op
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def signature_of(op: str, without: tuple[str, ...] = ()) -> Signature:
    """Keyword-only: the tensors of `op` in its family's order, then its switch."""
    family = FAMILIES[op]
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None if name in family.optional else Parameter.empty,
        )
        for name in family.names
        if name not in without
    ]
    if op in SWITCHED:
        switch, _ = SWITCHED[op]
        parameters.append(Parameter(switch, Parameter.KEYWORD_ONLY, default=False))
    return Signature(parameters)
