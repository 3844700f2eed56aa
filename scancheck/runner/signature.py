"""What a callable takes: its signature decides."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.ops.calling import ARGUMENTS
from scancheck.ops.normal_form import Op

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def accepted_parameters(kernel: Kernel, op: Op) -> frozenset[str]:
    """The op's inputs and switches that the kernel can be given.

    Among them is how it can be called, cu_seqlens for one. `kernel.supports` comes
    first, else the signature; `**kwargs` takes every input and switch, but says nothing
    of other ways to call.
    Raises CaseInvalid for a callable that needs something else than the op's
    parameters, or lacks one that the op cannot do without.
    """
    inputs = frozenset(spec.name for spec in op.inputs) | frozenset(op.switches)
    known = inputs | frozenset(ARGUMENTS)
    if kernel.supports is not None:
        accepted = frozenset(kernel.supports)
        if unknown := accepted - known:
            raise CaseInvalid(
                f"{kernel.name}: {op.name} has no parameter "
                f"{_listed(unknown)}; expected some of {_listed(known)}"
            )
    else:
        parameters = _signature(kernel.name, kernel.call).parameters.values()
        _check_answerable(kernel.name, op, inputs, tuple(parameters))
        accepted = known & {p.name for p in parameters if p.kind in _KEYWORD}
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            accepted |= inputs
    _check_sufficient(kernel.name, op, accepted)
    return accepted


def required_parameters(kernel: Kernel, accepted: frozenset[str]) -> frozenset[str]:
    """Accepted parameters that the kernel cannot be called without."""
    if kernel.supports is not None:
        return frozenset()
    parameters = inspect.signature(kernel.call).parameters.values()
    return frozenset(
        p.name
        for p in parameters
        if p.name in accepted
        and p.default is inspect.Parameter.empty
        and p.kind is not inspect.Parameter.VAR_KEYWORD
    )


def _signature(name: str, call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError) as error:
        raise CaseInvalid(
            f"{name}: its signature cannot be read; wrap it in a function whose "
            "parameters have the op's names"
        ) from error


def _check_answerable(
    name: str,
    op: Op,
    known: frozenset[str],
    parameters: tuple[inspect.Parameter, ...],
) -> None:
    """Raises CaseInvalid when the callable needs what no call of the op gives it."""
    needed = [p for p in parameters if p.default is inspect.Parameter.empty]
    positional = [p.name for p in needed if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    calling = [p.name for p in needed if p.name in ARGUMENTS]
    given = known | set(ARGUMENTS)
    foreign = [p.name for p in needed if p.kind in _KEYWORD and p.name not in given]
    if positional:
        raise CaseInvalid(
            f"{name}: takes {_listed(positional)} by position only; the tensors of "
            f"{op.name} come as keyword arguments"
        )
    if calling:
        raise CaseInvalid(
            f"{name}: expected a default of {_listed(calling)}, since most calls do "
            "without; got none"
        )
    if foreign:
        raise CaseInvalid(
            f"{name}: needs {_listed(foreign)}, which {op.name} does not have; "
            f"expected parameters named {_listed(known)}"
        )


def _check_sufficient(name: str, op: Op, accepted: frozenset[str]) -> None:
    """Raises CaseInvalid when an input of every call of the op is not taken."""
    lacking = [s.name for s in op.inputs if s.required and s.name not in accepted]
    if lacking:
        raise CaseInvalid(
            f"{name}: takes no {_listed(lacking)}, which every call of {op.name} "
            f"passes; it takes {_listed(accepted) or 'none of its parameters'}"
        )
    if op.forms and not any(form <= accepted for form in op.forms):
        forms = " or ".join(_listed(form) for form in op.forms)
        raise CaseInvalid(
            f"{name}: takes neither form of {op.name}; expected a parameter {forms}"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
