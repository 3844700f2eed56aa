"""An op of a user's own: a lowering, and whose recipes draw its tensors.

Oracle, gradients, budgets, relations and BLIND follow from the lowering alone, as they
do for the ops here; the pullback that those write by hand comes from a trace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from scancheck.errors import CaseInvalid
from scancheck.ops.heads import op_with_heads, scale
from scancheck.ops.normal_form import Cotangents, Lowered, Op, Tensors, TensorSpec
from scancheck.ops.tracing import Traced, pull_back

Lowering = Callable[[Tensors, Any], tuple[Lowered, Any]]
Ranges = Mapping[str, tuple[float, float]]
LIKE = (
    "linear_attention",
    "simple_gla",
    "gla",
    "rwkv6",
    "delta_rule",
    "gated_delta_rule",
    "kda",
    "rwkv7",
)
VALUED = "V"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOp:
    """An op with the registered op whose recipes draw its tensors."""

    op: Op
    like: str
    ranges: Ranges  # of inputs that `like` does not have


def custom_op(
    name: str,
    lower: Lowering,
    *,
    inputs: Mapping[str, str],
    like: str,
    ranges: Ranges | None = None,
    rank_one: bool = False,
    reads_before: bool = False,
) -> CustomOp:
    """The op `name` with these inputs, axes as "B T HV V", and this lowering.

    `lower(tile, carry)` gives the normal form of numbers [B, T, heads, ...] by name,
    and of tile["scale"] = K**-0.5; the functions of scancheck.ops.heads bring them into
    its layout. `rank_one` says that it has p and q, `reads_before` that o_t reads
    S_{t-1}. Inputs that the op `like` has are drawn as its own; others uniformly within
    their range. All are in the case's format; the state is [B, HV or H, K, V], in fp32,
    and what is read is the output.

    Raises CaseInvalid for an unknown `like`, an axis that is not one of its own, or an
    input that it lacks and that has no range.
    """
    if like not in LIKE:
        raise CaseInvalid(f"like: expected one of {', '.join(LIKE)}; got {like!r}")
    ranges = dict(ranges or {})
    for one, (low, high) in ranges.items():
        if one not in inputs or not low < high:
            raise CaseInvalid(
                f"ranges: expected an input of {name} and (low, high) with low < high; "
                f"got {one!r}: ({low}, {high})"
            )
    specs = tuple(
        TensorSpec(name=one, axes=tuple(axes.split())) for one, axes in inputs.items()
    )
    if not any(spec.axes[-1:] == (VALUED,) for spec in specs) or "v" not in inputs:
        raise CaseInvalid(
            "inputs: expected values v [B, T, HV or H, V] among them; got "
            f"{dict(inputs)}"
        )

    def pullback(
        tile: Tensors, lowered: Lowered, cotangents: Cotangents
    ) -> dict[str, Any]:
        leaves = {n: Traced(tile[n]) for n in inputs if n in tile}
        constants = {n: Traced(x) for n, x in tile.items() if n not in leaves}
        traced, _ = lower({**constants, **leaves}, None)
        bars = pull_back(_seeds(traced, cotangents), list(leaves.values()))
        given = zip(leaves, bars, strict=True)
        return {n: bar for n, bar in given if bar is not None}

    op = op_with_heads(
        name,
        specs,
        lower=lower,
        lower_pullback=pullback,
        constants=scale,
        reads_before=reads_before,
        diagonal=not rank_one,
        factored=False,
    )
    for spec in specs:
        unknown = [axis for axis in spec.axes if axis not in op.size_names]
        if unknown or len(spec.axes) < 2:
            raise CaseInvalid(
                f"inputs: {spec.name}: expected axes of {' '.join(op.size_names)}; got "
                f"{' '.join(spec.axes)!r}"
            )
    return CustomOp(op=op, like=like, ranges=ranges)


def _seeds(traced: Lowered, cotangents: Cotangents) -> list[tuple[Traced, Any]]:
    """Fields of the traced tile with their cotangents.

    That of log w stands for that of w where it was formed in another way.
    """
    found = []
    for field in fields(Cotangents):
        bar, result = getattr(cotangents, field.name), getattr(traced, field.name)
        through_log = field.name == "w" and cotangents.log_w is not None
        if bar is not None and result is not None and not through_log:
            found.append((result, bar))
    return found
