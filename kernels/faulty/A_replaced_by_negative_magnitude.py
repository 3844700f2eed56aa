"""Planted bug: A is taken as -|A|, as if no rate could be positive."""

from scancheck.kernels.faulty.calling_form import Form, Given


def given(tensors: Given) -> Given:
    """The tensors of the call, A with every sign made negative."""
    return tensors | {"A": -tensors["A"].abs()}


FORM = Form(given=given)
