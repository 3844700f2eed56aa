"""The ladder of oracles: climbs only where a reference is not yet close enough.

An element is certified when the radius of its reference is at most 2**-10 of what the
kernel is allowed there (numerics 2.12). The certified fp64 scan comes first, always;
then double-double, the same with an exponent beside it for what lies near either end of
fp64, exact dyadic numbers where the op has no functions, and mpmath. What no rung
certifies stays uncertified: it counts as neither pass nor fail.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.calling import sizes_of
from scancheck.ops.normal_form import Op, is_algebraic, spec_of
from scancheck.oracles import ball, double_double
from scancheck.oracles.cuda_rungs import (
    solve_double_double_on_card,
    solve_fp64_on_card,
)
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve, stretch_of
from scancheck.oracles.exact import solve_exact
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.multiprecision import solve_multiprecision
from scancheck.oracles.wide_double import solve_wide

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Arrays = Mapping[str, FloatArray]
Taken = dict[str, NDArray[np.intp]]  # size name -> the entries that are computed
Index = tuple[NDArray[np.intp], ...]

CERTIFIED_SHARE = 2.0**-10  # of the allowance, numerics 2.12
LAST_UNITS = 2.0**-1070  # 16 of the smallest subnormal: what a product's floor holds
CHANNELS = ("D", "V", "P")  # size names of axes whose entries share no value
# Rungs whose numbers have no range to leave: what they call infinite lies beyond fp64.
RANGELESS = frozenset({"wide_double"})
# Time steps times state entries that a rung in Python may be asked for, 0.05 ms each,
# and by what factor gradients cost more. A fuzzed case has 2**15 of them at most, so
# that all of its chains may climb.
SLOW_STEPS = 2e5
GRADIENT_COST = 5
# An exact number grows with every step, so that the work grows with its square.
EXACT_LENGTH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where the exact values of one tensor lie: within `radius` of hi + lo."""

    hi: FloatArray  # rounded to float64
    lo: FloatArray  # what hi leaves, zero on the fp64 rung
    radius: FloatArray  # infinite where nothing is known
    certified: BoolArray  # radius small enough for the allowance given
    rung: str  # the highest rung that improved an element


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """References for the outputs and gradients of one case."""

    outputs: dict[str, Reference]
    gradients: dict[str, Reference]

    @property
    def references(self) -> dict[str, Reference]:
        """Outputs and gradients together."""
        return self.outputs | self.gradients


def certify(
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    cotangents: Arrays | None,
    allowance: Arrays,
    *,
    first: Solution | None = None,
    device: str = "cpu",
) -> Truth:
    """References, each certified against the allowance of the same name and shape.

    Tensors without an allowance keep the fp64 reference, uncertified. `first` is a
    solution of the fp64 rung where there is one already. With a CUDA `device` the fp64
    and double-double rungs run there.
    """
    # Overflow is no surprise here: it gives an infinite radius.
    with np.errstate(over="ignore", invalid="ignore"):
        return _climb(op, tensors, switches, cotangents, allowance, first, device)


def _climb(
    op: Op,
    tensors: Arrays,
    switches: Mapping[str, bool],
    cotangents: Arrays | None,
    allowance: Arrays,
    first: Solution | None,
    device: str,
) -> Truth:
    """`certify`, rung after rung while an element is open."""
    if first is None:
        solve_first = _on(device, "fp64", solve_fp64_rung)
        first = solve_first(op, tensors, switches, cotangents)
    names = tuple(first.outputs)
    references = {
        name: _reference(
            number.value,
            np.zeros(number.shape),
            ball.certified_radius(number),
            allowance.get(name),
            "fp64",
        )
        for name, number in _numbers(first).items()
    }
    # Elements that no rung can write in fp64.
    beyond = {name: np.zeros(r.hi.shape, dtype=bool) for name, r in references.items()}
    for rung, applies, climb in RUNGS:
        left = {
            name: ~(reference.certified | beyond[name])
            for name, reference in references.items()
            if name in allowance
        }
        open_ones = {name: mask for name, mask in left.items() if mask.any()}
        if not open_ones:
            break
        taken = _in_need(op, tensors, open_ones)
        part, part_cotangents = _taken(op, tensors, taken), None
        if cotangents is not None and set(open_ones) - set(names):
            part_cotangents = _taken(op, cotangents, taken)
        if not applies(op, part, part_cotangents is not None):
            continue
        # A rank-one transition's double-doubles are taken step by step, operation by
        # operation: too little work at a time for a card.
        climb_there = _on(device if op.diagonal else "cpu", rung, climb)
        solution = climb_there(op, part, switches, part_cotangents)
        for name, number in _numbers(solution).items():
            if name in open_ones:
                where = _index(op, name, references[name].hi, taken)
                if rung in RANGELESS:
                    beyond[name][where] |= np.isinf(number.hi)
                references[name] = _improved(
                    references[name], number, where, allowance[name], rung
                )
    return Truth(
        outputs={n: r for n, r in references.items() if n in names},
        gradients={n: r for n, r in references.items() if n not in names},
    )


def _numbers(solution: Solution) -> dict[str, Any]:
    """Outputs and gradients by name; no op gives one name to both."""
    return {**solution.outputs, **solution.gradients}


def solve_fp64_rung(
    op: Op, tensors: Arrays, switches: Mapping[str, bool], cotangents: Arrays | None
) -> Solution:
    """The first rung: certified fp64, its tiles as long as they may be.

    A decay of keys and of values is two factors to it, and spreads nothing.
    """
    stretch = stretch_of(op, gradients=cotangents is not None)
    return solve(Fp64System(), op, tensors, switches, cotangents, stretch=stretch)


def _solve_double_double(
    op: Op, tensors: Arrays, switches: Mapping[str, bool], cotangents: Arrays | None
) -> Solution:
    return solve(DoubleDoubleSystem(), op, tensors, switches, cotangents)


def _on(device: str, rung: str, climb: Callable[..., Solution]) -> Any:
    """How to climb a rung on a device; those without kernels run on the CPU."""
    if device == "cpu" or rung not in ON_CARD:
        return climb
    return partial(ON_CARD[rung], device=device)


def _always(op: Op, tensors: Arrays, gradients: bool) -> bool:
    return True


def _is_short(op: Op, tensors: Arrays, gradients: bool) -> bool:
    """Whether the state entries over all steps are few enough for Python."""
    sizes = sizes_of(op, tensors)
    groups, keys, lanes = op.group_shape(sizes)
    cost = GRADIENT_COST if gradients else 1
    steps = sizes[op.time_axis] * op.substeps(sizes)
    return cost * steps * groups * keys * lanes <= SLOW_STEPS


def _is_dyadic(op: Op, tensors: Arrays, gradients: bool) -> bool:
    """Whether the op is sums and products of stored values, and they are few."""
    return (
        is_algebraic(op, tensors)
        and _is_short(op, tensors, gradients)
        and sizes_of(op, tensors)[op.time_axis] <= EXACT_LENGTH
    )


def _has_functions(op: Op, tensors: Arrays, gradients: bool) -> bool:
    """Whether mpmath can do better than exact numbers, and the case is short."""
    return _is_short(op, tensors, gradients) and not _is_dyadic(op, tensors, gradients)


Rung = tuple[str, Callable[[Op, Arrays, bool], bool], Callable[..., Solution]]
RUNGS: tuple[Rung, ...] = (
    ("double_double", _always, _solve_double_double),
    ("wide_double", _always, solve_wide),
    ("exact", _is_dyadic, solve_exact),
    ("multiprecision", _has_functions, solve_multiprecision),
)
ON_CARD: dict[str, Callable[..., Solution]] = {
    "fp64": solve_fp64_on_card,
    "double_double": solve_double_double_on_card,
}


def _reference(
    hi: FloatArray,
    lo: FloatArray,
    radius: FloatArray,
    allowed: FloatArray | None,
    rung: str,
) -> Reference:
    """A reference with its certificate; an allowance of 0 asks for a radius of 0."""
    certified = np.zeros(hi.shape, dtype=bool)
    if allowed is not None:
        certified = is_certified(radius, allowed)
    return Reference(hi=hi, lo=lo, radius=radius, certified=certified, rung=rung)


def is_certified(radius: FloatArray, allowed: FloatArray) -> BoolArray:
    """Whether references are known closely enough for their allowances, elementwise.

    Below 2**-10 of the allowance, or to the last units that float64 has: near 2**-1074
    neither reference nor allowance can be written much finer, and every product of
    double-double loses some. What counts as an error is what exceeds the radius too. An
    allowance of zero asks for a radius of zero.
    """
    share = np.isfinite(radius) & (radius <= CERTIFIED_SHARE * allowed)
    return np.asarray(share | ((radius <= LAST_UNITS) & (allowed > 0.0)))


def _improved(
    old: Reference,
    number: Any,
    where: Index,
    allowed: FloatArray,
    rung: str,
) -> Reference:
    """The old reference with the elements that the new rung knows more closely.

    Where the two contradict each other, which no input may cause, nothing is known.
    """
    hi, lo, radius = old.hi.copy(), old.lo.copy(), old.radius.copy()
    new_radius = double_double.certified_radius(number)
    closer = new_radius < radius[where]
    distance = np.abs((number.hi - hi[where]) + (number.lo - lo[where]))
    # 2**-104 |hi| takes in the roundings of this comparison.
    reach = (radius[where] + new_radius) * 1.001 + np.abs(number.hi) * 2.0**-104
    apart = distance > reach
    hi[where] = np.where(closer, number.hi, hi[where])
    lo[where] = np.where(closer, number.lo, lo[where])
    radius[where] = np.where(closer, new_radius, radius[where])
    radius[where] = np.where(apart, np.inf, radius[where])
    name = rung if closer.any() else old.rung
    return _reference(hi, lo, radius, allowed, name)


def _axes(op: Op, name: str, values: Any) -> tuple[str, ...]:
    """The size names of a tensor's axes."""
    return spec_of(op, name, values.ndim).axes


def _in_need(op: Op, tensors: Arrays, open_ones: Mapping[str, BoolArray]) -> Taken:
    """The batch rows, and then the channels, that have open elements.

    Either is left whole where an open tensor is a sum over it, as gradients may be, and
    channels where they belong to groups. Of an op with heads these are the channels of
    each head. Rows whose sequences are called together stay together.
    """
    sizes = sizes_of(op, tensors)
    taken: Taken = {}
    rows = () if op.calling is not None else ("B",)
    for axis in (*rows, *(name for name in CHANNELS if name in sizes)):
        axes = {name: _axes(op, name, mask) for name, mask in open_ones.items()}
        if "G" in sizes and axis == "D":
            continue
        if any(axis not in named for named in axes.values()):
            continue
        needed = np.zeros(sizes[axis], dtype=bool)
        for name, mask in open_ones.items():
            others = tuple(i for i, one in enumerate(axes[name]) if one != axis)
            needed |= mask.any(others)
        if not needed.all():
            taken[axis] = np.flatnonzero(needed)
    return taken


def _index(op: Op, name: str, values: Any, taken: Taken) -> Index:
    """The index of the part of a tensor that belongs to what was taken."""
    spans = (
        taken.get(axis, np.arange(size))
        for axis, size in zip(_axes(op, name, values), values.shape, strict=True)
    )
    return np.ix_(*spans)


def _taken(op: Op, arrays: Arrays, taken: Taken) -> dict[str, FloatArray]:
    """The arrays with only these batch rows and channels."""
    if not taken:
        return dict(arrays)
    return {
        name: values[_index(op, name, values, taken)] for name, values in arrays.items()
    }


__all__ = ["Reference", "Truth", "certify", "is_certified"]
