"""Every kernel by name, and a user's target as kernels.

A target is a registered name, `package.module:callable`, `path/file.py:callable`, or in
Python the callable itself. What it names may also be a `Kernel`, with its contract.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from scancheck.adapters.catalog import adapters
from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.catalog import kernels as cuda
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.faulty.chunk_catalog import chunk_controls, chunk_faulty
from scancheck.kernels.faulty.sequence_catalog import (
    sequence_controls,
    sequence_faulty,
)
from scancheck.kernels.faulty.step_catalog import step_controls, step_faulty
from scancheck.kernels.models.catalog import models
from scancheck.kernels.models.decode_catalog import decode_models
from scancheck.ops.custom import CustomOp
from scancheck.recipes.catalog import check_has_recipes, ops_with_recipes
from scancheck.recipes.op_rules import register
from scancheck.target import load, suggestion

_FORMS = "a registered name, package.module:callable or path/file.py:callable"


def kernels() -> tuple[Kernel, ...]:
    """Every registered kernel, also those that cannot run here."""
    planted = (*faulty(), *step_faulty(), *chunk_faulty(), *sequence_faulty())
    sound = (*controls(), *step_controls(), *chunk_controls(), *sequence_controls())
    return (*models(), *decode_models(), *cuda(), *planted, *sound, *adapters())


def resolve_target(
    target: str | Kernel | Callable[..., Any], op: str | None
) -> tuple[Kernel, ...]:
    """The kernels that a target names, all of them able to run here.

    `op` may be None where the kernel is registered or says it itself. Raises
    CaseInvalid with what to write instead, or KernelUnavailable with the reason.
    """
    if op is not None:
        _register_if_own(op)
        check_has_recipes(op)
    found = _found(target, op)
    if op is not None and found.op != op:
        raise CaseInvalid(f"{found.name} is a kernel of {found.op}; got --op {op}")
    if found.unavailable is not None:
        raise KernelUnavailable(f"{found.name} cannot run here: {found.unavailable}")
    return (found,)


def _register_if_own(op: str) -> None:
    """Takes in the op that `path/file.py:NAME` names; other names are left alone."""
    if ":" not in op:
        return
    loaded = load(op)
    if not isinstance(loaded, CustomOp):
        kind = type(loaded).__qualname__
        raise CaseInvalid(
            f"--op {op}: expected what scancheck.custom_op makes; got {kind}"
        )
    register(loaded, op)


def loader(
    target: str | Kernel | Callable[..., Any], op: str | None, device: str
) -> Callable[[], Kernel]:
    """What gives the kernel again in another process, on that device alone."""
    return partial(_loaded, target, op, device)


def _loaded(
    target: str | Kernel | Callable[..., Any], op: str | None, device: str
) -> Kernel:
    (kernel,) = resolve_target(target, op)
    return replace(kernel, devices=(device,))


def _found(target: str | Kernel | Callable[..., Any], op: str | None) -> Kernel:
    if isinstance(target, Kernel):
        return target
    if not isinstance(target, str):
        return _from_callable(_name_of(target), target, op)
    if ":" in target:
        loaded = load(target)
        if isinstance(loaded, Kernel):
            return replace(loaded, name=target)
        return _from_callable(target, loaded, op)
    return _registered(target)


def _registered(name: str) -> Kernel:
    by_name = {kernel.name: kernel for kernel in kernels()}
    if name in by_name:
        return by_name[name]
    if name.endswith(".py"):
        raise CaseInvalid(f"target {name!r}: name the callable too, as {name}:callable")
    hint = suggestion(name, by_name) or "; `scancheck list` shows the names"
    raise CaseInvalid(f"target {name!r} is unknown: expected {_FORMS}{hint}")


def _from_callable(name: str, loaded: Any, op: str | None) -> Kernel:
    if not callable(loaded):
        kind = type(loaded).__qualname__
        raise CaseInvalid(f"target {name}: expected a callable; got {kind}")
    if op is None:
        raise CaseInvalid(
            f"target {name}: --op is needed for a callable that is not registered; "
            f"expected one of {', '.join(ops_with_recipes())}"
        )
    return Kernel(name=name, op=op, call=loaded)


def _name_of(call: Any) -> str:
    module = getattr(call, "__module__", None) or type(call).__module__
    return f"{module}:{getattr(call, '__qualname__', type(call).__qualname__)}"
