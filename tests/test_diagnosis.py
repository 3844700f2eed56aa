"""What the pattern of wrong elements says, and the words for every cause."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scancheck
from scancheck.diagnosis import (
    CAUSES,
    Place,
    heals_inside_chunks,
    locate,
    tokens_of,
)
from scancheck.kernels.faulty.catalog import faulty


def tokens(total: int, *wrong: int) -> Any:
    """A [1, T, 1] mask that is wrong at these tokens."""
    mask = np.zeros((1, total, 1), dtype=bool)
    mask[0, list(wrong), 0] = True
    return mask


def test_every_cause_has_text_and_advice() -> None:
    """No cause is without words, and no two say the same."""
    for name, cause in CAUSES.items():
        assert cause.text.strip(), name
        assert cause.advice.strip(), name
    assert len({cause.text for cause in CAUSES.values()}) == len(CAUSES)


def test_every_planted_symptom_is_a_cause() -> None:
    """A planted bug names a cause of this table."""
    assert {kernel.symptom for kernel in faulty()} <= set(CAUSES)


def test_every_cause_is_given_somewhere() -> None:
    """The table holds no cause that no check names."""
    checks = Path(scancheck.__file__).parent / "checks"
    source = "".join(path.read_text() for path in sorted(checks.glob("*.py")))
    given = set(re.findall(r'"([a-z_]+)"', source))
    assert set(CAUSES) - given == set()


@pytest.mark.parametrize(
    ("wrong", "chunk", "place"),
    [
        (tokens(200), 64, None),
        (tokens(200, 0), 64, Place(token=0, chunk=0, position=0, where="local")),
        (tokens(200, 63), 64, Place(token=63, chunk=0, position=63, where="local")),
        (tokens(200, 64, 65), 64, Place(token=64, chunk=1, position=0, where="carry")),
        (tokens(200, 130), 64, Place(token=130, chunk=2, position=2, where="local")),
        (tokens(200, 128), None, Place(token=128, chunk=1, position=0, where="carry")),
        (tokens(200, 96), None, Place(token=96, chunk=3, position=0, where="carry")),
        (tokens(200, 8), None, Place(token=8, chunk=1, position=0, where="carry")),
        (tokens(200, 4), None, Place(token=4, chunk=None, position=None, where=None)),
        (tokens(200, 0), None, Place(token=0, chunk=None, position=None, where=None)),
    ],
)
def test_place(wrong: Any, chunk: int | None, place: Place | None) -> None:
    """The first wrong token, its chunk and position, and whether the carry is at it."""
    assert locate(wrong, 1, chunk) == place


@given(
    st.integers(0, 2),
    st.integers(1, 20),
    st.lists(st.integers(0, 299), min_size=1),
    st.data(),
)
def test_place_is_that_of_the_first_wrong_token(
    axis: int, chunk: int, wrong: list[int], data: st.DataObject
) -> None:
    """On any axis, chunk and position give back the token."""
    shape = [3, 3, 3]
    shape[axis] = 300
    mask = np.zeros(shape, dtype=bool)
    for token in wrong:
        index = [data.draw(st.integers(0, 2)) for _ in range(3)]
        index[axis] = token
        mask[tuple(index)] = True
    place = locate(mask, axis, chunk)
    assert place is not None
    assert place.token == min(wrong)
    assert place.chunk is not None
    assert place.position is not None
    assert place.chunk * chunk + place.position == place.token
    assert (tokens_of(mask, axis).nonzero()[0] == sorted(set(wrong))).all()


@pytest.mark.parametrize(
    ("wrong", "heals"),
    [
        ([], False),
        ([33, 34, 35, 97, 98, 99, 161, 162, 163], True),
        ([33, 34, 35, 97, 98, 99], True),
        ([33, 34, 35, 36, 97, 98, 99], True),
        ([33, 34, 35], False),
        ([33, 34, 97, 98], False),
        ([33, 34, 35, 98, 99, 100], False),
        ([33, 50, 97, 110, 170], False),
        ([64, 65, 66, 128, 129], False),
        (list(range(64, 192)), False),
        (list(range(192)), False),
        ([0, 33], False),
    ],
)
def test_errors_that_heal_inside_chunks(wrong: list[int], heals: bool) -> None:
    """Right at the first position of every chunk, wrong further in: not the carry."""
    assert heals_inside_chunks(tokens(192, *wrong), 1, 64) is heals


def test_one_chunk_says_nothing_about_healing() -> None:
    """Less than two whole chunks cannot show a pattern that repeats."""
    assert not heals_inside_chunks(tokens(127, 33), 1, 64)
