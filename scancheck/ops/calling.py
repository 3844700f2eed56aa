"""How an op is called: sequences packed into one row, in reverse, or padded.

None of this changes a recurrence. A call is a set of sequences, each of which is what
the op defines for it alone: `segments` says where each lies in the tensors of the call,
and `called` gives the op with the axes that such a call has. Oracles and budgets solve
the segments one by one (scancheck.oracles.called).

    cu_seqlens   batch 1; sequence i is tokens cu_seqlens[i] up to cu_seqlens[i + 1],
                 and initial and final states have one entry for each, [NS, ...]
    reverse      the recurrence runs from the last token of each sequence to the first
    lengths      row i has so many tokens, the rest is padding behind them, or before
                 them with `pad_left`; what is put out at padding is not judged
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.ops.normal_form import Op, TensorSpec, spec_of, state_tensors

IntArray = NDArray[np.int64]

SEQUENCES = "NS"  # the size name of the axis of packed sequences
# Keyword arguments with which a kernel is called so, by what it has to take.
ARGUMENTS = ("cu_seqlens", "reverse", "attention_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sequence of a call, or rows of equal ones."""

    rows: slice  # of the batch
    first: int  # its tokens: first, up to stop
    stop: int
    states: slice  # of the states


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How a case's tensors are to be read; the options of the case by these names."""

    cu_seqlens: tuple[int, ...] | None = None
    reverse: bool = False
    lengths: tuple[int, ...] | None = None
    pad_left: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The keyword arguments that such a call passes."""
        given = (self.cu_seqlens is not None, self.reverse, self.lengths is not None)
        return tuple(n for n, on in zip(ARGUMENTS, given, strict=True) if on)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes beside those of the case."""
        if self.cu_seqlens is None:
            return {}
        return {SEQUENCES: len(self.cu_seqlens) - 1}

    def segments(self, batch: int, steps: int) -> list[Segment]:
        """The sequences of a call with so many rows and tokens."""
        if self.cu_seqlens is not None:
            return [
                Segment(
                    rows=slice(0, 1), first=first, stop=stop, states=slice(i, i + 1)
                )
                for i, (first, stop) in enumerate(pairwise(self.cu_seqlens))
            ]
        if self.lengths is None:
            every = slice(0, batch)
            return [Segment(rows=every, first=0, stop=steps, states=every)]
        found = []
        for row, length in enumerate(self.lengths):
            here = slice(row, row + 1)
            first = steps - length if self.pad_left else 0
            found.append(
                Segment(rows=here, first=first, stop=first + length, states=here)
            )
        return found

    def mask(self, steps: int) -> NDArray[np.bool_]:
        """[B, steps]: whether a place of a padded call is a token."""
        places, lengths = np.arange(steps), np.array(self.lengths or (), dtype=np.int64)
        if self.pad_left:
            return np.asarray(places >= steps - lengths[:, None])
        return np.asarray(places < lengths[:, None])

    def kept(self, axis: str, time_axis: str, left: IntArray, steps: int) -> "Calling":
        """The call of `steps` tokens with some indices of an axis alone.

        The axis is that of tokens, of batch rows or of packed sequences.
        """
        if axis == SEQUENCES and self.cu_seqlens is not None:
            lengths = np.diff(np.array(self.cu_seqlens, dtype=np.int64))[left]
            ends = (int(n) for n in np.cumsum(lengths))
            return replace(self, cu_seqlens=(0, *ends))
        if axis == time_axis and self.cu_seqlens is not None:
            places = (int((left < offset).sum()) for offset in self.cu_seqlens)
            return replace(self, cu_seqlens=tuple(places))
        if axis == "B" and self.lengths is not None:
            return replace(self, lengths=tuple(self.lengths[i] for i in left))
        if axis == time_axis and self.lengths is not None:
            tokens = self.mask(steps)[:, left].sum(axis=1)
            return replace(self, lengths=tuple(int(n) for n in tokens))
        return self

    def tokens_of(self, sequences: IntArray) -> IntArray:
        """The tokens of some packed sequences, in order."""
        offsets = self.cu_seqlens or (0,)
        spans = [np.arange(offsets[i], offsets[i + 1]) for i in sequences]
        return np.concatenate([np.zeros(0, dtype=np.int64), *spans])

    def check(self, batch: int, steps: int) -> None:
        """Raises CaseInvalid unless so many rows and tokens can be called like this."""
        if self.cu_seqlens is not None:
            check_offsets(self.cu_seqlens, batch, steps)
            if self.lengths is not None:
                raise CaseInvalid(
                    "lengths: expected none beside cu_seqlens, whose sequences have "
                    f"no padding; got {list(self.lengths)}"
                )
        if self.lengths is None:
            if self.pad_left:
                raise CaseInvalid("pad_left: expected false without lengths; got true")
            return
        if len(self.lengths) != batch:
            raise CaseInvalid(
                f"lengths: expected one for each of B = {batch} rows; got "
                f"{len(self.lengths)}"
            )
        for length in self.lengths:
            if not 0 <= length <= steps:
                raise CaseInvalid(
                    f"lengths: expected 0 up to {steps}, the tokens of a row; got "
                    f"{length}"
                )


def check_offsets(offsets: tuple[int, ...], batch: int, steps: int) -> None:
    """Raises CaseInvalid unless cu_seqlens cut the one row of a call into sequences.

    Equal neighbours are an empty sequence.
    """
    if batch != 1:
        raise CaseInvalid(
            f"cu_seqlens: expected B = 1, sequences packed into one row; got {batch}"
        )
    if not offsets or offsets[0] != 0:
        got = offsets[0] if offsets else "no offset"
        raise CaseInvalid(f"cu_seqlens: expected 0 as the first offset; got {got}")
    for i, (first, stop) in enumerate(pairwise(offsets)):
        if stop < first:
            raise CaseInvalid(
                "cu_seqlens: expected offsets that do not decrease; got "
                f"{first} and then {stop} at {i + 1}"
            )
    if offsets[-1] != steps:
        raise CaseInvalid(
            f"cu_seqlens: expected the last offset to be the number of tokens, {steps};"
            f" got {offsets[-1]}"
        )


OPTIONS = tuple(field.name for field in fields(Calling))


def calling_of(options: Mapping[str, Any]) -> Calling | None:
    """How a case with these options is called; None where that is plain.

    Raises CaseInvalid for a value that is none.
    """
    given = {name: options[name] for name in OPTIONS if name in options}
    for name, value in given.items():
        if name in ("cu_seqlens", "lengths"):
            several = isinstance(value, tuple | list)
            if not several or not all(type(n) is int for n in value):
                raise CaseInvalid(f"{name}: expected integers; got {value!r}")
            given[name] = tuple(value)
        elif not isinstance(value, bool):
            raise CaseInvalid(f"{name}: expected true or false; got {value!r}")
    calling = Calling(**given)
    return None if calling == Calling() else calling


def options_of(calling: Calling) -> dict[str, Any]:
    """The options of a case that is called so."""
    plain = Calling()
    every = {name: getattr(calling, name) for name in OPTIONS}
    return {name: x for name, x in every.items() if x != getattr(plain, name)}


def called(op: Op, calling: Calling | None) -> Op:
    """The op with the axes of such a call: packed states have one entry a sequence."""
    if calling is None:
        return op
    if calling.cu_seqlens is None:
        return replace(op, calling=calling)
    return replace(_of_states(op, "B", SEQUENCES), calling=calling)


def plain(op: Op) -> Op:
    """The op as it is for one sequence."""
    return replace(_of_states(op, SEQUENCES, "B"), calling=None)


def op_of(case: Case) -> Op:
    """The op of a case, called as the case says."""
    return called(op_named(case.op), calling_of(dict(case.options)))


def sizes_of(op: Op, tensors: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that the tensors of a call have, by name."""
    sizes = {} if op.calling is None else op.calling.sizes
    for name, values in tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        sizes.update(zip(axes, values.shape, strict=True))
    return sizes


def _of_states(op: Op, old: str, new: str) -> Op:
    """The op with another first axis of its states."""
    names = state_tensors(op)

    def renamed(spec: TensorSpec) -> TensorSpec:
        if spec.name not in names or spec.axes[0] != old:
            return spec
        return replace(spec, axes=(new, *spec.axes[1:]))

    return replace(
        op,
        inputs=tuple(renamed(spec) for spec in op.inputs),
        outputs=tuple(renamed(spec) for spec in op.outputs),
    )
