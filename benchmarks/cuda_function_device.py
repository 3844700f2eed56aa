"""The functions of functions.cuh over all 2^32 inputs on a CUDA device.

    python benchmarks/cuda_function_device.py FILE.npz

Writes what functions_check.cu finds: hashes and errors of every function, the table of
ex2.approx.ftz for positive and for negative arguments (as small differences from
2**x rounded to nearest), and how often the hardware differs from its tables.
`benchmarks/cuda_functions.py` reads the file and compares it with the CPU.
"""

import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

SOURCES = Path(__file__).parents[1] / "kernels" / "cuda" / "sources"
REPRODUCIBLE = ("exp2", "exp", "expm1", "log", "log1p", "softplus", "sigmoid", "silu")
FAST = ("exp2", "exp", "log", "softplus", "sigmoid", "silu")
CHECKS = (
    *(f"reproducible_{name}" for name in REPRODUCIBLE),
    *(f"fast_{name}" for name in FAST),
    "hardware_lg2",
    "hardware_rcp",
)
BLOCKS = 1 << 12  # of 2^20 inputs
VARIANTS = ("exp2_below", "exp2_in_range", "exp2_product", "exp_below", "expm1_below")
TABLE = 1 << 23

Arrays = dict[str, Any]


def as_float(bits: Any) -> np.float32:
    """The fp32 number of some bits."""
    return np.uint32(bits).view(np.float32)


def check(module: Any, name: str, found: Arrays) -> None:
    """Hashes and errors of one function, into `found`."""
    sums = cupy.zeros(1 << 10, cupy.uint64)
    errors = cupy.zeros((1 << 9, 4), cupy.uint64)
    module.get_function(f"check_{name}")((BLOCKS,), (256,), (sums, errors))
    table = errors.get()
    sizes = (table[:, :3] >> np.uint64(32)).astype(np.uint32).view(np.float32)
    inputs = (table[:, :3] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    found[f"{name}_sums"] = sums.get()
    found[f"{name}_errors"], found[f"{name}_inputs"] = sizes, inputs
    found[f"{name}_kinds"] = table[:, 3]
    worst = sizes[:, 0].argmax()
    print(
        f"{name}: relative {sizes[worst, 0]:.4f} u at {as_float(inputs[worst, 0])!r},"
        f" flushed {sizes[:, 2].max():.4f}, wrong kinds {table[:, 3].sum()}",
        flush=True,
    )


def variants(module: Any, found: Arrays) -> None:
    """Inputs for which a function without clamps gives other bits in its domain."""
    counts = cupy.zeros(len(VARIANTS), cupy.uint64)
    module.get_function("count_other_variants")((BLOCKS,), (256,), (counts,))
    found["variants"] = counts.get()
    print("other bits:", dict(zip(VARIANTS, counts.get().tolist(), strict=True)))


def rounding_differences(table: Any, sign: float) -> Any:
    """The table minus 2**x rounded to nearest, in units of the last place."""
    x = np.arange(TABLE) * (sign * 2.0**-23)
    nearest = np.exp2(x).astype(np.float32)
    return (table.view(np.int32) - nearest.view(np.int32)).astype(np.int8)


def tables(module: Any, found: Arrays) -> None:
    """Both tables, and all inputs against them."""
    positive = cupy.empty(TABLE, cupy.float32)
    negative = cupy.empty(TABLE, cupy.float32)
    module.get_function("ex2_tables")((TABLE // 256,), (256,), (positive, negative))
    counts, examples = cupy.zeros(512, cupy.uint64), cupy.zeros(121, cupy.uint32)
    arguments = (positive, negative, counts, examples)
    module.get_function("ex2_compare")((BLOCKS,), (256,), arguments)
    found["ex2_mismatches"], found["ex2_examples"] = counts.get(), examples.get()
    print("ex2 unlike its tables:", int(counts.get().sum()))
    for bits, is_, model in examples.get()[1:31].reshape(-1, 3):
        print(f"  {as_float(bits)!r}: {as_float(is_)!r}, table {as_float(model)!r}")
    up, down = positive.get(), negative.get()
    for name, table, sign in (("positive", up, 1.0), ("negative", down, -1.0)):
        exact = np.exp2(np.arange(TABLE) * (sign * 2.0**-23))
        error = (table.astype(np.float64) / exact - 1.0) * 2.0**24
        differences = rounding_differences(table, sign)
        found[f"ex2_{name}"] = differences
        found[f"ex2_{name}_hash"] = hashlib.sha256(table.tobytes()).hexdigest()
        steps = np.diff(table) * sign
        print(
            f"table {name}: error {error.min():.4f} to {error.max():.4f} u,"
            f" mean {error.mean():.5f}, falls {int((steps < 0).sum())} times,"
            f" differences {np.unique(differences, return_counts=True)},"
            f" sha256 {found[f'ex2_{name}_hash']}",
            flush=True,
        )
    # Two's and one's complement of the fraction, one below in the integer part.
    twos, ones = up[:0:-1] / 2, up[::-1] / 2
    print(
        f"negative table as the positive one at 1 - f: {int((down[1:] == twos).sum())}"
        f" of {TABLE - 1}; one place below: {int((down == ones).sum())} of {TABLE}"
    )


def main(path: str) -> int:
    """Every stage, whether or not the one before failed."""
    code = (SOURCES / "functions_check.cu").read_text(encoding="utf-8")
    module = cupy.RawModule(
        code=code, options=("-std=c++17", "--fmad=false", f"-I{SOURCES}")
    )
    found: Arrays = {}
    stages: list[Callable[[], None]] = [lambda: tables(module, found)]
    stages.append(lambda: variants(module, found))
    stages += [lambda name=name: check(module, name, found) for name in CHECKS]
    failed = 0
    for stage in stages:
        try:
            stage()
        except Exception:
            failed += 1
            traceback.print_exc()
    np.savez_compressed(path, **found)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
