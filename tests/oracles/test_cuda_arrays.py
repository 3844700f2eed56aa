"""What kernels of a card may be given; numbers of a card beside those of the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scancheck.formats import FloatArray
from scancheck.oracles import cuda_card
from scancheck.oracles.ball import Ball
from scancheck.oracles.cuda_ball import CudaBall
from scancheck.oracles.cuda_double_double import (
    CudaDoubleDouble,
    exact_cuda_double_double,
)
from scancheck.oracles.double_double import DoubleDouble, exact_double_double
from scancheck.oracles.numbers import ArrayNumber, concatenate, stack

Function = Callable[..., Any]
OF_ONE: dict[str, Function] = {
    "1 - x": lambda x: x.one_minus(),
    "held": lambda x: x.held(),
    "silu": lambda x: x.silu(),
    "silu slope": lambda x: x.silu_slope(),
    "1 / x": lambda x: x.reciprocal(),
    "sum of none": lambda x: x[:0].sum(0),
    "sum": lambda x: x.sum(1),
}
OF_TWO: dict[str, Function] = {
    "maximum": lambda x, y: x.maximum(y),
    "exceeds": lambda x, y: x.exceeds(y),
    "joined": lambda x, y: x.joined(y, 1),
    "concatenated": lambda x, y: concatenate([x, y], 0),
    "stacked": lambda x, y: stack([x, y], 1),
}


def pair(seed: int, exact: bool) -> list[FloatArray]:
    """Components of two double-doubles, some of them equal up to their radii."""
    rng = np.random.default_rng(seed)
    hi = rng.normal(size=(2, 4, 7)) * rng.choice([1e-9, 1.0, 30.0], (2, 4, 7))
    hi[1, :, :3] = hi[0, :, :3]
    lo = hi * rng.uniform(-1, 1, hi.shape) * 2.0**-54
    radius = np.abs(hi) * rng.choice([0.0, 2.0**-100, 2.0**-20], hi.shape)
    return [hi] if exact else [hi, lo, radius]


def both(kind: type[Any], parts: list[FloatArray]) -> list[Any]:
    """Two numbers, here or on the card."""
    there = issubclass(kind, CudaBall | CudaDoubleDouble)
    if len(parts) == 1 and issubclass(kind, DoubleDouble):
        exactly: Function = exact_cuda_double_double if there else exact_double_double
        return [exactly(part) for part in parts[0]]
    if len(parts) == 1:
        parts = [*parts, np.zeros_like(parts[0])]
    elif issubclass(kind, Ball):
        parts = [parts[0], parts[2]]
    moved = [cuda_card.float64(part) if there else part for part in parts]
    return [kind(*(part[i] for part in moved)) for i in range(2)]


def on_cpu(number: ArrayNumber) -> list[FloatArray]:
    """The components."""
    return [cuda_card.on_cpu(part) for part in number.components]


def close(left: Any, right: Any) -> None:
    """Centres within both radii, and radii that are as small."""
    parts = zip(on_cpu(left), on_cpu(right), strict=True)
    (value, *low, radius), (other, *other_low, other_radius) = zip(*parts, strict=True)
    with np.errstate(invalid="ignore"):
        apart = np.abs(value - other + sum(low) - sum(other_low))
    reach = (radius + other_radius) * 1.001 + 2.0**-104 * np.abs(value)
    assert (~(apart > reach)).all()
    slack = 1e-9 * radius + 2.0**-1060
    assert np.array_equal(np.isfinite(radius), np.isfinite(other_radius))
    known = np.isfinite(radius)
    assert (np.abs(radius - other_radius)[known] <= slack[known]).all()


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "with radii"])
@pytest.mark.parametrize("function", OF_ONE.values(), ids=OF_ONE)
@pytest.mark.parametrize(
    "kinds", [(Ball, CudaBall), (DoubleDouble, CudaDoubleDouble)], ids=["ball", "dd"]
)
def test_functions_of_one_number(
    kinds: tuple[type[Any], type[Any]], function: Function, exact: bool, card: str
) -> None:
    """On the card as here."""
    parts = pair(1, exact)
    here, there = (both(kind, parts)[0] for kind in kinds)
    close(function(here), function(there))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "with radii"])
@pytest.mark.parametrize("function", OF_TWO.values(), ids=OF_TWO)
@pytest.mark.parametrize(
    "kinds", [(Ball, CudaBall), (DoubleDouble, CudaDoubleDouble)], ids=["ball", "dd"]
)
def test_functions_of_two_numbers(
    kinds: tuple[type[Any], type[Any]], function: Function, exact: bool, card: str
) -> None:
    """On the card as here, where it is open which of the two is larger too."""
    parts = pair(2, exact)
    here, there = (both(kind, parts) for kind in kinds)
    close(function(*here), function(*there))


def test_exact_numbers_stay_exact_on_the_card(card: str) -> None:
    """What is known exactly brings no zeros of its own, which kernels would read."""
    x, y = both(CudaDoubleDouble, pair(3, exact=True))
    assert x.single
    assert x.held().single
    assert x._one().single
    assert (x + y).held().single
    assert not (x + y).single


def test_a_kernel_takes_arrays_of_the_card_alone(card: str) -> None:
    """A host's address, another order or another format would be read as they are."""
    here = np.ones((2, 3))
    there = cuda_card.float64(here)
    assert cuda_card.address(None) == 0
    assert cuda_card.address(there[:0]) == 0
    assert cuda_card.pointer(there)[0] == cuda_card.address(there) != 0
    for taken in (cuda_card.address, cuda_card.pointer):
        with pytest.raises(TypeError, match=r"array of the card; got numpy\.ndarray"):
            taken(here)
    with pytest.raises(TypeError, match="array of the card"):
        CudaBall(there, here) + CudaBall(there, there)
    with pytest.raises(TypeError, match=r"C order; got strides \(8, 24\)"):
        cuda_card.pointer(there.transpose(1, 0))
    for one in (cuda_card.operand, cuda_card.room):
        with pytest.raises(TypeError, match="expected float64; got float32"):
            one((there.astype(np.float32),), (0, 1))


def test_arrays_of_the_card_meet_no_others(card: str) -> None:
    """That is how tests without a device see what a device would refuse."""
    here = np.ones((2, 3))
    there = cuda_card.float64(here)
    refused: list[Function] = [
        lambda: there + here,
        lambda: here * there,
        lambda: np.where(there > 0.0, here, 0.0),
        lambda: np.concatenate([there, here]),
        lambda: np.asarray(there),
        lambda: np.ascontiguousarray(there),
        lambda: here.__setitem__(0, there[0]),
        lambda: there.__setitem__(0, here[0]),
        lambda: np.max(there, initial=0.0),
    ]
    for one in refused:
        with pytest.raises((TypeError, ValueError)):
            one()
    there += np.float64(1.0)
    there[0] = 3.0
    there = np.maximum(2.0 * there, 0.0)
    want = np.array([[6.0, 6.0, 6.0], [4.0, 4.0, 4.0]])
    assert np.array_equal(cuda_card.on_cpu(there), want)
    assert not isinstance(there.sum(), np.generic)
