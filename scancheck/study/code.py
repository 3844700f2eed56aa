"""Which code measured: rows of other code are not gone on with."""

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import scancheck.kernels.models.catalog
import scancheck.oracles.engine
import scancheck.recipes.catalog

# What renders a page, or starts a run, changes no measurement.
_NOT_MEASURING = ("report", "adapters", "gate", "campaign")
_SOURCES = (".py", ".cu", ".cuh")
_COMPUTING = ("numpy", "torch", "numba", "mpmath")


@lru_cache
def code_digest() -> str:
    """A short digest of the sources that measure, and of what they compute with."""
    package = Path(scancheck.recipes.catalog.__file__).parents[1]
    roots = {
        "scancheck": package,
        "kernels": Path(scancheck.kernels.models.catalog.__file__).parent,
        "oracles": Path(scancheck.oracles.engine.__file__).parent,
    }
    digest = hashlib.sha256()
    for name, root in roots.items():
        for path in sorted(root.rglob("*.*")):
            if path.suffix not in _SOURCES:
                continue
            inside = path.relative_to(root)
            folder = inside.parts[0]
            if name == "scancheck" and (
                (len(inside.parts) == 1 and inside.stem in ("cli", "pytest_plugin"))
                or folder in (*_NOT_MEASURING, "kernels", "oracles")
            ):
                continue
            digest.update(f"{name}/{inside.as_posix()}\0".encode())
            digest.update(path.read_bytes())
    for package_name in _COMPUTING:
        digest.update(f"{package_name} {version(package_name)}\0".encode())
    return digest.hexdigest()[:16]
