"""The fused multiply-add for compiled loops."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32, float64
from numba.extending import intrinsic


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c rounded once: LLVM's fma, one instruction where the processor has it.

    In float32 where all three are, else in float64.
    """
    kind = float32 if (a, b, c) == (float32, float32, float32) else float64

    def lower(context: Any, builder: ir.IRBuilder, call: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return kind(kind, kind, kind), lower


_intrinsic: Any = intrinsic
fma: Callable[[Any, Any, Any], Any] = _intrinsic(_fma)
