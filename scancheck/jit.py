"""Numba compilation for loops: a decorator with its cache, and the fused multiply-add.

Numba's own cache does not see that a function called by a cached one was edited. The
directory used here carries a hash of all sources that compiled functions may come
from, so an edit anywhere leads to a fresh one.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numba
from llvmlite import ir
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

# Numba fills its configuration at run time, and its stubs cannot see options as a dict.
_config: Any = numba.config
_njit: Any = numba.njit
_intrinsic: Any = intrinsic


class Jit(Protocol):
    """A decorator that compiles with Numba; the options are numba.njit's."""

    def __call__(self, **options: Any) -> Callable[[F], F]: ...


def jit_of(name: str, folders: tuple[Path, ...]) -> Jit:
    """The decorator for the functions of some folders, which call no others.

    It compiles with a cache of that name, without the GIL, with NumPy's division. No
    fastmath: LLVM may then neither contract a x + b into fma nor reorder sums, so every
    operation rounds as written.
    """

    def jit(**options: Any) -> Callable[[F], F]:
        settings = {"cache": True, "nogil": True, "error_model": "numpy"} | options

        def compiled(function: F) -> F:
            default = _config.CACHE_DIR
            _config.CACHE_DIR = _cache_directory(name, folders) or default
            try:
                result: F = _njit(**settings)(function)
            finally:
                _config.CACHE_DIR = default
            return result

        return compiled

    return jit


@cache
def _cache_directory(name: str, folders: tuple[Path, ...]) -> str:
    """The cache directory of the present sources; empty where none can be written."""
    base = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    directory = Path(base).expanduser() / "scancheck" / name / _source_hash(folders)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(directory) if os.access(directory, os.W_OK) else ""


def _source_hash(folders: tuple[Path, ...]) -> str:
    """A short hash of this file and all in the folders that compile functions.

    Compiled code calls only compiled code, and that is marked with `jit`.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            source = path.read_bytes()
            if b"jit" in source:
                digest.update(path.name.encode() + b"\0" + source)
    return digest.hexdigest()[:16]


def fma_of(kind: Any) -> Callable[..., Any]:
    """The fused multiply-add of a Numba number type for compiled loops.

    fma(a, b, c) is a b + c rounded once: LLVM's fma, one instruction where the
    processor has it.
    """

    def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        def lower(
            context: Any, builder: ir.IRBuilder, call: Any, arguments: Any
        ) -> Any:
            return builder.fma(*arguments)

        return kind(kind, kind, kind), lower

    found: Callable[..., Any] = _intrinsic(fma)
    return found
