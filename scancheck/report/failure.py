"""A run that came to no verdict: its message, and its JSON with a record's keys."""

import os
import tempfile
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin

from scancheck.environment import describe
from scancheck.errors import ScancheckError
from scancheck.record import SCHEMA_VERSION, RunRecord, write_json


def failure_json(verdict: str, exit_code: int, message: str) -> dict[str, Any]:
    """A record without results, so that readers of the JSON find every key.

    `verdict` is USAGE, UNAVAILABLE, HARNESS or INTERRUPTED.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **{field.name: _empty(field.type) for field in fields(RunRecord)},
        "verdict": verdict,
        "exit_code": exit_code,
        "message": message,
        "environment": describe(),
    }


def write_failure(path: Path, verdict: str, exit_code: int, message: str) -> None:
    """Writes that JSON whole; raises OSError where the path cannot be written."""
    write_json(failure_json(verdict, exit_code, message), path)


def _empty(kind: Any) -> Any:
    """An empty collection for a field that is one, else null."""
    origin = get_origin(kind)
    return {dict: {}, tuple: []}.get(origin)


def internal_message(error: Exception, *, in_full: bool) -> str:
    """One line on a failure inside; its traceback follows, or is kept in a file."""
    if isinstance(error, ScancheckError):
        return str(error)
    told = f"internal failure: {type(error).__name__}: {error}".splitlines()[0]
    text = "".join(traceback.format_exception(error))
    if in_full:
        return f"{told}\n{text.rstrip()}"
    handle, name = tempfile.mkstemp(prefix="scancheck-traceback-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    return f"{told} (traceback: {name}, or use --traceback)"


def unwritable(path: Path) -> str | None:
    """Why no file can be written at the path, or None."""
    if path.is_dir():
        return "is a folder; expected a file name"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if not os.access(path.parent, os.W_OK):
        return f"the folder {path.parent} cannot be written"
    return None
