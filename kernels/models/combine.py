"""The combination of affine maps, plain and compensated.

A step is the map S -> A S + B. Left before right, they combine to

    A = A_right A_left,        B = A_right B_left + B_right.

A state is a constant map: its A is absent. So a step taken by a state and a pair of
subtrees are one function, and a sequential scan is the tree that leans to the left.

plain  every product and sum is rounded, and the error is lost;
kahan  the error of the addition is kept in a rest of B (Neumaier 1974);
full   the errors of product and addition are kept, and so is that of A
       (compensated Horner scheme: Graillat, Langlois and Louvet 2009).

Rests decay with A: a rest that does not is no sound compensation (numerics 2.6).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Maps S -> (decay + decay_rest) S + drive + drive_rest, elementwise.

    None stands for a rest of zero; a `decay` of None for a state.
    """

    drive: Array
    decay: Array | None = None
    decay_rest: Array | None = None
    drive_rest: Array | None = None


Combine = Callable[[Arithmetic, Affine, Affine], Affine]


def plain(arithmetic: Arithmetic, left: Affine, right: Affine) -> Affine:
    """The map `left`, then `right`; each operation rounded."""
    assert right.decay is not None
    product = arithmetic.mul(right.decay, left.drive)
    return Affine(
        decay=None if left.decay is None else arithmetic.mul(right.decay, left.decay),
        drive=arithmetic.add(product, right.drive),
    )


def kahan(arithmetic: Arithmetic, left: Affine, right: Affine) -> Affine:
    """The map `left`, then `right`; the error of the addition joins the rest."""
    assert right.decay is not None
    product = arithmetic.mul(right.decay, left.drive)
    drive, rest = arithmetic.two_sum(product, right.drive)
    if left.drive_rest is not None:
        rest = arithmetic.add(arithmetic.mul(right.decay, left.drive_rest), rest)
    if right.drive_rest is not None:
        rest = arithmetic.add(rest, right.drive_rest)
    return Affine(
        decay=None if left.decay is None else arithmetic.mul(right.decay, left.decay),
        drive=drive,
        drive_rest=rest,
    )


def full(arithmetic: Arithmetic, left: Affine, right: Affine) -> Affine:
    """The map `left`, then `right`; the errors of products and sums join the rests."""
    assert right.decay is not None
    product, product_error = arithmetic.two_prod(right.decay, left.drive)
    drive, sum_error = arithmetic.two_sum(product, right.drive)
    rest = arithmetic.add(product_error, sum_error)
    if left.drive_rest is not None:
        rest = arithmetic.add(arithmetic.mul(right.decay, left.drive_rest), rest)
    if right.decay_rest is not None:
        rest = arithmetic.add(rest, arithmetic.mul(right.decay_rest, left.drive))
    if right.drive_rest is not None:
        rest = arithmetic.add(rest, right.drive_rest)
    decay, decay_rest = _full_decay(arithmetic, left, right)
    return Affine(decay=decay, drive=drive, decay_rest=decay_rest, drive_rest=rest)


def _full_decay(
    arithmetic: Arithmetic, left: Affine, right: Affine
) -> tuple[Array | None, Array | None]:
    if left.decay is None or right.decay is None:
        return None, None
    decay, rest = arithmetic.two_prod(right.decay, left.decay)
    if left.decay_rest is not None:
        rest = arithmetic.add(arithmetic.mul(right.decay, left.decay_rest), rest)
    if right.decay_rest is not None:
        rest = arithmetic.add(rest, arithmetic.mul(right.decay_rest, left.decay))
    return decay, rest


COMBINES: dict[str, Combine] = {"plain": plain, "kahan": kahan, "full": full}


def value(arithmetic: Arithmetic, state: Affine) -> Array:
    """drive + drive_rest, rounded once; an infinity stays whatever its rest is."""
    if state.drive_rest is None:
        return state.drive
    total = arithmetic.add(state.drive, state.drive_rest)
    return np.where(np.isfinite(state.drive), total, state.drive)


def each(maps: Affine, function: Callable[[Array], Array]) -> Affine:
    """The maps with `function` applied to every field that is there."""
    return Affine(
        drive=function(maps.drive),
        decay=None if maps.decay is None else function(maps.decay),
        decay_rest=None if maps.decay_rest is None else function(maps.decay_rest),
        drive_rest=None if maps.drive_rest is None else function(maps.drive_rest),
    )


def take(maps: Affine, index: Any) -> Affine:
    """The same maps at `index` of every field."""
    return each(maps, lambda x: x[index])


def join(*parts: Affine) -> Affine:
    """All along the leading axis; a rest that only some parts have is else zero."""
    joined = {}
    for field in fields(Affine):
        values = [getattr(part, field.name) for part in parts]
        if all(x is None for x in values):
            continue
        joined[field.name] = np.concatenate(
            [
                np.zeros_like(part.drive) if x is None else x
                for part, x in zip(parts, values, strict=True)
            ]
        )
    return Affine(**joined)


def padded(steps: Affine, count: int) -> Affine:
    """The steps and `count` identity steps."""
    zeros = np.zeros((count, *steps.drive.shape[1:]), dtype=steps.drive.dtype)
    rest = None if steps.decay_rest is None else zeros
    return join(steps, Affine(drive=zeros, decay=zeros + 1.0, decay_rest=rest))


def begun(steps: Affine, first: Affine) -> Affine:
    """The steps with the first replaced by a state.

    Its decay stays in place and is never used: an element that reaches the first step
    is complete and only ever stands on the left.
    """
    later = take(steps, slice(1, None))
    begin = join(take(first, None), as_states(later))
    return Affine(
        drive=begin.drive,
        decay=steps.decay,
        decay_rest=steps.decay_rest,
        drive_rest=begin.drive_rest,
    )


def as_states(maps: Affine) -> Affine:
    """The same maps of which only the drive is of use, as constant maps."""
    return Affine(drive=maps.drive, drive_rest=maps.drive_rest)
