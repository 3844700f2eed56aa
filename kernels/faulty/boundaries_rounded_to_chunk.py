"""Planted bug: sequences are cut at the edges of chunks before their offsets."""

from scancheck.kernels.faulty.sequences_torch import SequenceForm


def rounded_down(offsets: list[int], chunk: int) -> list[int]:
    """The offsets of the sequences; right where all are edges, and at the end."""
    return [*(offset // chunk * chunk for offset in offsets[:-1]), offsets[-1]]


FORM = SequenceForm(placed=rounded_down)
