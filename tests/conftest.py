"""Hypothesis profiles by name, and a guard for mpmath's global precision."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The gate gives the same examples on every run; `--hypothesis-profile scancheck-dev`
# looks for new ones. A profile is always loaded by name: Hypothesis would otherwise
# choose one of its own where the variable CI is set.
settings.register_profile(
    "scancheck-gate", deadline=None, derandomize=True, print_blob=True, max_examples=50
)
settings.register_profile(
    "scancheck-dev", deadline=None, print_blob=True, max_examples=100
)
settings.load_profile("scancheck-gate")


@pytest.fixture(autouse=True)
def _mpmath_precision_unchanged() -> Iterator[None]:
    """Fails a test that leaves mpmath's global precision changed, and restores it."""
    before = _mpmath_precision()
    yield
    after = _mpmath_precision()
    if before is not None and after != before:
        sys.modules["mpmath"].mp.prec = before
        pytest.fail(f"mpmath's global precision went from {before} to {after} bits")


def _mpmath_precision() -> int | None:
    """Bits of mpmath's global context; None where mpmath is not loaded."""
    mpmath = sys.modules.get("mpmath")
    return None if mpmath is None else int(mpmath.mp.prec)
