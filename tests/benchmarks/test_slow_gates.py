"""Errors with slow gates: what the table of the benchmark is to show, on the models."""

import pytest
import slow_gates


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    """The errors of a few channels."""
    return slow_gates.errors(slow_gates.drawn(8))


def test_the_accurate_variant_is_thirty_times_better_than_plain_ex2(
    found: dict[str, float],
) -> None:
    """Than the recurrence with the hardware's exponential as it is, mamba_ssm's."""
    assert found["accurate"] * 30 < found[slow_gates.UNSHIFTED]
    assert found["accurate"] * 5 < found["reproducible"]


def test_the_accurate_variant_errs_little_more_than_its_sum(
    found: dict[str, float],
) -> None:
    """Most of its error is that of exact states, rounded and summed in fp32."""
    assert found["accurate"] < 1.5 * found[slow_gates.EXACT_STATES]
    assert found[slow_gates.EXACT_Y] < found[slow_gates.EXACT_STATES]


def test_every_error_is_a_row(found: dict[str, float]) -> None:
    """Names, errors, and quotients of the error of fast."""
    lines = slow_gates.table(found).splitlines()
    assert len(lines) == 2 + len(found)
    error = found["accurate"]
    assert f"| accurate | {error:.3g} | {found['fast'] / error:.3g} |" in lines
