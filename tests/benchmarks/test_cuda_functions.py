"""The fits behind the CUDA functions, and the sweep over their inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_function_coefficients import FITS, Fit, coefficients, largest_error
from cuda_function_sweep import ERROR_BLOCK, HASH_BLOCK, sweep
from cuda_functions import Row

from scancheck.contract import ErrorModel
from scancheck.kernels.models import cuda_functions
from scancheck.kernels.models.jit import jit


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.name)
def test_coefficients_are_those_of_the_fit(fit: Fit) -> None:
    """Each polynomial is found again, with the error that the error models count."""
    found = tuple(coefficients(fit))
    assert found == getattr(cuda_functions, fit.name)
    assert largest_error(fit, list(found)) < (1e-8 if fit.degree > 2 else 0.0102)


def test_sweep_sees_one_wrong_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One input with another last bit changes the hash of its block and no other."""
    block = 127
    wrong = np.float32(1.25)
    functions = cuda_functions.FUNCTIONS
    sigmoid = functions["sigmoid"]

    @jit(cache=False)
    def off_by_one(x):  # type: ignore[no-untyped-def]
        y = sigmoid(x)
        return np.int32(np.float32(y).view(np.int32) + (x == wrong)).view(np.float32)

    right = sweep("sigmoid", range(block, block + 1))
    monkeypatch.setattr(
        cuda_functions, "FUNCTIONS", functions | {"sigmoid": off_by_one}
    )
    other = sweep("sigmoid", range(block, block + 1))

    differing = np.nonzero(right.sums != other.sums)[0]
    assert differing.tolist() == [int(wrong.view(np.uint32)) // HASH_BLOCK]
    assert np.count_nonzero(right.sums) == ERROR_BLOCK // HASH_BLOCK


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        ({}, True),
        ({"beyond": 1.15}, False),
        ({"wrong_kinds": 1}, False),
        ({"other_bits": "none"}, True),
        ({"other_bits": "1 blocks, from 0x3f800000"}, False),
        ({"stated": ErrorModel(e0=2.7, e1=1.1), "name": "fast log"}, True),
        ({"stated": ErrorModel(e0=2.7, e1=0.9), "name": "fast log"}, False),
        ({"stated": ErrorModel(e0=0.9, e1=2.0), "name": "fast exp"}, False),
        ({"stated": None, "beyond": 9.0}, True),
    ],
)
def test_row_passes_only_as_stated(change: dict[str, Any], passed: bool) -> None:
    """More error than stated, a wrong kind or other bits fail; e1 of a logarithm is
    what its error beyond e0 |log x| may be."""
    row = Row(
        name="reproducible exp2",
        error=1.0,
        at=0.5,
        beyond=1.0,
        stated=ErrorModel(e0=1.14),
        wrong_kinds=0,
    )
    assert replace(row, **change).passed is passed
