"""The functions of functions.cuh over all 2^32 inputs on a CUDA device.

    python benchmarks/cuda_function_device.py FILE.npz

Writes what functions_check.cu finds: hashes and errors of every function, the hash of
ex2.approx.ftz's table (a new one also whole, packed as kernels/models has it), and how
often the hardware differs from what its table says. `benchmarks/cuda_functions.py`
reads the file and compares it with the CPU.
"""

import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.libs import nvrtc

from scancheck.kernels.models import cuda_ex2

SOURCES = Path(__file__).parents[1] / "kernels" / "cuda" / "sources"
REPRODUCIBLE = ("exp2", "exp", "expm1", "log", "log1p", "softplus", "sigmoid", "silu")
FAST = ("exp2", "exp2_shifted", "exp", "log", "softplus", "sigmoid", "silu")
TABULATED = ("exp", "softplus", "sigmoid", "silu")
CHECKS = (
    *(f"reproducible_{name}" for name in REPRODUCIBLE),
    *(f"fast_{name}" for name in FAST),
    *(f"tabulated_{name}" for name in TABULATED),
    "hardware_lg2",
    "hardware_rcp",
)
BLOCKS = 1 << 12  # of 2^20 inputs
VARIANTS = ("exp2_below", "exp2_in_range", "exp2_product", "exp_below", "expm1_below")

Arrays = dict[str, Any]


def as_float(bits: Any) -> np.float32:
    """The fp32 number of some bits."""
    return np.uint32(bits).view(np.float32)


def compiled() -> Any:
    """The module; not by RawModule, to which CuPy adds -ftz=true."""
    code = (SOURCES / "functions_check.cu").read_text(encoding="utf-8")
    program = nvrtc.createProgram(code, "check.cu", (), ())
    architecture = f"-arch=sm_{cupy.cuda.Device().compute_capability}"
    options = (architecture, "-std=c++17", "--fmad=false", f"-I{SOURCES}")
    nvrtc.compileProgram(program, options)
    module = cupy.cuda.function.Module()
    module.load(nvrtc.getCUBIN(program))
    return module


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
        f" beyond its slope {sizes[:, 1].max():.4f} u, flushed {sizes[:, 2].max():.4f},"
        f" wrong kinds {table[:, 3].sum()}",
        flush=True,
    )


def variants(module: Any, found: Arrays) -> None:
    """Inputs for which a function without clamps gives other bits in its domain."""
    counts = cupy.zeros(len(VARIANTS), cupy.uint64)
    module.get_function("count_other_variants")((BLOCKS,), (256,), (counts,))
    found["variants"] = counts.get()
    print("other bits:", dict(zip(VARIANTS, counts.get().tolist(), strict=True)))


def table_of_ex2(module: Any, found: Arrays) -> None:
    """The table, and all inputs against it."""
    values = cupy.empty(cuda_ex2.SIZE, cupy.float32)
    module.get_function("ex2_table")((cuda_ex2.SIZE // 256,), (256,), (values,))
    counts, examples = cupy.zeros(512, cupy.uint64), cupy.zeros(121, cupy.uint32)
    arguments = (values, counts, examples)
    module.get_function("ex2_compare")((BLOCKS,), (256,), arguments)
    found["ex2_mismatches"], found["ex2_examples"] = counts.get(), examples.get()
    print("inputs for which ex2 is unlike its table:", int(counts.get().sum()))
    for bits, is_, model in examples.get()[1 : 1 + 3 * 10].reshape(-1, 3):
        if is_ != model:
            print(f"  {as_float(bits)!r}: {as_float(is_)!r}, not {as_float(model)!r}")
    host = values.get()
    digest = hashlib.sha256(host.tobytes()).hexdigest()
    known = [name for name, value in cuda_ex2.SHA256.items() if value == digest]
    found["ex2_hash"] = digest
    if not known:
        found["ex2_packed"] = np.frombuffer(cuda_ex2.packed(host), np.uint8)
    exact = np.exp2(np.arange(cuda_ex2.SIZE) * 2.0**-23)
    error = (host.astype(np.float64) / exact - 1.0) * 2.0**24
    print(
        f"table of {' '.join(known) or 'an unknown architecture'}: error"
        f" {error.min():.4f} to {error.max():.4f} u, mean {error.mean():.5f},"
        f" falls {int((np.diff(host) < 0).sum())} times, sha256 {digest}",
        flush=True,
    )


def main(path: str) -> int:
    """Every stage, whether or not the one before failed."""
    module = compiled()
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    found: Arrays = {"device": properties["name"].decode()}
    stages: list[Callable[[], None]] = [lambda: table_of_ex2(module, found)]
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
