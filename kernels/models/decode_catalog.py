"""Models that take one token at a time, each the sequential model of its op."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.decode import STATE, over_sequence
from scancheck.ops import op_named
from scancheck.ops.calling import ARGUMENTS
from scancheck.ops.normal_form import Op, spec_of

DECODE_OPS = ("selective_scan", "ssd", "gated_delta_rule")
LONGEST = 300  # tokens: a call of the model each


def decode_models() -> tuple[Kernel, ...]:
    """model.gated_delta_rule.decode.plain and others."""
    return tuple(_model(op) for op in DECODE_OPS)


def _model(op: str) -> Kernel:
    sequential = model(op, "sequential", "plain")
    return replace(
        sequential,
        name=f"model.{op}.decode.plain",
        call=over_sequence(op_named(op), step_of(op_named(op), sequential.call)),
        layouts=(),  # B and C of a token and those of all times look alike
        longest=LONGEST,
    )


def step_of(op: Op, whole: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of sequences as a step: it is given one token at a time."""
    sequence = op.outputs[0].axes.index(op.time_axis)

    def step(state: Any, **token: Any) -> Any:
        given = {n: _as_sequence(op, n, x) for n, x in token.items()}
        output, after = whole(**given, **{op.state: state})
        return output.squeeze(sequence), after

    own = signature(whole)
    first, *others = own.parameters.values()
    names = {op.state, *ARGUMENTS}
    step.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[
            first.replace(name=STATE),
            *(p for p in (first, *others) if p.name not in names),
        ]
    )
    return step


def _as_sequence(op: Op, name: str, x: Any) -> Any:
    """A tensor of one token with an axis of time; others as they are."""
    axes = () if name in op.switches else spec_of(op, name).axes
    if op.time_axis not in axes or x is None:
        return x
    return x.unsqueeze(axes.index(op.time_axis))
