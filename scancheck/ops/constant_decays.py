"""Decays that are constants of an op: as they are, or as exponentials of their logs.

retention's decays 1 - 2^(-5-j) are held by every format with enough digits. A kernel
that takes log decays forms them as exp of a rounded log instead, off by a few ulps, and
by the same ones at every step: what is n steps old in S_t is off by n times that. The
decays of lightning_attention are exponentials by definition.
"""

from dataclasses import replace
from typing import Any

from scancheck.ops.normal_form import Lowered, Op, Tensors

BOTH = frozenset(("decay", "log_decay"))  # constants of such an op


def has_constant_decays(op: Op) -> bool:
    """Whether decays that are no exponentials follow from the sizes, and their logs."""
    return op.constants(dict.fromkeys(op.size_names, 1)).keys() >= BOTH


def by_exponentials(op: Op) -> Op:
    """The op, each constant decay as the exponential of its log; others as they are."""
    if not has_constant_decays(op):
        return op

    def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
        lowered, after = op.lower(tile, carry)
        return replace(lowered, w=lowered.log_w.exp()), after

    return replace(op, lower=lower)
