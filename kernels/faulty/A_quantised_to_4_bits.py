"""Planted bug: A is quantised to 4 bits, one scale for the whole matrix."""

from scancheck.kernels.faulty.calling_form import Form, Given
from scancheck.kernels.faulty.quantised_weights import quantised

BITS = 4


def given(tensors: Given) -> Given:
    """The tensors of the call, A in 7 steps on either side of zero."""
    return tensors | {"A": quantised(tensors["A"], BITS)}


FORM = Form(given=given)
