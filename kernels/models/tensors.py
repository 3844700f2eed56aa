"""Between torch tensors and the arrays that the models compute on."""

import numpy as np
import torch

from scancheck.formats import FORMATS, Format, round_array
from scancheck.kernels.models.arithmetic import Array

_FORMAT_OF_DTYPE = {getattr(torch, fmt.torch_name): fmt for fmt in FORMATS.values()}


def format_of(tensor: torch.Tensor) -> Format:
    """The format of a tensor's dtype."""
    return _FORMAT_OF_DTYPE[tensor.dtype]


def to_array(tensor: torch.Tensor) -> Array:
    """The tensor's values in float64, exactly."""
    return np.asarray(tensor.detach().to(torch.float64).numpy())


def to_tensor(fmt: Format, x: Array) -> torch.Tensor:
    """The values rounded once into `fmt`, as a new tensor of its dtype."""
    # The array already holds values of the format, so that torch's own cast, which
    # would round twice, has nothing to round.
    rounded = round_array(fmt, x.astype(np.float64))
    return torch.from_numpy(rounded).to(getattr(torch, fmt.torch_name))


def state_format(storage: Format) -> Format:
    """The format of state tensors beside tensors of `storage`: fp32, or fp64."""
    return FORMATS["fp64" if storage.name == "fp64" else "fp32"]
