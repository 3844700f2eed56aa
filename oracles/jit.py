"""Numba compilation for the oracles: one decorator and its cache directory.

Numba's own cache does not see that a function called by a cached one was edited. The
directory used here carries a hash of all sources that compiled functions may come
from, so an edit anywhere leads to a fresh one. Oracles and bounds share a directory;
another folder, which may call them, has its own.
"""

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from scancheck import errors

F = TypeVar("F", bound=Callable[..., Any])

# Numba fills its configuration at run time, and its stubs cannot see options as a dict.
_config: Any = numba.config
_njit: Any = numba.njit

# For functions that allocate nothing: views of arrays are not counted as references,
# which costs more than a short row of arithmetic.
NO_ALLOCATION = {"_nrt": False}


def jit(**options: Any) -> Callable[[F], F]:
    """A decorator that compiles with Numba: cached, without the GIL, NumPy's division.

    No fastmath: every operation rounds as written. `options` are numba.njit's.
    """
    settings = {"cache": True, "nogil": True, "error_model": "numpy"} | options

    def compiled(function: F) -> F:
        default = _config.CACHE_DIR
        folder = Path(function.__code__.co_filename).parent
        _config.CACHE_DIR = _cache_directory(folder) or default
        try:
            result: F = _njit(**settings)(function)
        finally:
            _config.CACHE_DIR = default
        return result

    return compiled


@lru_cache
def _cache_directory(folder: Path) -> str:
    """The cache directory of the present sources; empty where none can be written."""
    base = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    directory = Path(base).expanduser() / "scancheck" / "numba" / _source_hash(folder)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(directory) if os.access(directory, os.W_OK) else ""


def _source_hash(folder: Path) -> str:
    """A short hash of every source that functions compiled in `folder` may come from.

    Compiled code calls only compiled code, and that is marked with `jit`.
    """
    digest = hashlib.sha256()
    package = Path(errors.__file__).parent
    folders = [Path(__file__).parent, package / "bounds"]
    if folder not in folders:
        folders.append(folder)
    for source_folder in folders:
        for path in sorted(source_folder.glob("*.py")):
            source = path.read_bytes()
            if b"jit" in source:
                digest.update(path.name.encode() + b"\0" + source)
    return digest.hexdigest()[:16]


__all__ = ["NO_ALLOCATION", "jit"]
