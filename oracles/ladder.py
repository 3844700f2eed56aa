"""The ladder of oracles: climbs only where a reference is not yet close enough.

An element is certified when the radius of its reference is at most 2**-10 of what the
kernel is allowed there (numerics 2.12). The certified fp64 scan comes first, always;
then double-double, exact dyadic numbers where the op has no functions, and mpmath. What
no rung certifies stays uncertified: it counts as neither pass nor fail.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import Op, spec_of
from scancheck.oracles import ball, double_double
from scancheck.oracles.cuda_rungs import (
    solve_double_double_on_card,
    solve_fp64_on_card,
)
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.exact import solve_exact
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.multiprecision import solve_multiprecision

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Arrays = Mapping[str, FloatArray]

CERTIFIED_SHARE = 2.0**-10  # of the allowance, numerics 2.12
LAST_UNITS = 2.0**-1070  # 16 of the smallest subnormal: what a product's floor holds
# Time steps times state entries that a rung in Python may be asked for, at up to 0.1 ms
# each, and by what factor gradients cost more.
SLOW_STEPS = 5e4
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
        solve_first = _on(device, "fp64", _solve_fp64)
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
    for rung, applies, climb in RUNGS:
        open_ones = {
            name: ~reference.certified
            for name, reference in references.items()
            if name in allowance and not reference.certified.all()
        }
        if not open_ones:
            break
        rows = _rows(op, tensors, open_ones)
        part, part_cotangents = _taken(op, tensors, rows), None
        if cotangents is not None and set(open_ones) - set(names):
            part_cotangents = _taken(op, cotangents, rows)
        if not applies(op, part, part_cotangents is not None):
            continue
        on_device = _on(device, rung, climb)
        solution = on_device(op, part, switches, part_cotangents)
        for name, number in _numbers(solution).items():
            if name in open_ones:
                references[name] = _improved(
                    op, references[name], number, rows, allowance[name], rung
                )
    return Truth(
        outputs={n: r for n, r in references.items() if n in names},
        gradients={n: r for n, r in references.items() if n not in names},
    )


def _numbers(solution: Solution) -> dict[str, Any]:
    """Outputs and gradients by name; no op gives one name to both."""
    return {**solution.outputs, **solution.gradients}


def _solve_fp64(
    op: Op, tensors: Arrays, switches: Mapping[str, bool], cotangents: Arrays | None
) -> Solution:
    return solve(Fp64System(), op, tensors, switches, cotangents)


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
    sizes = _sizes(op, tensors)
    groups, keys, lanes = op.group_shape(sizes)
    cost = GRADIENT_COST if gradients else 1
    return cost * sizes[op.time_axis] * groups * keys * lanes <= SLOW_STEPS


def _is_dyadic(op: Op, tensors: Arrays, gradients: bool) -> bool:
    """Whether the op is sums and products of stored values, and they are few."""
    return (
        op.name == "linear_scan"
        and "a" in tensors
        and _is_short(op, tensors, gradients)
        and _sizes(op, tensors)[op.time_axis] <= EXACT_LENGTH
    )


Rung = tuple[str, Callable[[Op, Arrays, bool], bool], Callable[..., Solution]]
RUNGS: tuple[Rung, ...] = (
    ("double_double", _always, _solve_double_double),
    ("exact", _is_dyadic, solve_exact),
    ("multiprecision", _is_short, solve_multiprecision),
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
    op: Op,
    old: Reference,
    number: Any,
    rows: NDArray[np.intp] | None,
    allowed: FloatArray,
    rung: str,
) -> Reference:
    """The old reference with the elements that the new rung knows more closely.

    Where the two contradict each other, which no input may cause, nothing is known.
    """
    hi, lo, radius = old.hi.copy(), old.lo.copy(), old.radius.copy()
    new_radius = double_double.certified_radius(number)
    where = slice(None) if rows is None else rows
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


def _sizes(op: Op, tensors: Arrays) -> dict[str, int]:
    """Size names and sizes of a case."""
    sizes: dict[str, int] = {}
    for name, values in tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        sizes.update(zip(axes, values.shape, strict=True))
    return sizes


def _batch_axis(op: Op, name: str, values: Any) -> bool:
    """Whether the first axis of the tensor counts batch rows."""
    return spec_of(op, name, values.ndim).axes[:1] == ("B",)


def _rows(
    op: Op, tensors: Arrays, open_ones: Mapping[str, BoolArray]
) -> NDArray[np.intp] | None:
    """The batch rows with open elements; None for all, as where gradients sum them."""
    if not all(_batch_axis(op, name, mask) for name, mask in open_ones.items()):
        return None
    needed = np.zeros(_sizes(op, tensors)["B"], dtype=bool)
    for mask in open_ones.values():
        needed |= mask.reshape(mask.shape[0], -1).any(1)
    return None if needed.all() else np.flatnonzero(needed)


def _taken(
    op: Op, arrays: Arrays, rows: NDArray[np.intp] | None
) -> dict[str, FloatArray]:
    """The arrays with only these batch rows."""
    return {
        name: values[rows]
        if rows is not None and _batch_axis(op, name, values)
        else values
        for name, values in arrays.items()
    }


__all__ = ["Reference", "Truth", "certify", "is_certified"]
