"""Triton kernels on a machine without a GPU, in Triton's own interpreter.

`activate` switches this process over, once and for good; it refuses where torch has a
CUDA device, since there the compiled kernels are what is to be judged. The interpreter
runs a kernel block by block on NumPy arrays: it shows indexing, masks, algebra and the
points of rounding, but no races, no order of accumulation on tensor cores, no TF32 and
no fault of the compiler. Products of fp32 and of fp16 are right, those of bf16 are not
(`BF16_IS_WRONG`).

Each change below is made because kernels that run compiled do not run without it, but
for that of scans, which take minutes (`triton_interpreted_scans`); all were needed with
Triton 3.9.0 and flash-linear-attention 0.6.0. (Interpreters much older than that, as of
3.5.1, fail by themselves with NumPy 2.4: install a newer Triton.)

- `@triton.jit` makes interpreted functions, those of Triton's library included.
- The autotuner times nothing: it has no device. Its first configuration is taken, so
  that the same kernel runs each time.
- A loop counter over `range` or `tl.range` is a tensor, as in compiled code, and
  answers `i.to(tl.int64)`; interpreted it was a Python int. `tl.static_range` stays one
  of ints.
- A name that stands for a function of `triton.language` (`gather = tl.gather`) is
  looked up anew at each call. Interpreted functions are put into `triton.language` for
  the time of a launch alone, and such a name would keep the one for compiled code.
- A comparison is of type int1. Triton 3.9.0 leaves it the type of what is compared, and
  a scalar one, spread over a block, is then no mask (chunk_hgrn).
- Overflow and NaN inside a kernel are silent, as on a GPU; NumPy would warn.
- A number that Python asks for an index is one of an array with one element, which
  NumPy 2.4 does not turn into an int by itself (Triton 3.6.0).
"""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import ModuleType
from typing import Any

from scancheck.adapters.triton_configurations import take_first
from scancheck.adapters.triton_interpreted_scans import scan_by_blocks
from scancheck.errors import KernelUnavailable

BF16_IS_WRONG = "in Triton's interpreter; not in bf16, which is wrong there"
"""Measured with Triton 3.8.0 and 3.9.0: tl.dot of bf16 blocks works on bit patterns."""

_PACKAGES = ("fla",)  # which are to be imported after it, for they look for devices
# Packages whose kernels are made interpreted ones where they were imported before.
_TURNED = ("triton", "accelerated_scan", "mlstm_kernels")


@cache
def activate() -> None:
    """From here on Triton kernels of this process are interpreted.

    Raises KernelUnavailable where torch has a CUDA device, and where a package was
    imported before whose kernels would stay compiled ones.
    """
    import torch

    if torch.cuda.is_available():
        raise KernelUnavailable(
            "Triton kernels are interpreted only where there is no CUDA device; "
            "here is one: give the kernel tensors that are on it"
        )
    import triton

    if not hasattr(triton, "knobs"):
        raise KernelUnavailable(
            f"Triton {triton.__version__} cannot be told to interpret; "
            "expected 3.4 or newer"
        )
    if not triton.knobs.runtime.interpret:
        _refuse_compiled()
        with _environment_kept():
            triton.knobs.runtime.interpret = True
        _interpret_what_is_loaded()
    take_first()
    _rewrite_kernels()
    _type_comparisons()
    _take_single_elements()
    scan_by_blocks()
    _silence_arithmetic()


def _refuse_compiled() -> None:
    for package in _PACKAGES:
        if package in sys.modules:
            raise KernelUnavailable(
                f"{package} was imported before Triton's interpreter was on; import it "
                "after the first call of a kernel, or set TRITON_INTERPRET=1"
            )


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Within, a setting of Triton's is not left in the environment, where it writes it.

    A process that is started from this one decides for itself.
    """
    before = os.environ.get("TRITON_INTERPRET")
    yield
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = before


def _interpret_what_is_loaded() -> None:
    """Makes functions interpreted that are compiled ones, triton.language's included.

    They are where triton was imported, by torch's compiler for one, before `activate`.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    # The interpreter knows the combine functions of tl.standard by identity.
    interpreted = cache(InterpretedFunction)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _TURNED and isinstance(module, ModuleType):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    setattr(module, attribute, interpreted(value.fn))


def _rewrite_kernels() -> None:
    from triton.runtime.interpreter import ASTTransformer, FunctionRewriter

    class WithTensorCounters(ASTTransformer):  # type: ignore[misc]
        """Triton's own rewriting of a kernel's source, and counters made tensors."""

        def visit_For(self, node: ast.For) -> ast.AST:
            found: ast.AST = self.generic_visit(node)
            if _counts(node.iter) and isinstance(node.target, ast.Name):
                # `i = i`, which Triton's rewriting of assignments makes a tensor.
                name = node.target.id
                same = ast.Assign(
                    targets=[ast.Name(id=name, ctx=ast.Store())],
                    value=ast.Name(id=name, ctx=ast.Load()),
                )
                node.body.insert(0, self.visit(ast.copy_location(same, node)))
            return found

    FunctionRewriter.ast_transformer = WithTensorCounters()
    original = FunctionRewriter.rewrite_ast

    @wraps(original)
    def rewrite_ast(self: Any) -> Any:
        _look_up_at_call(self.fn.__globals__)
        return original(self)

    FunctionRewriter.rewrite_ast = rewrite_ast


def _counts(iterated: ast.expr) -> bool:
    """Whether a loop's counter is a run-time value in compiled code."""
    called = ast.unparse(iterated.func) if isinstance(iterated, ast.Call) else ""
    return called in ("range", "tl.range")


def _look_up_at_call(names: dict[str, Any]) -> None:
    """Replaces functions of triton.language among a module's global names."""
    import triton.language as tl

    def late(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)

    for name, value in list(names.items()):
        if inspect.isfunction(value) and tl.core.is_builtin(value):
            names[name] = late(value.__name__)


def _type_comparisons() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    original = InterpreterBuilder.binary_op

    @wraps(original)
    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        found = original(self, lhs, rhs, op)
        if found.data.dtype == bool:
            found.dtype = tl.int1
        return found

    InterpreterBuilder.binary_op = binary_op


def _take_single_elements() -> None:
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    @wraps(original)
    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda x: int(x.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _silence_arithmetic() -> None:
    import numpy as np
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    @wraps(launch)
    def silent(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *args, **kwargs)

    GridExecutor.__call__ = silent
