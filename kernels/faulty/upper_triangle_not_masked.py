"""Planted bug: the upper triangle of the decay matrix is masked after its exponential.

exp(c_t - c_j) overflows for tokens j after t where gates are strong, and 0 times
infinity is NaN.
"""

from torch import Tensor

from scancheck.kernels.faulty.chunk_form_torch import ChunkParts


def masked_after(exponents: Tensor, mask: Tensor) -> Tensor:
    """exp of all differences, those of later tokens times 0."""
    return exponents.exp() * mask.to(exponents.dtype)


FORM = ChunkParts(pair_decays=masked_after)
