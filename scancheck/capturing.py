"""Records the arguments of one call of an op in a running torch model."""

import inspect
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from scancheck.captured import METADATA, check_measurable
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.ops.normal_form import Op


@contextmanager
def capture(
    owner: Any,
    name: str,
    path: str | Path,
    *,
    op: str,
    call: int = 0,
    names: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Within it, call number `call` of `owner.name` leaves its tensors in `path`.

    `owner` is the module or object through which the model calls the function. `names`
    maps the function's parameter names to the op's where they differ; parameters that
    the op does not have are left out. The file is safetensors, for `scancheck report
    --inputs`. The function computes what it always does, and is restored at the end.

    Raises CaseInvalid for a wrong argument, and where there was no such call.
    """
    known = op_named(op)
    check_measurable(op)
    target = Path(path)
    original = getattr(owner, name, None)
    if not callable(original):
        raise CaseInvalid(f"capture: expected a function {name!r}; got {original!r}")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise CaseInvalid(f"capture {target}: the folder cannot be written")
    if call < 0:
        raise CaseInvalid(f"capture call: expected 0 or more; got {call}")
    seen = 0

    @wraps(original)
    def recording(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if seen == call:
            _write(
                _arguments(original, known, names or {}, args, kwargs), known, target
            )
        seen += 1
        return original(*args, **kwargs)

    setattr(owner, name, recording)
    try:
        yield
    finally:
        setattr(owner, name, original)
    if seen <= call:
        raise CaseInvalid(
            f"capture: expected at least {call + 1} calls of {name}; got {seen}. Give "
            "the module through which the model calls it"
        )


def _arguments(
    function: Callable[..., Any],
    op: Op,
    names: Mapping[str, str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """The op's inputs and switches among the arguments, by the op's names."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise CaseInvalid(
            f"capture: the arguments of the call cannot be named ({error})"
        ) from error
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
    wanted = {spec.name for spec in op.inputs} | set(op.switches)
    found = {names.get(name, name): value for name, value in given.items()}
    return {n: v for n, v in found.items() if n in wanted and v is not None}


def _write(arguments: Mapping[str, Any], op: Op, path: Path) -> None:
    """Writes tensors and switches so that the file is whole or not there at all."""
    import torch
    from safetensors.torch import save_file

    switches = {n: bool(arguments[n]) for n in op.switches if n in arguments}
    rest = {n: v for n, v in arguments.items() if n not in op.switches}
    for name, value in rest.items():
        if not isinstance(value, torch.Tensor) or value.is_complex():
            got = value.dtype if isinstance(value, torch.Tensor) else type(value)
            raise CaseInvalid(f"capture: {name}: expected a real tensor; got {got}")
    missing = [s.name for s in op.inputs if s.required and s.name not in rest]
    if missing:
        raise CaseInvalid(
            f"capture: the call has no {', '.join(missing)}, which {op.name} needs; "
            f"it has {', '.join(sorted(arguments)) or 'none of its inputs'}. Map other "
            "names with names={'theirs': 'ours'}"
        )
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    about = json.dumps({"op": op.name, "switches": switches})
    try:
        # A clone of its own: tensors of one call may share memory.
        save_file(
            {n: v.detach().cpu().contiguous().clone() for n, v in rest.items()},
            part,
            metadata={METADATA: about},
        )
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
