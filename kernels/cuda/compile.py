"""CUDA sources as cubins through NVRTC, and their functions on the current device.

Compiling needs CuPy's low-level NVRTC module and the CUDA headers, but no driver. Each
cubin is compiled once: it is kept in memory, and on disk under a key of everything that
it depends on (every source, the options, NVRTC's version).
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scancheck.errors import KernelUnavailable
from scancheck.kernels.cuda.toolkit import compiler_unavailable, include_directory

SOURCES = Path(__file__).parent / "sources"

_OPTIONS = ("-std=c++17", "--fmad=false", "--ptxas-options=-v")
"""A product and a sum become an fma only where the source says so."""

_RESOURCES = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """One compiled source."""

    image: bytes  # ELF for one architecture
    symbols: Mapping[str, str]  # name expression -> symbol in the image
    log: str  # what the compiler and ptxas said


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one thread or block of a kernel takes."""

    registers: int  # per thread
    spill_stores: int  # bytes per thread
    spill_loads: int  # bytes per thread
    shared: int  # bytes of static shared memory per block


@contextmanager
def sources_from(folder: Path) -> Iterator[None]:
    """Within, the sources are those of `folder`: edited copies, as tests plant faults.

    For one thread at a time; what is compiled already is left aside.
    """
    global SOURCES
    usual = SOURCES
    _forget()
    SOURCES = folder
    try:
        yield
    finally:
        SOURCES = usual
        _forget()


def _forget() -> None:
    """Whatever is in memory by the name of its source; files are kept by contents."""
    for kept in (_cubin, _function, function_with_shared):
        kept.cache_clear()


def cubin(
    source: str,
    expressions: Sequence[str],
    arch: str,
    defines: Sequence[str] = (),
) -> Cubin:
    """The source file of that name in `sources`, compiled for `arch` ("sm_90").

    A path in another folder has its headers there.

    `expressions` name the instances to make, as `kernel<float, 4>`; `defines` are
    macros, as `NAME` or `NAME=VALUE`. Raises KernelUnavailable where there is no
    compiler, or with its log where it fails.
    """
    if reason := compiler_unavailable():
        raise KernelUnavailable(f"{source} cannot be compiled: {reason}")
    return _cubin(source, tuple(expressions), arch, tuple(defines))


@cache
def _cubin(
    source: str, expressions: tuple[str, ...], arch: str, defines: tuple[str, ...]
) -> Cubin:
    options = (*_OPTIONS, f"-arch={arch}", *(f"-D{define}" for define in defines))
    path = _cache_directory() / f"{_key(source, expressions, options)}.cubin"
    kept = _read(path)
    if kept is None:
        kept = _compiled(source, expressions, options)
        _write(path, kept)
    return kept


def function(source: str, expression: str, defines: Sequence[str] = ()) -> Any:
    """The CuPy function of that instance, on the current CUDA device.

    Raises KernelUnavailable as `cubin` does.
    """
    import cupy

    return _function(cupy.cuda.runtime.getDevice(), source, expression, tuple(defines))


@cache
def _function(
    device: int, source: str, expression: str, defines: tuple[str, ...]
) -> Any:
    import cupy
    from cupy.cuda.function import Module

    arch = f"sm_{cupy.cuda.Device(device).compute_capability}"
    compiled = cubin(source, (expression,), arch, defines)
    module = Module()
    module.load(compiled.image)
    return module.get_function(compiled.symbols[expression])


@cache
def function_with_shared(source: str, expression: str, shared: int, device: int) -> Any:
    """As `function`, allowed `shared` bytes of dynamic shared memory a block.

    `device` is the current one.
    """
    from cupy_backends.cuda.api import driver

    found = function(source, expression)
    driver.funcSetAttribute(
        found.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
    )
    return found


def resources(compiled: Cubin) -> dict[str, Resources]:
    """Registers, spills and static shared memory by name expression."""
    found = {
        match["symbol"]: Resources(
            registers=int(match["registers"]),
            spill_stores=int(match["stores"]),
            spill_loads=int(match["loads"]),
            shared=int(match["shared"] or 0),
        )
        for match in _RESOURCES.finditer(compiled.log)
    }
    return {name: found[symbol] for name, symbol in compiled.symbols.items()}


def warnings(compiled: Cubin) -> list[str]:
    """The compiler's and ptxas's warnings, a line each."""
    return [line for line in compiled.log.splitlines() if "warning" in line.lower()]


def _compiled(
    source: str, expressions: tuple[str, ...], options: tuple[str, ...]
) -> Cubin:
    nvrtc = _nvrtc()
    path = SOURCES / source
    text = path.read_text(encoding="utf-8")
    program = nvrtc.createProgram(text, path.name, (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        folders = (f"-I{path.parent}", f"-I{include_directory()}")
        try:
            nvrtc.compileProgram(program, (*options, *folders))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).rstrip("\0\n")
            raise KernelUnavailable(
                f"{source} does not compile with {' '.join(options)} ({error}):\n{log}"
            ) from error
        return Cubin(
            # CuPy takes the image's last byte, a zero, for the end of a string.
            image=nvrtc.getCUBIN(program) + b"\0",
            symbols={name: nvrtc.getLoweredName(program, name) for name in expressions},
            log=nvrtc.getProgramLog(program).rstrip("\0"),
        )
    finally:
        nvrtc.destroyProgram(program)


def _nvrtc() -> Any:
    """CuPy's NVRTC module; KernelUnavailable where its library is missing."""
    from cupy_backends.cuda.libs import nvrtc

    try:
        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise KernelUnavailable(
            f"CuPy cannot load NVRTC, as when it is built for another CUDA ({error}); "
            "pip install 'scancheck[cuda]'"
        ) from error
    return nvrtc


def _key(source: str, expressions: tuple[str, ...], options: tuple[str, ...]) -> str:
    place = SOURCES / source
    digest = hashlib.sha256(repr((place.name, expressions, options)).encode())
    digest.update(repr(_nvrtc().getVersion()).encode())
    for path in sorted(place.parent.glob("*.cu*")):
        # A header may include any other; a .cu file stands for itself.
        if path.suffix == ".cuh" or path == place:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _cache_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "scancheck" / "cuda"


def _read(path: Path) -> Cubin | None:
    """The kept cubin: a line of JSON, then the image; None where there is none."""
    try:
        head, _, image = path.read_bytes().partition(b"\n")
        return Cubin(image=image, **json.loads(head))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, compiled: Cubin) -> None:
    """Keeps the cubin where the directory allows it; readers never see half a file."""
    head = json.dumps({"symbols": dict(compiled.symbols), "log": compiled.log})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(head.encode() + b"\n" + compiled.image)
        Path(file.name).replace(path)
    except OSError:
        return
