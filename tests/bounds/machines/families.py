"""Inputs that bounds are tried on: [T, lanes] arrays, before rounding into a format."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scancheck.formats import Format, round_array

FloatArray = NDArray[np.float64]
Family = Callable[
    [np.random.Generator, int, int], tuple[FloatArray, FloatArray, FloatArray]
]


def near_one(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Slow positive decay, positive data."""
    a = 1.0 - 2.0 ** -rng.uniform(3, 12, (t, n))
    return a, rng.uniform(0.5, 1, (t, n)), rng.uniform(0.5, 1, n)


def uniform(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Any decay below one, signed data."""
    return rng.uniform(0, 1, (t, n)), rng.normal(size=(t, n)), rng.normal(size=n)


def ones(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Pure sums."""
    return np.ones((t, n)), rng.uniform(0.1, 1, (t, n)), rng.uniform(0, 1, n)


def negative(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Alternating products."""
    return rng.uniform(-1, -0.5, (t, n)), rng.normal(size=(t, n)), rng.normal(size=n)


def signed(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Decays of both signs."""
    return rng.uniform(-1, 1, (t, n)), rng.normal(size=(t, n)), rng.normal(size=n)


def growth(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Decays above one."""
    return rng.uniform(1, 1.05, (t, n)), rng.normal(size=(t, n)), rng.normal(size=n)


def telescoping(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """b = c - a c + small: the state stays at c while terms pile up and cancel."""
    a = rng.uniform(-1, -0.9, (t, n))
    c = rng.uniform(0.5, 1, n)
    return a, c - a * c + 1e-3 * rng.normal(size=(t, n)), c


def subnormal(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """States below fp32's normal range."""
    b = rng.normal(size=(t, n)) * 2.0 ** -rng.uniform(126, 148, (t, n))
    return rng.uniform(0.3, 1, (t, n)), b, rng.normal(size=n) * 2.0**-130


def zeros(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Resets, and steps that write nothing."""
    a = rng.uniform(0.5, 1, (t, n)) * (rng.random((t, n)) > 0.2)
    return a, rng.normal(size=(t, n)) * (rng.random((t, n)) > 0.3), np.zeros(n)


def huge_range(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Values over many binades."""
    b = np.exp(rng.normal(0, 6, (t, n))) * rng.choice([-1, 1], (t, n))
    return rng.uniform(0.2, 1, (t, n)), b, rng.normal(size=n)


def tiny_decay(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Subnormal decays that meet large states, and writes of the products' size."""
    a = 2.0 ** -rng.uniform(120, 140, (t, n))
    large = np.arange(t)[:, None] % 2 == 0
    b = rng.normal(size=(t, n)) * np.where(large, 2.0**100, 2.0**-30)
    return a, b, rng.normal(size=n) * 2.0**100


def dip(rng: np.random.Generator, t: int, n: int) -> tuple[FloatArray, ...]:
    """Products of decays that fall below the range and rise again."""
    a = np.where(np.arange(t)[:, None] % 8 < 4, 2.0**-15, 2.0**15)
    return a * rng.uniform(0.9, 1, (t, n)), rng.normal(size=(t, n)), rng.normal(size=n)


FAMILIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        near_one,
        uniform,
        ones,
        negative,
        signed,
        growth,
        telescoping,
        subnormal,
        zeros,
        huge_range,
        tiny_decay,
        dip,
    )
}


def drawn(
    name: str, fmt: Format, seed: int, steps: int, lanes: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a [T, lanes], b [T, lanes], s [lanes] of a family, rounded into `fmt`."""
    rng = np.random.default_rng([seed, steps])
    a, b, s = FAMILIES[name](rng, steps, lanes)
    return round_array(fmt, a), round_array(fmt, b), round_array(fmt, s)
