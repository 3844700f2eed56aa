"""A failing trial made small: fewer tokens, rows and channels, then plainer values.

Every step keeps the verdict and the cause. Tensors are cut, not drawn again: what is
left is part of what failed, and after its values change the case has no recipe.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import monotonic

import numpy as np

from scancheck.campaign.trial import Failure, Judged, Trial
from scancheck.formats import FloatArray, IntArray
from scancheck.ops.calling import SEQUENCES, calling_of, op_of, options_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.recipes.build import build
from scancheck.recipes.inputs import Inputs, axis_sizes, case_sizes, cotangents
from scancheck.recipes.op_rules import rules_of

NO_RECIPE = "shrunk"  # the recipe of a case whose values are no longer a recipe's
MOST_TRIALS = 400
MOST_SECONDS = 60.0
CHANCES = 10  # calls in which a failure that is not in all of them has to come back
BLOCKS = 8  # a tensor's values are made plain in blocks down to this part of it

JudgeTrial = Callable[[Trial], Judged]


def shrunk(judge: JudgeTrial, full: Judged, failure: Failure) -> Judged:
    """The smallest trial found that fails with the same verdict and cause.

    The trial itself where nothing smaller does. A kernel that hangs is not shrunk: each
    attempt would take as long as a hang is waited for.
    """
    if failure.ended == "hung":
        return full
    search = _Search(judge, full, failure)
    op = op_of(full.trial.case)
    while True:
        before = search.trials_that_failed
        for axis in _axes(op):
            if axis in dict(rules_of(op.name).divisors):
                search.keep_one_group(op)
            search.cut_axis(op, axis)
        search.plain_values()
        if search.spent or search.trials_that_failed == before:
            break
    return search.in_full() if search.trials_that_failed else full


class _Search:
    """The smallest failing trial so far, and how much was tried for it."""

    def __init__(self, judge: JudgeTrial, full: Judged, failure: Failure) -> None:
        self._judge, self._failure = judge, failure
        self._full = full
        self.current = _with_tensors(full)
        self.tried = 0
        self.trials_that_failed = 0
        self._deadline = monotonic() + MOST_SECONDS

    @property
    def spent(self) -> bool:
        """Whether enough was tried."""
        return self.tried >= MOST_TRIALS or monotonic() > self._deadline

    def keeps(self, trial: Trial) -> bool:
        """Whether the trial fails alike; it is then the smallest so far."""
        if self.spent:
            return False
        self.tried += 1
        if not self._alike(self._judge(trial)):
            return False
        self.current = trial
        self.trials_that_failed += 1
        return True

    def in_full(self) -> Judged:
        """The smallest failing trial with its finding, which takes far longer than the
        verdict does; the first one where a chance failure does not come back.
        """
        for _ in range(CHANCES):
            judged = self._judge(replace(self.current, in_full=True))
            if self._alike(judged):
                return judged
        return self._full

    def _alike(self, judged: Judged) -> bool:
        failure, wanted = judged.failure, self._failure
        return failure is not None and (failure.verdict, failure.key) == (
            wanted.verdict,
            wanted.key,
        )

    def cut_axis(self, op: Op, axis: str) -> None:
        """Removes parts of an axis: halves first, then ever smaller pieces."""
        size = axis_sizes(self.current.case)[axis]
        for whole, part in rules_of(op.name).divisors:
            if axis == whole and case_sizes(self.current.case)[part] > 1:
                return  # channels are spread over the groups by their number
        piece = size // 2
        while piece >= 1 and not self.spent:
            first = 0
            while first < axis_sizes(self.current.case)[axis] and not self.spent:
                size = axis_sizes(self.current.case)[axis]
                # From the end: what comes after a fault in time says nothing of it.
                last = size - first
                start = max(0, last - piece)
                if last - start >= size or not self.keeps(
                    _without(op, self.current, axis, start, last)
                ):
                    first += piece
            piece //= 2

    def keep_one_group(self, op: Op) -> None:
        """Keeps one group of what shares keys, channels or heads, where several do."""
        for whole, part in rules_of(op.name).divisors:
            sizes = case_sizes(self.current.case)
            groups = sizes[part]
            for group in range(groups if groups > 1 else 0):
                share = sizes[whole] // groups
                rest = _kept(op, self.current, part, np.arange(group, group + 1))
                own = np.arange(group * share, (group + 1) * share)
                if self.keeps(_kept(op, rest, whole, own)):
                    break

    def plain_values(self) -> None:
        """Makes values zeros, ones or powers of two, in whole tensors or blocks."""
        for name in _names(self.current):
            for plain in (_zeros, _ones, _powers_of_two):
                if self._made_plain(name, plain, slice(None)):
                    break
            else:
                self._blocks_made_plain(name)

    def _blocks_made_plain(self, name: str) -> None:
        size = _values(self.current, name).size
        block = size // 2
        while block >= max(1, size // BLOCKS) and not self.spent:
            for start in range(0, size, block):
                part = slice(start, start + block)
                for plain in (_zeros, _ones, _powers_of_two):
                    if self._made_plain(name, plain, part):
                        break
            block //= 2

    def _made_plain(
        self, name: str, plain: Callable[[FloatArray], FloatArray], part: slice
    ) -> bool:
        """Whether it fails alike with these values; True where they are so already."""
        old = _values(self.current, name)
        flat = old.reshape(-1).copy()
        flat[part] = plain(flat[part])
        new = flat.reshape(old.shape)
        if np.array_equal(new, old):
            return True
        return self.keeps(_replaced(self.current, name, new))


def _with_tensors(full: Judged) -> Trial:
    """The trial with its tensors beside the case, so that they can be cut."""
    trial, detail = full.trial, full.detail
    if detail is not None:
        inputs, bars = detail.inputs, detail.cotangents
    else:
        inputs, bars = build(trial.case), None
        if trial.cotangent_kind is not None:
            bars = cotangents(trial.case, trial.cotangent_kind, trial.case.seed)
    return replace(trial, inputs=inputs, cotangents=bars, in_full=False)


def _axes(op: Op) -> Iterator[str]:
    """Size names in the order in which they are cut: length, batch, channels, states.

    Packed sequences come before all. Groups are not cut but kept one by one.
    """
    if op.calling is not None and op.calling.cu_seqlens is not None:
        yield SEQUENCES
    yield op.time_axis
    yield op.size_names[0]
    parts = {part for _, part in rules_of(op.name).divisors}
    known = {op.time_axis, op.size_names[0], *parts}
    yield from (name for name in op.size_names if name not in known)


def _without(op: Op, trial: Trial, axis: str, start: int, stop: int) -> Trial:
    """The trial without start..stop of an axis, in all tensors that have it."""
    size = axis_sizes(trial.case)[axis]
    return _kept(op, trial, axis, np.r_[0:start, stop:size])


def _kept(op: Op, trial: Trial, axis: str, kept: IntArray) -> Trial:
    """The trial with these indices of an axis alone, in all tensors that have it."""
    assert trial.inputs is not None
    calling, sizes = calling_of(dict(trial.case.options)), dict(trial.case.sizes)
    taken = {axis: kept}
    if calling is not None:
        if axis == SEQUENCES:
            taken[op.time_axis] = calling.tokens_of(kept)
        calling = calling.kept(axis, op.time_axis, kept, sizes[op.time_axis])
    sizes |= {name: len(left) for name, left in taken.items() if name in sizes}
    options = dict(trial.case.options) | (
        {} if calling is None else options_of(calling)
    )
    case = replace(
        trial.case,
        sizes=tuple(sorted(sizes.items())),
        options=tuple(sorted(options.items())),
    )
    tensors, bars = trial.inputs.tensors, trial.cotangents
    for name, left in taken.items():
        tensors = _taken(op, tensors, name, left)
        bars = None if bars is None else _taken(op, bars, name, left)
    inputs = Inputs(tensors=tensors, switches=trial.inputs.switches)
    return replace(trial, case=case, inputs=inputs, cotangents=bars)


def _taken(
    op: Op, arrays: Mapping[str, FloatArray], axis: str, kept: IntArray
) -> dict[str, FloatArray]:
    found = {}
    for name, values in arrays.items():
        axes = spec_of(op, name, values.ndim).axes
        if axis in axes:
            values = np.take(values, kept, axis=axes.index(axis))
        found[name] = np.ascontiguousarray(values)
    return found


def _names(trial: Trial) -> list[str]:
    """Inputs, then cotangents, the latter under names of their own."""
    assert trial.inputs is not None
    return [*trial.inputs.tensors, *(f"cotangent {n}" for n in trial.cotangents or {})]


def _values(trial: Trial, name: str) -> FloatArray:
    assert trial.inputs is not None
    kind, _, output = name.partition(" ")
    if kind == "cotangent" and trial.cotangents is not None:
        return trial.cotangents[output]
    return trial.inputs.tensors[name]


def _replaced(trial: Trial, name: str, values: FloatArray) -> Trial:
    """The trial with other values of one tensor, and therefore without a recipe."""
    assert trial.inputs is not None
    case = replace(trial.case, recipe=NO_RECIPE)
    kind, _, output = name.partition(" ")
    if kind == "cotangent" and trial.cotangents is not None:
        return replace(trial, case=case, cotangents=trial.cotangents | {output: values})
    tensors = trial.inputs.tensors | {name: values}
    inputs = Inputs(tensors=tensors, switches=trial.inputs.switches)
    return replace(trial, case=case, inputs=inputs)


def _zeros(values: FloatArray) -> FloatArray:
    return np.zeros_like(values)


def _ones(values: FloatArray) -> FloatArray:
    return np.ones_like(values)


def _powers_of_two(values: FloatArray) -> FloatArray:
    """The nearest powers of two below in magnitude, signs kept; zeros stay."""
    _, exponents = np.frexp(values)
    powers = np.where(values == 0.0, 0.0, np.ldexp(1.0, exponents - 1))
    return np.copysign(powers, values)
