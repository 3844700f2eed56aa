"""What a kernel returned, held against what its op's outputs are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scancheck.bridge import torch_dtype
from scancheck.errors import CaseInvalid
from scancheck.formats import FP32, FP64
from scancheck.ops.calling import sizes_of
from scancheck.ops.normal_form import Op, TensorSpec
from scancheck.recipes.inputs import Inputs
from scancheck.runner.outcome import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One output as the op defines it for these inputs."""

    name: str
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def bytes(self) -> int:
        """The memory that the output takes."""
        dtype = torch_dtype(self.dtype_name)
        return torch.Size(self.shape).numel() * dtype.itemsize


def dtype_name_of(spec: TensorSpec, dtype: str) -> str:
    """The format of one of the op's tensors: the case's dtype, or the state's."""
    if spec.kind == "storage":
        return dtype
    return FP64.name if dtype == FP64.name else FP32.name


def expected_outputs(op: Op, inputs: Inputs, dtype: str) -> tuple[Expected, ...]:
    """The op's outputs in order, with the sizes that the inputs have."""
    sizes = sizes_of(op, inputs.tensors)
    return tuple(
        Expected(
            name=spec.name,
            shape=tuple(sizes[axis] for axis in spec.axes),
            dtype_name=dtype_name_of(spec, dtype),
        )
        for spec in op.outputs
    )


def named_outputs(
    name: str, returned: Any, expected: tuple[Expected, ...]
) -> dict[str, Any]:
    """What came back by output name: a lone object is the first output, None is none.

    Raises CaseInvalid when the kernel returns more than the op has outputs.
    """
    items = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    if len(items) > len(expected):
        raise CaseInvalid(
            f"{name}: expected at most {len(expected)} outputs "
            f"({', '.join(e.name for e in expected)}); got {len(items)}"
        )
    return {
        e.name: item
        for e, item in zip(expected, items, strict=False)
        if item is not None
    }


def wrong_output(
    found: Mapping[str, Any], expected: tuple[Expected, ...], device: torch.device
) -> Problem | None:
    """The first output that is not what the op defines, or None."""
    if not found:
        names = ", ".join(e.name for e in expected)
        message = f"returned no output; expected a tensor, or a tuple of {names}"
        return Problem(kind="wrong_count", message=message)
    for want in expected:
        if want.name in found:
            problem = _wrong_tensor(want, found[want.name], device)
            if problem is not None:
                return problem
    return None


def _wrong_tensor(want: Expected, got: Any, device: torch.device) -> Problem | None:
    """What is wrong with one output besides its values, or None."""
    if not isinstance(got, Tensor) or got.layout != torch.strided:
        kind = f"{type(got).__module__}.{type(got).__qualname__}"
        got_kind = f"a {got.layout} tensor" if isinstance(got, Tensor) else kind
        message = f"{want.name}: expected a dense torch.Tensor; got {got_kind}"
        return Problem(kind="not_tensor", message=message)
    if got.device != device:
        message = f"{want.name}: expected it on {device}; got {got.device}"
        return Problem(kind="device", message=message)
    if tuple(got.shape) != want.shape:
        message = f"{want.name}: expected shape {want.shape}; got {tuple(got.shape)}"
        return Problem(kind="wrong_shape", message=message)
    if got.dtype != torch_dtype(want.dtype_name):
        message = (
            f"{want.name}: expected dtype {torch_dtype(want.dtype_name)}; "
            f"got {got.dtype}"
        )
        return Problem(kind="wrong_dtype", message=message)
    return None
