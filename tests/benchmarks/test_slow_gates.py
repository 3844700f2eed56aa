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
    """Than plain steps with the hardware's exponential as it is, as mamba_ssm's are."""
    name, times = slow_gates.gain(found)
    assert name == slow_gates.UNSHIFTED
    assert times > slow_gates.REQUIRED
    assert found["accurate"] * 5 < found["reproducible"]


def test_the_accurate_variant_errs_little_more_than_its_sum(
    found: dict[str, float],
) -> None:
    """Most of its error is that of exact states, rounded and summed in fp32."""
    assert found["accurate"] < 1.5 * found[slow_gates.EXACT_STATES]
    assert found[slow_gates.EXACT_Y] < found[slow_gates.EXACT_STATES]


def test_the_gain_is_over_the_peer_where_there_is_one() -> None:
    """And 0, which misses what is required, where there is nothing to compare with."""
    errors = {"accurate": 1e-8, slow_gates.UNSHIFTED: 1e-6, slow_gates.PEER: 2e-6}
    name, times = slow_gates.gain(errors)
    assert (name, round(times)) == (slow_gates.PEER, 200)
    assert slow_gates.gain({"accurate": 1e-8})[1] < slow_gates.REQUIRED


def test_every_error_is_a_row(found: dict[str, float]) -> None:
    """Names, errors, and quotients of the error of fast."""
    lines = slow_gates.table(found).splitlines()
    assert len(lines) == 2 + len(found)
    error = found["accurate"]
    assert f"| accurate | {error:.3g} | {found['fast'] / error:.3g} |" in lines
