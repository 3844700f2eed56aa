"""Rung R2's numbers: double-doubles with radii, as arrays over compiled loops.

A `DoubleDouble` holds hi + lo, about 106 bits, and a radius. The arithmetic and its
error bounds are in `double_word` and `double_word_functions`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.oracles import double_word, double_word_functions
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.numbers import ArrayNumber

FloatArray = NDArray[np.float64]
Parts = tuple[FloatArray, ...]  # hi, lo and radius

# Ten roundings at most go into a radius per step of a recurrence, each 2**-53: this
# makes good for 5e7 steps.
INFLATION = 1.0 + 2.0**-24

_add = double_word.add
_multiply = double_word.multiply
_exp = double_word_functions.exp
_softplus = double_word_functions.softplus
_sigmoid = double_word_functions.sigmoid
_inverse = double_word.inverse


@jit(**NO_ALLOCATION, forceinline=True)
def _at(x: Parts, i: int) -> double_word.Triple:
    return x[0][i], x[1][i], x[2][i]


@jit(**NO_ALLOCATION, forceinline=True)
def _put(x: Parts, i: int, number: double_word.Triple) -> None:
    x[0][i], x[1][i], x[2][i] = number


@jit(**NO_ALLOCATION)
def _add_all(x: Parts, y: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _add(*_at(x, i), *_at(y, i)))


@jit(**NO_ALLOCATION)
def _multiply_all(x: Parts, y: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _multiply(*_at(x, i), *_at(y, i)))


@jit(**NO_ALLOCATION)
def _exp_all(x: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _exp(*_at(x, i)))


@jit(**NO_ALLOCATION)
def _softplus_all(x: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _softplus(*_at(x, i)))


@jit(**NO_ALLOCATION)
def _sigmoid_all(x: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _sigmoid(*_at(x, i)))


@jit(**NO_ALLOCATION)
def _reciprocal_all(x: Parts, z: Parts) -> None:
    for i in range(z[0].size):
        _put(z, i, _inverse(*_at(x, i)))


class Loops(NamedTuple):
    """The compiled loops of one kind of number: flat operands, and the result."""

    add: Callable[..., None]
    multiply: Callable[..., None]
    exp: Callable[..., None]
    softplus: Callable[..., None]
    sigmoid: Callable[..., None]
    reciprocal: Callable[..., None]


class WordNumber(ArrayNumber):
    """Numbers whose first three components are hi, lo and a radius."""

    __slots__ = ()

    loops: ClassVar[Loops]

    def exactly(self, values: FloatArray) -> Self:
        """Stored values, known exactly, as this kind of number."""
        raise NotImplementedError

    def nothing(self, shape: tuple[int, ...]) -> FloatArray:
        """Zeros beside what is known exactly."""
        return np.zeros(shape)

    @property
    def hi(self) -> FloatArray:
        """The values, rounded to float64."""
        return self.components[0]

    @property
    def lo(self) -> FloatArray:
        """What hi leaves of the values."""
        return self.components[1]

    @property
    def radius(self) -> FloatArray:
        """Radii, before the inflation of `certified_radius`."""
        return self.components[2]

    def __add__(self, other: Self) -> Self:
        return self._elementwise(self.loops.add, other)

    def __mul__(self, other: Self) -> Self:
        return self._elementwise(self.loops.multiply, other)

    def __neg__(self) -> Self:
        return self.like(-self.hi, -self.lo, *self.components[2:])

    def one_minus(self) -> Self:
        """1 - x."""
        return self._one() + -self

    def exp(self) -> Self:
        """exp(x)."""
        return self._elementwise(self.loops.exp)

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._elementwise(self.loops.softplus)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._elementwise(self.loops.sigmoid)

    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self * self.sigmoid()

    def silu_slope(self) -> Self:
        """d silu / dx = s (1 + x (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
        return self.sigmoid() * (self._one() + self * (-self).sigmoid())

    def reciprocal(self) -> Self:
        """1 / x, with no end where zero is near."""
        return self._elementwise(self.loops.reciprocal)

    def maximum(self, other: Self) -> Self:
        """The larger one; where it is open which, the radius of their difference too.

        The other one may be the larger by no more than that.
        """
        apart, beyond, meets = self._compared(other)
        pairs = zip(self.components, other.components, strict=True)
        chosen = self.like(*(np.where(beyond, *pair) for pair in pairs))
        nothing = self.nothing(apart.shape)
        radius = np.where(meets, apart.radius, 0.0)
        return chosen + apart.like(nothing, nothing, radius, *apart.components[3:])

    def exceeds(self, other: Self) -> Self:
        """1 where x > y, else 0, with a radius of 1 where that is open."""
        _, beyond, meets = self._compared(other)
        mask = self.exactly(beyond.astype(float))
        hi, lo, _, *others = mask.components
        return mask.like(hi, lo, meets.astype(float), *others)

    def held(self) -> Self:
        """The leading words, of radius zero."""
        nothing = self.nothing(self.shape)
        return self.like(self.hi, nothing, nothing, *self.components[3:])

    def _compared(self, other: Self) -> tuple[Self, Any, Any]:
        """x - y, where it is positive, and where its sign is open."""
        apart = self + -other
        size = np.abs(apart.hi) * (1.0 - 2.0**-50)
        return apart, apart.hi > 0.0, ~(size > apart.radius * INFLATION)

    def sum(self, axis: int | tuple[int, ...]) -> Self:
        """The sum over axes, pairwise."""
        axes = (axis,) if isinstance(axis, int) else axis
        total = self
        for one in sorted((a % len(self.shape) for a in axes), reverse=True):
            total = _summed(total, one)
        return total

    def _one(self) -> Self:
        return self.exactly(np.ones(self.shape))

    def _elementwise(self, loop: Callable[..., None], *others: Self) -> Self:
        """A compiled loop over the entries of this number and others, broadcast."""
        shape = np.broadcast_shapes(self.shape, *(other.shape for other in others))
        operands = [
            tuple(
                np.ascontiguousarray(np.broadcast_to(part, shape)).reshape(-1)
                for part in number.components
            )
            for number in (self, *others)
        ]
        out = tuple(np.empty(part.size, part.dtype) for part in operands[0])
        loop(*operands, out)
        return self.like(*(part.reshape(shape) for part in out))


def _summed(number: Any, axis: int) -> Any:
    """The sum over one axis: halves are added to each other until one is left."""
    front = (slice(None),) * axis
    size = number.shape[axis]
    if size == 0:
        shape = number.shape[:axis] + number.shape[axis + 1 :]
        return number.exactly(np.zeros(shape))
    while size > 1:
        half = size // 2
        rest = number[(*front, slice(2 * half, size))]
        number = (
            number[(*front, slice(0, half))] + number[(*front, slice(half, 2 * half))]
        )
        if size % 2:
            parts = zip(number.components, rest.components, strict=True)
            number = number.like(*(np.concatenate(p, axis) for p in parts))
        size = half + size % 2
    return number[(*front, 0)]


class DoubleDouble(WordNumber):
    """hi + lo and a radius, float64 arrays of one shape; hi = RN(hi + lo)."""

    __slots__ = ()

    loops = Loops(
        _add_all,
        _multiply_all,
        _exp_all,
        _softplus_all,
        _sigmoid_all,
        _reciprocal_all,
    )

    def exactly(self, values: FloatArray) -> Self:
        """Stored values, known exactly."""
        return self.like(*exact_double_double(values).components)


def exact_double_double(value: FloatArray) -> DoubleDouble:
    """Stored values, known exactly; the zeros beside them take no memory."""
    value = np.asarray(value, dtype=np.float64)
    nothing = np.broadcast_to(np.zeros(()), value.shape)
    return DoubleDouble(value, nothing, nothing)


def certified_radius(number: DoubleDouble) -> FloatArray:
    """Rigorous radii; NaN and overflow become infinity, so nothing is certified."""
    radius = number.radius * INFLATION
    bad = ~np.isfinite(number.hi) | ~np.isfinite(number.lo) | np.isnan(radius)
    return np.where(bad, np.inf, radius)


__all__ = [
    "INFLATION",
    "DoubleDouble",
    "Loops",
    "WordNumber",
    "certified_radius",
    "exact_double_double",
]
