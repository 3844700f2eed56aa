"""What a case becomes: the tensors of a call, and the cotangents of its outputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.formats import (
    FP32,
    FP64,
    FloatArray,
    Format,
    format_named,
    round_array,
)
from scancheck.ops import op_named
from scancheck.ops.calling import calling_of, op_of
from scancheck.ops.normal_form import Op, TensorSpec
from scancheck.recipes.streams import bell, integers, signed, stream

Array = NDArray[Any]
COTANGENT_KINDS = ("dense", "final_state", "one_token", "cancelling_pairs")
DEFAULT_CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The arguments of one call of an op."""

    tensors: dict[str, FloatArray]  # op input name -> values, in the op's layout
    switches: dict[str, bool]  # boolean keyword arguments of the op


def tensor_format(case: Case, spec: TensorSpec) -> Format:
    """The format of one of the op's tensors: the case's dtype, or the state's."""
    if spec.kind == "storage":
        return format_named(case.dtype)
    return FP64 if case.dtype == FP64.name else FP32


def representable(fmt: Format, values: FloatArray) -> FloatArray:
    """The values rounded once into a format.

    A format without infinity has its largest value instead of an infinity, as torch's
    cast gives it: a log gate of -infinity is then -448, whose exponential is 0 as well.
    """
    if not fmt.has_infinity:
        values = np.clip(values, -fmt.largest, fmt.largest)
    return round_array(fmt, values)


def case_sizes(case: Case) -> dict[str, int]:
    """The sizes by name, with the default of one B/C group filled in."""
    op = op_named(case.op)
    defaults = {"G": 1} if "G" in op.size_names else {}
    return defaults | dict(case.sizes)


def axis_sizes(case: Case) -> dict[str, int]:
    """The sizes by name, also those of axes that only this way of calling has."""
    calling = calling_of(dict(case.options))
    return case_sizes(case) | ({} if calling is None else calling.sizes)


def within_limits(inputs: Inputs, limits: tuple[tuple[str, float, float], ...]) -> bool:
    """Whether all values of the inputs lie within the limits."""
    for name, lowest, highest in limits:
        values = inputs.tensors.get(name)
        if values is None or not values.size:
            continue
        if not (lowest <= values.min() and values.max() <= highest):
            return False
    return True


def cotangents(case: Case, kind: str, seed: int) -> dict[str, FloatArray]:
    """Cotangents by output name, representable in each output's format.

    A missing output has a zero cotangent. `dense`: random values everywhere;
    `final_state`: the last state alone, all parts of it; `one_token`: the sequence
    output at one position alone; `cancelling_pairs`: large values of opposite sign on
    neighbouring tokens, on both sides of every chunk edge among others, over small
    ones. Those of padding are zero.
    Raises CaseInvalid for another kind.
    """
    op = op_of(case)
    if kind not in COTANGENT_KINDS:
        expected = ", ".join(COTANGENT_KINDS)
        raise CaseInvalid(f"cotangent kind: expected one of {expected}; got {kind!r}")
    sequence = op.outputs[0]
    drawn: dict[str, FloatArray] = {}
    for spec in op.outputs:
        shape = tuple(axis_sizes(case)[axis] for axis in spec.axes)
        source = stream("cotangent", case.op, kind, spec.name, seed)
        if kind == "dense" or (kind == "final_state" and spec is not sequence):
            drawn[spec.name] = bell(source, shape)
        elif kind == "one_token" and spec is sequence:
            drawn[spec.name] = _one_token(op, shape, bell(source, shape), seed)
        elif kind == "cancelling_pairs" and spec is sequence:
            chunk = dict(case.options).get("chunk", DEFAULT_CHUNK)
            time = spec.axes.index(op.time_axis)
            pairs = _cancelling_pairs(np.moveaxis(np.zeros(shape), time, 0), chunk)
            large = signed(source, 32.0, 64.0, (1, *pairs.shape[1:]))
            small = bell(source, pairs.shape)
            drawn[spec.name] = np.moveaxis(pairs * large + small * 2.0**-5, 0, time)
    return {
        spec.name: representable(
            tensor_format(case, spec), without_padding(op, spec, drawn[spec.name])
        )
        for spec in op.outputs
        if spec.name in drawn
    }


def without_padding(op: Op, spec: TensorSpec, values: Array) -> Array:
    """The values, zero where the call has padding instead of tokens."""
    if op.calling is None or op.calling.lengths is None:
        return values
    if op.time_axis not in spec.axes or spec.axes[0] != "B":
        return values
    time = spec.axes.index(op.time_axis)
    mask = op.calling.mask(values.shape[time])
    shape = [1] * values.ndim
    shape[0], shape[time] = mask.shape
    return np.where(mask.reshape(shape), values, np.zeros((), values.dtype))


def _one_token(
    op: Op, shape: tuple[int, ...], values: FloatArray, seed: int
) -> FloatArray:
    """The values at one position in time, zero elsewhere."""
    time = op.outputs[0].axes.index(op.time_axis)
    kept = np.zeros(shape)
    if shape[time]:
        token = integers(stream("token", op.name, seed), 0, shape[time] - 1, ())
        here = [slice(None)] * len(shape)
        here[time] = slice(int(token), int(token) + 1)
        kept[tuple(here)] = values[tuple(here)]
    return kept


def _cancelling_pairs(pattern: FloatArray, chunk: int) -> FloatArray:
    """1 and -1 on neighbouring tokens (axis 0): at each edge, and elsewhere."""
    steps = len(pattern)
    firsts = [edge - 1 for edge in range(chunk, steps, max(chunk, 2))]
    taken = {token for first in firsts for token in (first, first + 1)}
    for first in range(1, steps - 1, 6):
        if not taken & {first, first + 1}:
            firsts.append(first)
    for first in firsts:
        pattern[first], pattern[first + 1] = 1.0, -1.0
    return pattern
