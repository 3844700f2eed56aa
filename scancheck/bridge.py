"""Values to torch tensors and back, exactly.

Everything numeric outside kernels is a float64 array that holds values of some format;
only the tensors of a kernel's call have that format as their dtype.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scancheck.formats import FloatArray, format_named


def torch_dtype(dtype_name: str) -> torch.dtype:
    """The torch dtype that stores the format of this name.

    Raises CaseInvalid for an unknown format.
    """
    dtype = getattr(torch, format_named(dtype_name).torch_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def to_torch(values: FloatArray, dtype_name: str) -> Tensor:
    """A new contiguous CPU tensor that holds exactly these values.

    Raises ValueError with the first place where the format lacks the value.
    """
    exact = np.array(values, dtype=np.float64, order="C")
    tensor = torch.from_numpy(exact).to(torch_dtype(dtype_name))
    changed = bits_differ(from_torch(tensor), exact)
    if changed.any():
        index = tuple(int(i) for i in np.argwhere(changed)[0])
        raise ValueError(
            f"to_torch: expected values of {dtype_name}; "
            f"got {float(exact[index]).hex()} at {index}"
        )
    return tensor


def from_torch(tensor: Tensor) -> FloatArray:
    """The tensor's values as a new contiguous float64 array, without its gradient."""
    values = tensor.detach().to("cpu", torch.float64)
    return np.array(values.resolve_neg().numpy(), order="C")


def bits_differ(left: FloatArray, right: FloatArray) -> NDArray[np.bool_]:
    """Where two arrays of one shape hold other bits; all NaN count as one value."""
    other_bits = left.view(np.int64) != right.view(np.int64)
    return np.asarray(other_bits & ~(np.isnan(left) & np.isnan(right)))
