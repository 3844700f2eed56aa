"""Steps and speeds become the gates of an op."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scancheck.recipes.chains import inverse_softplus


@given(st.floats(2.0**-60, 2.0**15))
def test_inverse_softplus_reaches_the_step(step: float) -> None:
    """softplus of the result lies within a tenth of the step."""
    argument = float(inverse_softplus(np.array(step)))
    reached = np.logaddexp(0.0, argument)
    assert abs(reached - step) < 0.1 * step
