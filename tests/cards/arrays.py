"""Arrays that keep to themselves like those of a card, in memory of this processor.

As CuPy's they are no NumPy arrays and are not converted to them unless asked: what
meets an array of NumPy's, of no axes too, raises TypeError, and only scalars may. NumPy
hands its functions on to them; those that CuPy lacks, or has with fewer arguments, are
refused where CuPy is installed.
"""

import importlib.util
import inspect
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

SCALARS = bool | int | float | np.generic
# Functions whose results CuPy lays out anew; NumPy's may have the layout of operands.
NEW = (np.concatenate, np.stack, np.where)
# CuPy has these by way of cuBLAS, which may be missing where it works otherwise.
OF_MATRICES = ("einsum", "matmul", "dot", "tensordot", "inner", "vdot")


class CardArray(NDArrayOperatorsMixin):
    """An array of a card that there is none of."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        if method != "__call__":
            raise TypeError(f"CuPy has no {ufunc.__name__}.{method} in general")
        _check_signature(ufunc, inputs, {})
        if not all(isinstance(x, CardArray | SCALARS) for x in inputs):
            raise TypeError(f"Unsupported types of {ufunc.__name__}: {inputs}")
        out = options.pop("out", None)
        if out is None:
            return _wrapped(ufunc(*_bare(inputs), order="C", **options))
        ufunc(*_bare(inputs), out=_bare(out), **options)
        return out[0]

    def __array_function__(
        self, function: Any, _: Any, args: Any, options: dict[str, Any]
    ) -> Any:
        _check_signature(function, args, options)
        if options.get("shape") == ():
            del options["shape"]  # CuPy takes that for none
        found = function(*_bare(args), **_bare(options))
        return _wrapped(np.ascontiguousarray(found) if function in NEW else found)

    def __getitem__(self, index: Any) -> Any:
        return _wrapped(self._array[_bare_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_bare_index(index)] = _bare(value)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __int__(self) -> int:
        return int(self._array)

    def __repr__(self) -> str:
        return f"CardArray({self._array!r})"

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    shape = property(lambda self: self._array.shape)
    strides = property(lambda self: self._array.strides)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    itemsize = property(lambda self: self._array.itemsize)
    nbytes = property(lambda self: self._array.nbytes)
    flags = property(lambda self: self._array.flags)

    @property
    def data(self) -> SimpleNamespace:
        """Where the first entry lies, as `ptr`."""
        return SimpleNamespace(ptr=self._array.ctypes.data)

    def copy(self) -> Any:
        """A copy in C order."""
        return CardArray(self._array.copy())

    def astype(self, dtype: Any) -> Any:
        """A copy in another format."""
        return CardArray(_flushed(_flushed(self._array).astype(dtype)))

    def view(self, dtype: Any) -> Any:
        """The same bits in another format."""
        return CardArray(self._array.view(dtype))

    def reshape(self, *shape: int) -> Any:
        """The entries in another shape."""
        return CardArray(self._array.reshape(*shape))

    def transpose(self, *axes: int) -> Any:
        """The axes permuted."""
        return CardArray(self._array.transpose(*axes))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The sum over axes."""
        return _wrapped(self._array.sum(axis, keepdims=keepdims))

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The largest along axes."""
        return _wrapped(self._array.max(axis, keepdims=keepdims))

    def any(self, axis: Any = None) -> Any:
        """Whether one along axes is true."""
        return _wrapped(self._array.any(axis))

    def all(self, axis: Any = None) -> Any:
        """Whether all along axes are true."""
        return _wrapped(self._array.all(axis))


def _flushed(array: NDArray[Any]) -> NDArray[Any]:
    """CuPy compiles its kernels so that subnormal numbers of fp32 are zeros."""
    if array.dtype != np.float32:
        return array
    below = np.abs(array) < np.finfo(np.float32).smallest_normal
    return np.where(below, np.copysign(np.float32(0.0), array), array)


class CardModule:
    """The array module of that card: what is made there, and the way there and back."""

    ndarray = CardArray
    float64 = np.float64

    def asarray(self, values: Any, dtype: Any = None) -> CardArray:
        """The values on the card: themselves if they are there, else a copy."""
        if isinstance(values, CardArray):
            same = dtype is None or values.dtype == dtype
            return values if same else values.astype(dtype)
        return CardArray(np.asarray(values, dtype=dtype).copy())

    def ascontiguousarray(self, values: CardArray) -> CardArray:
        """The array in C order."""
        return values if values.flags.c_contiguous else values.copy()

    def asnumpy(self, values: CardArray) -> NDArray[Any]:
        """A copy as NumPy's array."""
        return values._array.copy()

    def zeros(self, shape: Any) -> CardArray:
        """Zeros of fp64."""
        return CardArray(np.zeros(shape))

    def ones(self, shape: Any) -> CardArray:
        """Ones of fp64."""
        return CardArray(np.ones(shape))

    def empty(self, shape: Any) -> CardArray:
        """Room for fp64, of no use before it is written to."""
        return CardArray(np.full(shape, np.nan))

    def broadcast_to(self, values: CardArray, shape: Any) -> CardArray:
        """Axes of size 1 repeated."""
        return CardArray(np.broadcast_to(values._array, shape))

    def stack(self, values: Any) -> CardArray:
        """Arrays of the card along a new first axis."""
        return CardArray(np.stack(_bare(tuple(values))))


def _bare(x: Any) -> Any:
    """What is inside; raises TypeError where an array of NumPy's is among it."""
    if isinstance(x, CardArray):
        return x._array
    if isinstance(x, tuple | list):
        return type(x)(_bare(one) for one in x)
    if isinstance(x, dict):
        return {name: _bare(one) for name, one in x.items()}
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)} beside an array of a card")
    return x


def _bare_index(index: Any) -> Any:
    """An index, in which arrays of either kind may stand."""
    if isinstance(index, tuple):
        return tuple(_bare_index(one) for one in index)
    return index._array if isinstance(index, CardArray) else index


def _wrapped(found: Any) -> Any:
    """Results on the card; those without axes too."""
    if isinstance(found, tuple | list):
        return type(found)(_wrapped(one) for one in found)
    return CardArray(np.asarray(found)) if _is_of_arrays(found) else found


def _is_of_arrays(found: Any) -> bool:
    return isinstance(found, np.ndarray | np.generic)


@cache
def _cupy() -> Any:
    """CuPy, which needs no card to be asked what it has; None where it is missing."""
    if importlib.util.find_spec("cupy") is None:
        return None
    import cupy

    return cupy


def _check_signature(function: Any, args: Any, options: dict[str, Any]) -> None:
    """Raises TypeError where CuPy has no such function with such arguments."""
    name = function.__name__
    if name in OF_MATRICES:
        raise TypeError(f"{name} needs a library that CuPy may lack")
    if (cupy := _cupy()) is None:
        return
    if not hasattr(cupy, name):
        raise TypeError(f"CuPy has no {name}")
    if inspect.isfunction(its := getattr(cupy, name)):
        inspect.signature(its).bind(*args, **options)
