"""Calls of several sequences for kernels that take one at a time.

`taking_sequences` gives a kernel cu_seqlens, reverse and attention_mask, as
scancheck.ops.calling means them: each sequence is a call of its own, and what comes
back is put together. States have one entry a sequence, or one a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scancheck.ops import op_named
from scancheck.ops.calling import ARGUMENTS
from scancheck.ops.normal_form import Op, spec_of, state_inputs

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
DEFAULTS = {"cu_seqlens": None, "reverse": False, "attention_mask": None}


@dataclass(frozen=True, slots=True)
class Span:
    """Where one sequence lies: in a row, from its first token up to `stop`."""

    row: int
    first: int
    stop: int
    state: int  # its entry of the initial and the final states


def taking_sequences(op: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with three more keyword arguments that say what its sequences are."""
    plain = signature(call)
    known = op_named(op)

    def called(**arguments: Any) -> Any:
        how = {name: arguments.pop(name, DEFAULTS[name]) for name in ARGUMENTS}
        bound = plain.bind(**arguments)
        if all(how[name] is DEFAULTS[name] for name in ARGUMENTS):
            return call(**bound.arguments)
        return by_sequence(known, call, bound.arguments, **how)

    called.__name__ = called.__qualname__ = op
    called.__signature__ = with_call_arguments(plain)  # type: ignore[attr-defined]
    return called


def with_call_arguments(plain: Signature) -> Signature:
    """A kernel's signature with what says how its sequences lie."""
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default)
        for name, default in DEFAULTS.items()
    ]
    return Signature([*plain.parameters.values(), *more])


def by_sequence(
    op: Op,
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    cu_seqlens: "Tensor | None" = None,
    reverse: bool = False,
    attention_mask: "Tensor | None" = None,
) -> "tuple[Tensor, ...]":
    """The sequence output, zero at padding, and the final states of all sequences."""
    import torch

    tensors = {n: x for n, x in arguments.items() if isinstance(x, torch.Tensor)}
    switches = {n: x for n, x in arguments.items() if isinstance(x, bool)}
    short = {
        n: x.dtype
        for n, x in tensors.items()
        if is_eight_bits(x) and time_axis(op, n, x) is not None
    }
    tensors = widened(op, tensors)
    first = next(iter(tensors))
    axis = time_axis(op, first, tensors[first])
    assert axis is not None
    batch, steps = tensors[first].shape[0], tensors[first].shape[axis]
    spans = spans_of(cu_seqlens, attention_mask, batch, steps)
    outputs: list[Tensor] = []
    states: list[tuple[Tensor, ...]] = []
    for span in spans or [Span(0, 0, 0, 0)]:
        part = {n: _cut(op, n, x, span, reverse) for n, x in tensors.items()}
        part |= {n: part[n].to(dtype) for n, dtype in short.items()}
        output, *state = call(**part, **switches)
        dtype = output.dtype
        output = output.float() if is_eight_bits(output) else output
        outputs.append(output.flip(axis) if reverse else output)
        states.append(tuple(state))
    if not spans:  # no sequence, or no row: shapes are all that is left
        none = outputs[0]
        if cu_seqlens is None:
            none = _padded(none[:0], axis, 0, steps)
        return none.to(dtype), *(state[:0] for state in states[0])
    finals = [torch.cat(parts) for parts in zip(*states, strict=True)]
    if cu_seqlens is not None:
        return torch.cat(outputs, axis).to(dtype), *finals
    rows = [
        _padded(output, axis, span.first, steps - span.stop)
        for output, span in zip(outputs, spans, strict=True)
    ]
    return torch.cat(rows).to(dtype), *finals


def is_eight_bits(tensor: "Tensor") -> bool:
    """Whether torch only stores the tensor's format: it can neither flip nor add it."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def spans_of(
    cu_seqlens: "Tensor | None",
    attention_mask: "Tensor | None",
    batch: int,
    steps: int,
) -> list[Span]:
    """The sequences of a call; padding is on one side of a row."""
    if cu_seqlens is not None:
        offsets: Sequence[int] = cu_seqlens.tolist()
        return [Span(0, *ends, i) for i, ends in enumerate(pairwise(offsets))]
    if attention_mask is None:
        return [Span(row, 0, steps, row) for row in range(batch)]
    spans = []
    for row, tokens in enumerate(attention_mask.bool()):
        places = tokens.nonzero().flatten().tolist()
        first, stop = (places[0], places[-1] + 1) if places else (0, 0)
        spans.append(Span(row, first, stop, row))
    return spans


def widened(op: Op, tensors: Tensors) -> "dict[str, Tensor]":
    """What all sequences share in fp32 at least: autograd adds its gradients up.

    So it does those of parts of a tensor, which are cut from eight bits in fp32 too.
    """
    import torch

    return {
        name: x.float()
        if is_eight_bits(x)
        or (time_axis(op, name, x) is None and x.dtype != torch.float64)
        else x
        for name, x in tensors.items()
    }


def time_axis(op: Op, name: str, tensor: "Tensor") -> int | None:
    """The axis of time, where a tensor has one."""
    axes = spec_of(op, name, tensor.ndim).axes
    return axes.index(op.time_axis) if op.time_axis in axes else None


def _cut(op: Op, name: str, tensor: "Tensor", span: Span, reverse: bool) -> "Tensor":
    """What a tensor holds of one sequence, the first token first."""
    axis = time_axis(op, name, tensor)
    if name in state_inputs(op):
        return tensor[span.state : span.state + 1]
    if axis is None:
        return tensor
    part = tensor[span.row : span.row + 1].narrow(
        axis, span.first, span.stop - span.first
    )
    return part.flip(axis) if reverse else part


def _padded(output: "Tensor", axis: int, before: int, behind: int) -> "Tensor":
    """The output with zeros at the places of padding."""
    import torch

    def zeros(count: int) -> "Tensor":
        shape = list(output.shape)
        shape[axis] = count
        return output.new_zeros(shape)

    return torch.cat([zeros(before), output, zeros(behind)], axis)
