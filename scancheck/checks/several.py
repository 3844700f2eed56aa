"""Relations of calls of several sequences: none of them may know of the others.

Numerics section 3, family 24: what is NaN in the tokens of other sequences, or at
padding, reaches no output of this one. Section 4: sequences called together are those
called one by one, to the bit for a declared sequential order.
"""

from dataclasses import replace

import numpy as np

from scancheck.checks.oracle import CaseReport
from scancheck.checks.related import (
    Subject,
    bitwise,
    call_failed,
    compared,
    judged,
    run_once,
    stored_truth,
)
from scancheck.formats import FloatArray
from scancheck.ops.calling import plain
from scancheck.ops.normal_form import spec_of, state_inputs, state_outputs
from scancheck.oracles.called import Call
from scancheck.recipes.inputs import without_padding
from scancheck.runner import execute


def neighbours(subject: Subject) -> CaseReport | None:
    """One packed sequence among others whose tokens and states are NaN."""
    calling = subject.op.calling
    if calling is None or calling.cu_seqlens is None:
        return None
    lengths = np.diff(np.array(calling.cu_seqlens))
    if np.count_nonzero(lengths) < 2:
        return None
    kept = int(lengths.argmax())
    first, stop = calling.cu_seqlens[kept : kept + 2]
    own = slice(kept, kept + 1)
    tensors = _poisoned(subject, slice(first, stop), own)
    found = run_once(subject, replace(subject.inputs, tensors=tensors))
    if found.problem is not None:
        return call_failed(subject, found, "relation:neighbours")
    sequence = subject.op.outputs[0]
    time = sequence.axes.index(subject.op.time_axis)
    got = {}
    states = [(spec, 0, own) for spec in state_outputs(subject.op)]
    for spec, axis, part in ((sequence, time, slice(first, stop)), *states):
        if spec.name in found.outputs:
            index = (slice(None),) * axis + (part,)
            mixed = stored_truth(subject, spec.name)
            mixed[index] = found.outputs[spec.name][index]
            got[spec.name] = mixed
    return judged(subject, got, "relation:neighbours")


def padding_poisoned(subject: Subject) -> CaseReport | None:
    """Rows whose padding is NaN: their outputs must be right all the same."""
    calling = subject.op.calling
    if calling is None or calling.lengths is None:
        return None
    tensors = {}
    for name, values in subject.inputs.tensors.items():
        spec = spec_of(subject.op, name, values.ndim)
        real = without_padding(subject.op, spec, np.ones_like(values))
        tensors[name] = np.where(real == 0.0, np.nan, values)
    found = run_once(subject, replace(subject.inputs, tensors=tensors))
    if found.problem is not None:
        return call_failed(subject, found, "relation:poisoned_padding")
    return judged(subject, found.outputs, "relation:poisoned_padding")


def one_by_one(subject: Subject) -> CaseReport | None:
    """Packed sequences against a call of each: the same bits in a sequential order."""
    calling, contract = subject.op.calling, subject.request.contract
    if calling is None or calling.cu_seqlens is None or calling.reverse:
        return None
    if contract.structure.kind != "sequential" or not bitwise(subject):
        return None
    inputs, op = subject.inputs, subject.op
    call = Call(op, inputs.tensors, np.asarray, lambda number, terms: number)
    pieces: list[dict[str, FloatArray]] = []
    for segment in call.segments:
        part = {n: call.cut(n, x, segment) for n, x in inputs.tensors.items()}
        alone = execute(
            subject.kernel,
            plain(op),
            replace(inputs, tensors=part),
            subject.case.dtype,
            runs=1,
        )
        if alone.problem is not None:
            # Where an empty sequence is no call of its own, there is none to compare.
            empty = segment.first == segment.stop
            return None if empty else call_failed(subject, alone, "relation:one_by_one")
        pieces.append(alone.outputs)
    sequence = op.outputs[0]
    wanted = {}
    for spec in op.outputs:
        if all(spec.name in piece for piece in pieces):
            axis = spec.axes.index(op.time_axis) if spec is sequence else 0
            wanted[spec.name] = np.concatenate([p[spec.name] for p in pieces], axis)
    got = {n: x for n, x in subject.whole.outcome.outputs.items() if n in wanted}
    slack = {name: np.zeros(values.shape) for name, values in wanted.items()}
    return compared(subject, got, wanted, slack, "relation:one_by_one")


def _poisoned(subject: Subject, tokens: slice, states: slice) -> dict[str, FloatArray]:
    """The tensors with NaN in all tokens and states but these."""
    tensors = {}
    for name, values in subject.inputs.tensors.items():
        axes = spec_of(subject.op, name, values.ndim).axes
        axis, part = None, tokens
        if name in state_inputs(subject.op):
            axis, part = 0, states
        elif subject.op.time_axis in axes:
            axis = axes.index(subject.op.time_axis)
        tensors[name] = values
        if axis is not None:
            index = (slice(None),) * axis + (part,)
            other = np.full(values.shape, np.nan)
            other[index] = values[index]
            tensors[name] = other
    return tensors
