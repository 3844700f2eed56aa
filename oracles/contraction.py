"""The cotangents of a tile from its states and theirs, in one pass over memory.

    w = G S_{t-1} entry by entry           v = G^T k      k = G v      r = S_t obar
    p = G (S_{t-1}^T q)                    q = S_{t-1} (G^T p)

Products of numbers and their sums over keys or lanes, as `scancheck.oracles.fp64` and
`rank_one` write them; formed one by one, each product passes through memory with all
its components. A number here is a value, a magnitude, an error and a peak: a product
has error m1 e2 + e1 (m2 + e2), rounded by u and eta, and `Rules` says what sums add.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles.contraction_loops import ROOM, SUMS, contract_tasks
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]
Operand = tuple[tuple[FloatArray, ...], NDArray[np.int64]]
Shape = tuple[int, int, int, int]

ITEM = 8  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How one kind of number rounds.

    `parts` gives four components, of which the magnitude may have signs; `grown` what
    a sum of n terms adds to its error: a share of magnitude and error, and a constant;
    `made` a number from the components of such a sum.
    """

    u: float
    eta: float
    signed: bool  # whether magnitudes are those of values, in sums too
    parts: Callable[[Any], tuple[FloatArray, ...]]
    grown: Callable[[int], tuple[float, float]]
    product: Callable[[FloatArray], Any]  # four components -> a number
    made: Callable[[FloatArray, int], Any]  # those of a sum of so many terms


def contracts(lowered: Lowered) -> bool:
    """Whether there is one key and one readout for all lanes."""
    return (
        lowered.k is not None
        and lowered.r is not None
        and lowered.k.shape[3] == lowered.r.shape[3] == 1
    )


def contracted(
    rules: Rules, lowered: Lowered, states: Any, obar: Any, g: Any
) -> Cotangents:
    """All cotangents from S_0 .. S_T [G, T + 1, K, L] and G_1 .. G_T [G, T, K, L]."""
    shape: Shape = g.shape
    groups, steps, keys, lanes = shape
    erases = lowered.p is not None
    nothing = lowered.k
    operands = [
        _operand(rules, x, shape)
        for x in (
            states[:, :-1],
            states[:, 1:],
            g,
            lowered.k,
            lowered.v[:, :, None, :],
            obar[:, :, None, :],
            lowered.p if erases else nothing,
            lowered.q if erases else nothing,
        )
    ]
    parts = tuple(operand[0] for operand in operands)
    strides = np.array([operand[1] for operand in operands])
    w = np.empty((4, *shape))
    over_keys = np.empty((4, groups, steps, lanes))
    over_lanes = np.empty((SUMS, 4, groups, steps, keys))
    growth = rules.u, rules.eta, *rules.grown(keys), rules.signed

    def run(begin: int, stop: int) -> None:
        contract_tasks(
            begin, stop, parts, strides, erases, growth, w, over_keys, over_lanes,
            np.zeros(ROOM), np.zeros((keys, SUMS, 4)),
        )  # fmt: skip

    share(groups * steps, w[0].size, run)
    k, r, p, q = (rules.made(x, lanes)[:, :, :, None] for x in over_lanes)
    return Cotangents(
        w=rules.product(w),
        v=rules.made(over_keys, keys),
        k=k,
        r=r,
        p=p if erases else None,
        q=q if erases else None,
    )


def _operand(rules: Rules, x: Any, shape: Shape) -> Operand:
    """Components as rows of memory; the strides of their axes, and the first, [4, 5].

    The stride of lanes is 1, or 0 where all of them are alike.
    """
    found, strides = [], np.zeros((4, 5), dtype=np.int64)
    for index, part in enumerate(rules.parts(x)):
        part = np.broadcast_to(part, shape)
        if part.strides[3] not in (0, ITEM) or any(s % ITEM for s in part.strides):
            part = np.ascontiguousarray(part)
        strides[index, :4] = [stride // ITEM for stride in part.strides]
        back = tuple(slice(None, None, -1 if s < 0 else 1) for s in part.strides)
        row = _row(part[back])
        strides[index, 4] = sum(
            -stride * (size - 1)
            for stride, size in zip(strides[index, :4], shape, strict=True)
            if stride < 0
        )
        found.append(row)
    return tuple(found), strides


def _row(part: FloatArray) -> FloatArray:
    """The memory from the first entry to the last, not to be written to."""
    if part.size == 0:
        row = np.zeros(1)
    else:
        pairs = zip(part.strides, part.shape, strict=True)
        reach = sum(stride * (size - 1) for stride, size in pairs)
        row = as_strided(part, (reach // ITEM + 1,), (ITEM,))
    row.flags.writeable = False
    return row
