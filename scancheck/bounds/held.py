"""Which values a format holds, for arrays of NumPy's and of a card."""

from typing import Any

import numpy as np

from scancheck.formats import FP32, Format, round_array
from scancheck.oracles import cuda_card

# Formats that arrays of a card round to.
NATIVE = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


def holds(fmt: Format, values: Any) -> Any:
    """Where rounding to the format changes nothing: a mask, where the values are.

    What a card's arrays have no format for is rounded here. Their conversion to fp32 is
    CuPy's, which makes zeros of subnormal numbers: those are held where they are whole
    multiples of the smallest one, which scaling by a power of two tells exactly.
    """
    if isinstance(values, np.ndarray):
        return round_array(fmt, values) == values
    native = NATIVE.get(fmt.name)
    if native is not None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            normal = values.astype(native).astype(np.float64) == values
            if fmt != FP32:
                return normal
            multiple = values * (1.0 / fmt.smallest_subnormal)
            below = np.abs(values) < fmt.smallest_normal
            return np.where(below, np.rint(multiple) == multiple, normal)
    here = cuda_card.on_cpu(values)
    return cuda_card.arrays().asarray(round_array(fmt, here) == here)
