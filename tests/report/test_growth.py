"""Growth is named after its exponent, and only as surely as the points allow."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from scancheck.report.growth import fit_growth, growth_in_words
from scancheck.study.row import Row

MakeRow = Callable[..., Row]
LENGTHS = (64, 256, 1024, 4096, 16384)


@pytest.mark.parametrize(
    ("exponent", "words"),
    [
        (-0.5, "falls"),
        (0.0, "stays constant"),
        (0.25, "grows between constant and square root"),
        (0.5, "grows as a square root"),
        (0.75, "grows between square root and linear"),
        (1.0, "grows linearly"),
        (1.5, "grows faster than linearly"),
    ],
)
def test_growth_is_named_after_its_exponent(
    made_up: MakeRow, exponent: float, words: str
) -> None:
    """An exact power of the length is found, and called what it is."""
    rows = [made_up(T=T, rms_rel=1e-7 * T**exponent) for T in LENGTHS]
    found = fit_growth(rows)
    assert found is not None
    for value in (found.exponent, found.low, found.high):
        assert math.isclose(value, exponent, abs_tol=1e-6)
    p = f"{exponent:.2f}"
    assert growth_in_words(rows) == f"{words} (T^{p}, 95 % sure of {p} to {p})"


def test_interval_holds_the_exponent_as_often_as_it_says(made_up: MakeRow) -> None:
    """Over many noisy lines of known slope about 95 of 100 intervals cover it."""
    source = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        noise = np.exp(0.2 * source.standard_normal(len(LENGTHS)))
        rows = [
            made_up(T=T, rms_rel=1e-6 * math.sqrt(T) * e)
            for T, e in zip(LENGTHS, noise, strict=True)
        ]
        found = fit_growth(rows)
        assert found is not None
        covered += found.low <= 0.5 <= found.high
    # 380 expected; five standard deviations of a binomial are 22.
    assert 358 <= covered <= 400


def test_what_the_points_cannot_tell_is_said(made_up: MakeRow) -> None:
    """Errors that scatter over a decade leave several laws open."""
    errors = (1e-6, 2e-5, 1e-6, 3e-5, 8e-6)
    rows = [made_up(T=T, rms_rel=e) for T, e in zip(LENGTHS, errors, strict=True)]
    assert "these lengths cannot tell" in growth_in_words(rows)


def test_growth_needs_three_lengths(made_up: MakeRow) -> None:
    """Two lengths, also of several seeds, or lengths without an error, give no fit."""
    rows = [made_up(T=64), made_up(T=256), made_up(T=1024, rms_rel=None)]
    assert fit_growth(rows) is None
    assert fit_growth([made_up(T=T, seed=s) for T in (64, 256) for s in (1, 2)]) is None
    assert "too few lengths" in growth_in_words(rows)
