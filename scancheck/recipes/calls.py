"""The tensors of a call of several sequences, from those of as many batch rows.

Each sequence is drawn as a row, so that a recipe meets every one of them from its first
step on, chunk edges included; then they are packed, padded or turned around.
"""

from collections.abc import Mapping

import numpy as np

from scancheck.formats import FloatArray
from scancheck.ops.calling import Calling
from scancheck.ops.normal_form import Op, spec_of


def drawn_sizes(
    calling: Calling | None, op: Op, sizes: dict[str, int]
) -> dict[str, int]:
    """The rows and steps to draw for a call of these sizes."""
    if calling is None or calling.cu_seqlens is None:
        return sizes
    lengths = np.diff(np.array(calling.cu_seqlens, dtype=np.int64))
    longest = int(lengths.max(initial=0))
    return sizes | {"B": len(lengths), op.time_axis: longest}


def laid_out(
    calling: Calling | None, op: Op, drawn: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """The drawn rows as the call has them."""
    if calling is None:
        return dict(drawn)
    found = {}
    for name, values in drawn.items():
        axes = spec_of(op, name, values.ndim).axes
        if op.time_axis in axes and axes[0] == "B":
            values = _in_one_call(calling, values, axes.index(op.time_axis))
        elif op.time_axis in axes:
            raise AssertionError(f"{name}: expected a batch axis beside that of time")
        found[name] = values
    return found


def _in_one_call(calling: Calling, values: FloatArray, time: int) -> FloatArray:
    """Rows [B, ..., T, ...] packed, or each with its padding, in the order of time."""
    rows = np.moveaxis(values, time, 1)
    batch, steps = rows.shape[:2]
    lengths = [steps] * batch
    if calling.cu_seqlens is not None:
        lengths = [int(n) for n in np.diff(np.array(calling.cu_seqlens))]
    elif calling.lengths is not None:
        lengths = list(calling.lengths)
    made = []
    for row, length in zip(rows, lengths, strict=True):
        tokens, rest = row[:length], row[length:]
        if calling.reverse:
            tokens = tokens[::-1]
        if calling.cu_seqlens is not None:
            made.append(tokens)
        else:
            made.append(
                np.concatenate([rest, tokens] if calling.pad_left else [tokens, rest])
            )
    if calling.cu_seqlens is not None:
        whole = np.concatenate([rows[0, :0] if batch else _nothing(rows), *made])[None]
    else:
        whole = np.stack(made) if made else rows
    return np.ascontiguousarray(np.moveaxis(whole, 1, time))


def _nothing(rows: FloatArray) -> FloatArray:
    """No token of a call without sequences."""
    return np.zeros((0, *rows.shape[2:]))
