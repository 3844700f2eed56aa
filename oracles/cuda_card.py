"""Running the CUDA oracles' kernels: sources beside this file, arrays of CuPy.

Kernels take structs by value. Every argument is a NumPy array, whose bytes are the
argument; kernels run on CuPy's current stream.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCES = Path(__file__).parent / "cuda"

WARP = 32  # threads
# Of `column_scan`: keys of a column that a thread holds, and threads that share one.
COLUMN_SHARES = ((4, 2), (4, 4), (4, 8), (4, 16), (4, 32), (8, 32))
# The instances of each source.
EXPRESSIONS = {
    "ball_elementwise.cu": tuple(
        f"elementwise<{name}>"
        for name in (
            "Add",
            "Multiply",
            "OneMinus",
            "Exp",
            "Softplus",
            "Sigmoid",
            "Reciprocal",
        )
    ),
    "fp64_scan.cu": (
        "scan_lanes<true, false, 16>",
        "scan_lanes<true, true, 8>",
        "scan_lanes<false, false, 8>",
        "scan_lanes<false, true, 4>",
        *(
            f"scan_keys<{keys}, {raised}, {companions}, {exact}>"
            for keys in (8, 4, 2, 1)
            for raised in ("true", "false")
            for companions in ("true", "false")
            for exact in ("true", "false")
        ),
        "scan_cotangents",
    ),
    "judge_lanes.cu": (
        *(
            f"judge_lanes<{stored}, {trees}, {compensated}, {plain}, 4>"
            for stored in ("float", "double")
            for trees in ("false", "true")
            for compensated in ("false", "true")
            for plain in ("false", "true")
        ),
        "add_tallies",
    ),
    "bounds_tile.cu": (
        *(
            f"{kernel}<{trees}, {compensated}{keys}>"
            for kernel, keys in (
                *(
                    ("error_forward", f", {keys}, {shares}")
                    for keys, shares in ((4, 1), (2, 1), (1, 1), (2, 8))
                ),
                ("error_adjoint", ""),
                ("error_end", ""),
            )
            for trees in ("false", "true")
            for compensated in ("false", "true")
        ),
        "error_product",
        "moment_forward",
    ),
    "bounds_elementwise.cu": ("error_given", "error_exp"),
    "double_double_elementwise.cu": tuple(
        f"elementwise<{name}>"
        for name in ("Add", "Multiply", "Exp", "Softplus", "Sigmoid", "Reciprocal")
    ),
    "column_scan.cu": (
        *(f"column_scan<{keys}, {shares}>" for keys, shares in COLUMN_SHARES),
        "transition_norms",
    ),
    "double_double_scan.cu": (
        "scan_lanes<true, 16>",
        "scan_lanes<false, 4>",
        *(
            f"scan_keys<{keys}, {driven}, {read}>"
            for keys in (4, 2, 1)
            for driven in ("true", "false")
            for read in ("true", "false")
        ),
    ),
}

FRACTION, SIGN = 2**23 - 1, -(2**31)  # bits of fp32

AXES = 4  # of an operand of the elementwise kernels

# A block for each few threads while blocks are fewer than the multiprocessors of a
# card: each thread has a whole sequence to itself.
LARGE_BLOCK, SMALL_BLOCK, SPREAD = 128, 32, 2**15

Argument = NDArray[Any]


@cache
def arrays() -> Any:
    """The array module of the card."""
    import cupy

    return cupy


def device_index() -> int:
    """The index of the current device."""
    return int(arrays().cuda.runtime.getDevice())


def float64(values: Any) -> Any:
    """The values on the card; zeros are made there."""
    xp = arrays()
    if isinstance(values, np.ndarray) and not values.any():
        return xp.zeros(values.shape)
    if isinstance(values, xp.ndarray) and values.dtype == np.float32:
        return _widened(values)
    return xp.asarray(values, dtype=np.float64)


def _widened(values: Any) -> Any:
    """fp32 values of the card as float64.

    CuPy's conversion makes zeros of subnormal ones. Those are their fractions, which
    are integers, times the smallest one.
    """
    values = arrays().ascontiguousarray(values)
    bits = values.view(np.int32)
    size = (bits & FRACTION).astype(np.float64) * 2.0**-149
    below = (bits & ~(FRACTION | SIGN)) == 0
    return np.where(below, np.copysign(size, bits), values.astype(np.float64))


def on_cpu(part: Any) -> NDArray[Any]:
    """The array as NumPy's."""
    return part if isinstance(part, np.ndarray) else arrays().asnumpy(part)


def launch(
    source: str, expression: str, threads: int, arguments: Sequence[Argument]
) -> None:
    """Runs a kernel with so many threads on the current device and stream."""
    if threads == 0:
        return
    from cupy_backends.cuda.api import driver

    from scancheck.kernels.cuda.compile import function

    kernel = function(str(SOURCES / source), expression)
    kept = [np.ascontiguousarray(argument) for argument in arguments]
    addresses = np.array([one.ctypes.data for one in kept], dtype=np.uintp)
    block = LARGE_BLOCK if threads >= SPREAD else SMALL_BLOCK
    stream = arrays().cuda.get_current_stream().ptr
    blocks = -(-threads // block)
    driver.launchKernel(
        kernel.ptr, blocks, 1, 1, block, 1, 1, 0, stream, addresses.ctypes.data, 0
    )


def in_few_axes(
    operation: Callable[..., Any], numbers: Sequence[Any], shape: tuple[int, ...]
) -> Any:
    """An elementwise operation on numbers of more axes than kernels take.

    The first axes are taken as one; for that, what repeats along them is written out.
    """
    xp, last = arrays(), shape[1 - AXES :]

    def folded(part: Any) -> Any:
        return xp.broadcast_to(part, shape).reshape(-1, *last)

    return operation(*(x.mapped(folded) for x in numbers)).reshape(*shape)


def flag(value: bool) -> Argument:
    """A bool argument."""
    return np.array([value], dtype=np.bool_)


def count(*values: int) -> Argument:
    """64-bit integers, as a struct of them or one."""
    return np.array(values, dtype=np.int64)


def operand(parts: Sequence[Any], axes: Sequence[int] = (0, 1, 2, 3)) -> Argument:
    """An Operand of the sources: parts whose axes of size 1 repeat; None is zero.

    `axes` says which of G, T, K, L each axis of a part is.
    """
    addresses = [address(part) for part in parts]
    strides = (stride for part in parts for stride in _strides(part, axes))
    return count(*addresses, *strides)


def numbers(*values: float) -> Argument:
    """float64 values, as a struct of them."""
    return np.array(values, dtype=np.float64)


def room(parts: Sequence[Any], axes: Sequence[int] = (0, 1, 2, 3)) -> Argument:
    """A Room of the sources: parts of the same strides, or None."""
    return count(*(address(part) for part in parts), *_strides(parts[0], axes))


def pointer(part: Any) -> Argument:
    """An array in C order, or None, as a pointer to its first entry.

    Raises TypeError for an array in another order: the kernel would not know.
    """
    if part is not None and not part.flags.c_contiguous:
        raise TypeError(
            "argument of a kernel: expected an array in C order; got strides "
            f"{part.strides} of shape {part.shape}"
        )
    return count(address(part))


def address(part: Any) -> int:
    """Where the first entry of an array lies; 0 for None and for an empty array.

    Raises TypeError for an array that is not on the card: a kernel that reads from an
    address of the host takes the device away from the whole process.
    """
    if part is None:
        return 0
    if not isinstance(part, arrays().ndarray):
        raise TypeError(
            "argument of a kernel: expected an array of the card; got "
            f"{type(part).__module__}.{type(part).__name__}"
        )
    return int(part.data.ptr) if part.size else 0


def _strides(part: Any, axes: Sequence[int]) -> list[int]:
    strides = [0, 0, 0, 0]
    if part is not None:
        if part.dtype != np.float64:
            raise TypeError(
                f"argument of a kernel: expected float64; got {part.dtype.name}"
            )
        for axis, size, stride in zip(axes, part.shape, part.strides, strict=True):
            strides[axis] = stride // part.itemsize if size > 1 else 0
    return strides
