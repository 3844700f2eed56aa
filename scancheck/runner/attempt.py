"""Calling somebody's code: an exception becomes data, one line and the traceback."""

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from scancheck.runner.device import finish
from scancheck.runner.isolation import restored_settings
from scancheck.runner.outcome import Problem, ProblemKind
from scancheck.runner.poison import poisoned_allocations

_HARNESS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_LONGEST = 240  # characters of somebody's exception text in a one-line message
# Its modules, and so those of its exceptions: of the driver, and of memory.
_CUPY_ERRORS = ("cupy_backends.", "cupy.cuda.")


def attempt(
    action: Callable[[], Any],
    *,
    kind: ProblemKind,
    what: str,
    owner: Callable[..., Any],
    device: torch.device,
) -> tuple[Any, Problem | None, float]:
    """What `action` returned, the problem if it raised, and the seconds it took.

    It has ended when the device is done. `what` opens the problem's message, which ends
    with the place in the file of `owner`. A KeyboardInterrupt is the user's and passes
    through.
    """
    with restored_settings(device), poisoned_allocations(device):
        finish(device)
        start = perf_counter()
        try:
            result = action()
        except (Exception, SystemExit) as error:
            seconds = perf_counter() - start
            return None, _problem(kind, what, error, owner), seconds
        try:
            finish(device)
        except RuntimeError as error:
            return None, _left_behind(error, owner), perf_counter() - start
        return result, None, perf_counter() - start


def _problem(
    kind: ProblemKind, what: str, error: BaseException, owner: Callable[..., Any]
) -> Problem:
    frames = _frames_below_harness(error)
    text = _text(error)
    place = _place(frames, _source_file(owner))
    detail = "".join(traceback.format_list(frames)) + text
    if is_device_error(error):
        kind, told = "device_error", _short(text.splitlines()[0])
    else:
        told = _first_and_last_line(error)
    return Problem(kind=kind, message=f"{what} {told}{place}", detail=detail)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _first_and_last_line(error: BaseException) -> str:
    """What an exception says, in one line.

    Compilers show source between where they are and what is wrong with it; Triton, for
    a fault inside a function that is called there, ends in a mark under the call. (Of
    an error of CUDA the first line says all, and the last is general advice.)
    """
    first, *others = _lines(error)
    if not others:
        return _short(first)
    last, cause = others[-1], error.__cause__
    while cause is not None and not any(map(str.isalnum, last)):
        last, cause = _lines(cause)[-1], cause.__cause__
    return f"{_short(first, _LONGEST // 2)} ... {_short(last, _LONGEST // 2)}"


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in _text(error).splitlines() if line.strip()]


def _short(line: str, most: int = _LONGEST) -> str:
    return line if len(line) <= most else line[: most - 3] + "..."


def _left_behind(error: RuntimeError, owner: Callable[..., Any]) -> Problem:
    """The error of work on the device that went on when the call had returned."""
    text = str(error).strip()
    name = getattr(inspect.unwrap(owner), "__name__", type(owner).__name__)
    return Problem(
        kind="device_error",
        message=f"{name} ended in {text.splitlines()[0]}, after it had returned",
        detail=text,
    )


def is_device_error(error: BaseException) -> bool:
    """Whether the device failed, or its memory was too small, rather than the code."""
    return (
        isinstance(error, torch.OutOfMemoryError)
        or type(error).__module__.startswith(_CUPY_ERRORS)
        or (isinstance(error, RuntimeError) and "CUDA error" in str(error))
    )


def _frames_below_harness(error: BaseException) -> traceback.StackSummary:
    frames = traceback.extract_tb(error.__traceback__)
    kept = [f for f in frames if not Path(f.filename).is_relative_to(_HARNESS)]
    return traceback.StackSummary.from_list(kept)


def _source_file(call: Callable[..., Any]) -> str | None:
    """The file that defines the callable, behind partials and wrappers, or None."""
    inner: Any = call
    while isinstance(inner, functools.partial):
        inner = inner.func
    for defined in (inspect.unwrap(inner), type(inner)):
        try:
            return inspect.getsourcefile(defined)
        except TypeError:
            continue
    return None


def _place(frames: traceback.StackSummary, source: str | None) -> str:
    """Where it was raised: the last frame of the kernel's own file, if there is one."""
    in_source = [f for f in frames if f.filename == source]
    outside_torch = [f for f in frames if not Path(f.filename).is_relative_to(_TORCH)]
    for candidates in (in_source, outside_torch, frames):
        if candidates:
            frame = candidates[-1]
            name = Path(frame.filename).name
            return f" ({name}:{frame.lineno}, in {frame.name})"
    return ""
