"""Several sequences in one call, in parts that a planted bug may replace.

A kernel of one sequence (its tensors [B, T, ...], its state [B, ...]) is called for
each: for those that cu_seqlens cut from one row, each with its entry of the states; for
each row without its padding; or turned around. `called` of `SequenceForm()` is the
control, without a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from scancheck.kernels.faulty.calling_form import Given
from scancheck.kernels.models.by_sequence import by_sequence, time_axis
from scancheck.ops.normal_form import Op

Alone = Callable[..., tuple[Tensor, Tensor]]  # a kernel of one sequence


def as_given(offsets: list[int], chunk: int) -> list[int]:
    """The offsets of the sequences."""
    return offsets


def never(first: int, chunk: int) -> bool:
    """Whether the sequence that begins here goes on with the state before it."""
    return False


def own(sequence: int, tokens: int) -> int:
    """The entry of the states that a sequence reads and writes."""
    return sequence


def own_state(states: Tensor, entry: int) -> Tensor:
    """The initial state [1, ...] of a sequence with this entry."""
    return states[entry : entry + 1]


def afresh(state: Tensor | None, before: Tensor) -> Tensor | None:
    """The initial state of a sequence that follows another one's final state."""
    return state


def as_asked(reverse: bool) -> bool:
    """Whether the recurrence runs from the last token."""
    return reverse


def cut_away(
    op: Op, alone: Alone, given: Given, mask: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """A call of rows [B, T] with padding: each row's tokens by themselves."""
    return by_sequence(op, alone, given, reverse=reverse, attention_mask=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceForm:
    """The parts of a call; the defaults are right, a planted bug replaces one."""

    placed: Callable[[list[int], int], list[int]] = as_given
    runs_on: Callable[[int, int], bool] = never
    entry: Callable[[int, int], int] = own
    start: Callable[[Tensor, int], Tensor] = own_state
    backwards: Callable[[bool], bool] = as_asked
    follow: Callable[[Tensor | None, Tensor], Tensor | None] = afresh
    padded: Callable[..., tuple[Tensor, ...]] = cut_away


FORM = SequenceForm()


def called(
    form: SequenceForm,
    op: Op,
    alone: Alone,
    chunk: int,
    given: Given,
    cu_seqlens: Tensor | None,
    reverse: bool,
    attention_mask: Tensor | None,
) -> tuple[Tensor, ...]:
    """The sequence output and the final states of a call."""
    reverse = form.backwards(reverse)
    if cu_seqlens is not None:
        offsets = form.placed(cu_seqlens.tolist(), chunk)
        return _packed(form, op, alone, chunk, given, offsets, reverse)
    if attention_mask is not None:
        return form.padded(op, alone, given, attention_mask, reverse)
    return by_sequence(op, alone, given, reverse=reverse)


def _packed(
    form: SequenceForm,
    op: Op,
    alone: Alone,
    chunk: int,
    given: Given,
    offsets: list[int],
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """One sequence after the other."""
    initial = given.get(op.state)
    outputs: list[Tensor] = []
    final: Tensor | None = None
    finals: dict[int, Tensor] = {}
    for sequence, (first, stop) in enumerate(pairwise(offsets)):
        entry = form.entry(sequence, stop - first)
        part = {n: _tokens(op, n, x, first, stop, reverse) for n, x in given.items()}
        if initial is not None:
            part[op.state] = form.start(initial, entry)
        if final is not None:
            start = form.follow(part.get(op.state), final)
            if form.runs_on(first, chunk):
                start = final
            part = part if start is None else part | {op.state: start}
        output, final = alone(**part)
        outputs.append(output.flip(1) if reverse else output)
        finals[entry] = final
    if final is None:
        nothing, state = alone(**{n: x[:, :0] for n, x in given.items()})
        return nothing, state[:0]
    unwritten = torch.zeros_like(final)
    states = [finals.get(entry, unwritten) for entry in range(len(offsets) - 1)]
    return torch.cat(outputs, 1), torch.cat(states)


def _tokens(
    op: Op, name: str, tensor: Tensor, first: int, stop: int, reverse: bool
) -> Tensor:
    """The tokens of one sequence, the first to be computed in front."""
    axis = time_axis(op, name, tensor)
    if axis is None:
        return tensor
    part = tensor.narrow(axis, first, stop - first)
    return part.flip(axis) if reverse else part
