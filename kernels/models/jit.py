"""Numba compilation for the models of CUDA kernels: one decorator and its cache.

As scancheck.oracles.jit, for this folder's sources: the cache directory carries a hash
of all files here that compile, so that an edited function reaches its callers.
"""

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Numba fills its configuration at run time, and its stubs cannot see options as a dict.
_config: Any = numba.config
_njit: Any = numba.njit


def jit(**options: Any) -> Callable[[F], F]:
    """A decorator that compiles with Numba: cached, without the GIL, NumPy's division.

    No fastmath: LLVM may then neither contract a x + b into fma nor reorder sums, so
    every operation rounds as written. `options` are numba.njit's.
    """
    settings = {"cache": True, "nogil": True, "error_model": "numpy"} | options

    def compiled(function: F) -> F:
        default = _config.CACHE_DIR
        _config.CACHE_DIR = _cache_directory() or default
        try:
            result: F = _njit(**settings)(function)
        finally:
            _config.CACHE_DIR = default
        return result

    return compiled


@lru_cache(maxsize=1)
def _cache_directory() -> str:
    """The cache directory of the present sources; empty where none can be written."""
    base = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    directory = Path(base).expanduser() / "scancheck" / "numba-models" / _source_hash()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(directory) if os.access(directory, os.W_OK) else ""


def _source_hash() -> str:
    """A short hash of every source file of this folder that compiles functions."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        if b"jit" in source:
            digest.update(path.name.encode() + b"\0" + source)
    return digest.hexdigest()[:16]
