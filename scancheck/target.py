"""The object that `package.module:callable` or `path/file.py:callable` names."""

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from scancheck.errors import CaseInvalid


def load(target: str) -> Any:
    """The object after the colon, from the module or file before it.

    A file is imported once until it changes, under a module name of its own, with its
    folder first on the search path; for a module that is the current folder. Raises
    CaseInvalid that says which part of the target is wrong.
    """
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise CaseInvalid(
            f"target {target!r}: expected package.module:callable or "
            "path/file.py:callable"
        )
    is_path = place.endswith(".py") or any(mark in place for mark in _path_marks())
    module = _module_of_file(Path(place)) if is_path else _module_named(place)
    return _attribute(module, place, attribute)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the closest known names, or an empty text."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _path_marks() -> tuple[str, ...]:
    return (os.sep, os.altsep) if os.altsep else (os.sep,)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*.py")]
        what = "is a folder" if path.is_dir() else "does not exist"
        raise CaseInvalid(f"target: {path} {what}{suggestion(path.name, beside)}")
    source = path.resolve()
    try:
        name = _unique_name(source)
    except OSError as error:
        raise CaseInvalid(f"target: {path} cannot be read: {error}") from error
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise CaseInvalid(f"target: {path} is no Python source; expected a .py file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _import_failures_told(str(path), source), _first_on_path(source.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _unique_name(source: Path) -> str:
    """A module name that no other file has, nor this one after a change."""
    digest = hashlib.sha256(os.fsencode(source) + source.read_bytes()).hexdigest()
    return f"scancheck_target_{digest[:16]}_{source.stem}"


def _module_named(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise CaseInvalid(f"target: {name!r} is no module name; expected a.b.c")
    with _import_failures_told(name), _first_on_path(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Within, modules of `folder` come before all others of the same name."""
    entry = str(folder)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


@contextmanager
def _import_failures_told(place: str, source: Path | None = None) -> Iterator[None]:
    """Within, what an import raises becomes a CaseInvalid of one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if source is None and missing and f"{place}.".startswith(f"{missing}."):
            hint = suggestion(missing, [module.name for module in iter_modules()])
            message = (
                f"target: no module named {missing!r}{hint}; a file is written "
                "path/file.py:callable"
            )
        else:
            line = f"{_first_line(error)}{_line_of(error, source)}"
            message = f"target: importing {place} raised {line}"
        raise CaseInvalid(message) from error


def _first_line(error: BaseException) -> str:
    """Type and text of the exception; a syntax error's own come after its source."""
    parts = traceback.format_exception_only(error)
    part = parts[-1] if isinstance(error, SyntaxError) else parts[0]
    return part.strip().splitlines()[0]


def _line_of(error: BaseException, source: Path | None) -> str:
    """Where it was raised, in the target's own file if it passed there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}:{error.lineno})"
    machinery = ("<frozen", __file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(machinery)
    ]
    own = [frame for frame in frames if frame.filename == str(source)] or frames
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")]
            raise CaseInvalid(
                f"target: {place} has no {attribute!r}{suggestion(part, public)}"
            )
        found = getattr(found, part)
    return found
