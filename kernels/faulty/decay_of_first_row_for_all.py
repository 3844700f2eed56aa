"""Planted bug: every batch row decays by the gates of the first: a lost stride."""

from scancheck.kernels.faulty.calling_form import Form, Given


def given(tensors: Given) -> Given:
    """The tensors of the call, with the first row's a or delta in every row."""
    gates = {name: x for name, x in tensors.items() if name in ("a", "delta")}
    return tensors | {name: x[:1].expand_as(x) for name, x in gates.items()}


FORM = Form(given=given)
