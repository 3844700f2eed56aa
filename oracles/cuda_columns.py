"""Rank-one transitions on the card: the scan of columns and the norms of transitions.

All else of columns.py and rank_one.py is arithmetic on arrays, which works on those of
the card as on NumPy's.
"""

from functools import partial
from typing import Any

from scancheck.errors import KernelUnavailable
from scancheck.oracles import cuda_card
from scancheck.oracles.columns import Machine
from scancheck.oracles.transition_norm import (
    HALVINGS,
    LEAST_ABOVE,
    SMALLEST,
    transition_norm,
)

SOURCE = "column_scan.cu"
KEY_AXES, LANE_AXES, STEP_AXES = (0, 1, 2), (0, 1, 3), (0, 1)  # of G, T, K, L


def scan_on_card(
    operands: tuple[Any, ...],
    coefficients: tuple[Any, Any, Any, float],
    reading: tuple[Any, Any],
    state: Any,
    error: Any,
    *,
    keep: bool,
) -> tuple[Any, Any, Any]:
    """As `columns.scan_here`, on arrays of the card.

    Raises KernelUnavailable for more keys than kernels take.
    """
    xp = cuda_card.arrays()
    w, p, q, k, v, r = operands
    grow, loss, own, last = coefficients
    groups, steps, keys = k.shape
    lanes = v.shape[2]
    most, some, shares = _split(keys)
    warps = -(-groups * lanes * shares // cuda_card.WARP)
    o = xp.empty((3, groups, steps, lanes))
    kept = steps + 1 if keep else 0
    states = xp.empty((groups, kept, keys, lanes))
    errors = xp.empty((groups, kept, lanes))
    if keep:
        states[:, 0], errors[:, 0] = state, error
    # Held until the launch: an address alone keeps no array.
    rows = [_padded(x, keys, most) for x in (w, p, q, k, r)]
    by_key = (cuda_card.operand((x,), KEY_AXES) for x in rows)
    by_step = (cuda_card.operand((x,), STEP_AXES) for x in reading)
    cuda_card.launch(
        SOURCE,
        f"column_scan<{some}, {shares}>",
        warps * cuda_card.WARP,
        [
            *by_key,
            cuda_card.operand((v,), LANE_AXES),
            *(cuda_card.operand((x,), STEP_AXES) for x in (grow, loss)),
            cuda_card.operand((own,), LANE_AXES),
            *by_step,
            cuda_card.numbers(last),
            *map(cuda_card.pointer, (state, error, o, states, errors)),
            cuda_card.count(groups, steps, keys, lanes),
        ],
    )
    return o, states, errors


def _split(keys: int) -> tuple[int, int, int]:
    """So many keys a kernel takes, those of a thread, and threads for a column.

    Raises KernelUnavailable for more keys than kernels take.
    """
    for some, shares in cuda_card.COLUMN_SHARES:
        if some * shares >= keys:
            return some * shares, some, shares
    raise KernelUnavailable(
        f"size K: expected at most {some * shares} keys of a rank-one transition on a "
        f"device; got {keys}"
    )


def _padded(x: Any, keys: int, most: int) -> Any:
    """[G, T, K or 1] with `most` keys side by side in memory, zero beyond the last."""
    xp = cuda_card.arrays()
    if x.shape[2] == most and x.strides[2] == x.itemsize:
        return x
    room = xp.zeros((*x.shape[:2], most))
    room[:, :, :keys] = x
    return room


def square_on_card(w: Any, p: Any, q: Any) -> Any:
    """||diag(w) + p q^T||_2 squared from above, [G, T] from [G, T, K]."""
    groups, steps, keys = p.shape
    found = cuda_card.arrays().empty((groups, steps))
    cuda_card.launch(
        SOURCE,
        "transition_norms",
        groups * steps,
        [
            *(cuda_card.operand((x,), KEY_AXES) for x in (w, p, q)),
            cuda_card.numbers(LEAST_ABOVE),
            cuda_card.count(HALVINGS),
            cuda_card.numbers(SMALLEST),
            cuda_card.pointer(found),
            cuda_card.count(groups, steps, keys, 1),
        ],
    )
    return found


CARD = Machine(scan_on_card, partial(transition_norm, of_decays=square_on_card))

__all__ = ["CARD"]
