"""Error and bit equality of the CUDA functions, over all 2^32 inputs.

    python benchmarks/cuda_functions.py [--device FILE.npz] [-o FOLDER]

Without a device: each function of kernels/models/cuda_functions.py against fp64, some
minutes in all. FILE.npz comes from benchmarks/cuda_function_device.py; with it the
hashes of the device's Reproducible functions are compared with the CPU's, and the
errors of the Fast ones and of the hardware are told. Writes functions.md and the
hashes, functions.npz, into FOLDER; where those hashes are newer than the functions'
sources, the CPU's sweeps are taken from them. Exit code 1: other bits, or an error
beyond the stated one.
"""

from typing import Any

import numpy as np
from cuda_function_sweep import ERROR_BLOCK
from numpy.typing import NDArray

from scancheck.contract import ErrorModel

U = 2.0**-24
FIELDS = ("sums", "errors", "inputs", "wrong_kinds", "descents")
Rows = list[tuple[str, ...]]


def number_of(bits: Any) -> float:
    """The fp32 number whose bits these are."""
    return float(np.uint32(bits).view(np.float32))


def sizes() -> NDArray[np.float64]:
    """The largest |x| of each error block; infinite in those of infinity and NaN."""
    last = np.arange(1, 513, dtype=np.uint64) * np.uint64(ERROR_BLOCK) - np.uint64(1)
    with np.errstate(invalid="ignore"):
        found = np.abs(last.astype(np.uint32).view(np.float32).astype(np.float64))
    return np.where(np.isnan(found), np.inf, found)


def lowest(model: ErrorModel) -> NDArray[np.float64]:
    """What the model allows at the smallest |x| of each error block."""
    first = np.arange(512, dtype=np.uint64) * np.uint64(ERROR_BLOCK)
    x = np.abs(first.astype(np.uint32).view(np.float32).astype(np.float64))
    return model.e0 + model.e1 * np.where(np.isfinite(x), x, 0.0)


def within(
    name: str, model: ErrorModel, errors: NDArray[np.float32], inputs: NDArray[Any]
) -> bool:
    """Whether the largest error of every block is within the model at its input.

    silu is spared where sigmoid is flushed.
    """
    x = inputs[:, 0].astype(np.uint32).view(np.float32).astype(np.float64)
    allowed = model.e0 + model.e1 * np.abs(np.nan_to_num(x))
    spared = (x < -87.3) if name == "silu" else np.zeros(512, bool)
    return bool((spared | (errors[:, 0] <= allowed)).all())
