"""The fused multiply-add for compiled loops."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float64
from numba.extending import intrinsic


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c rounded once: LLVM's fma, one instruction where the processor has it."""

    def lower(context: Any, builder: ir.IRBuilder, call: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return float64(float64, float64, float64), lower


_intrinsic: Any = intrinsic
fma: Callable[[float, float, float], float] = _intrinsic(_fma)
