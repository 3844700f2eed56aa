"""The layer order of the package, read from every import in its source.

The order is the one in CONTRIBUTING.md. A module may import its own layer and the
layers below it, wherever in the file the import stands.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = (
    ("errors", "formats", "environment", "jit"),
    ("contract", "case", "kernel"),
    ("ops",),
    ("recipes", "oracles", "kernels"),
    ("bounds", "runner", "bridge", "captured", "capturing"),
    ("metrics", "screen"),
    ("verdict", "diagnosis"),
    ("checks", "probe"),
    ("record", "red_check"),
    ("campaign", "study"),
    ("report", "adapters", "target"),
    ("registry",),
    ("gate",),
    ("pytest_plugin", "pytest_findings", "fuzz_commands", "cli", "__main__"),
)
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}

# `scancheck.verify` and the other public names lead up to the gate, so whoever takes
# them from the package root imports the gate.
ROOT_UNIT = "gate"


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Each source file with its unit, the first name below `scancheck`.

    The links scancheck/kernels and scancheck/oracles are not followed: those two
    folders are read where they are.
    """
    for folder in ("scancheck", "kernels", "oracles"):
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root / folder)
            if folder != "scancheck":
                yield folder, path
            elif inside.parts[0] not in ("kernels", "oracles", "__init__.py"):
                yield inside.with_suffix("").parts[0], path


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that the source imports; a leading dot marks a relative one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


def complaint(unit: str, name: str) -> str | None:
    """What is wrong with `unit` importing `name`, or None."""
    parts = name.split(".")
    if parts[0] == "":
        return "relative import"
    if parts[0] in ("kernels", "oracles"):
        return f"imported as {name}, not as scancheck.{name}"
    if parts[0] != "scancheck" or parts[1:] == ["__version__"]:
        return None
    target = parts[1] if len(parts) > 1 and parts[1].islower() else ROOT_UNIT
    if target == "verify":
        target = ROOT_UNIT
    if target not in RANK:
        return f"scancheck.{target} has no layer"
    if RANK[target] > RANK[unit]:
        return f"{unit} is below {target}"
    return None


def violations(root: Path) -> list[str]:
    """One line per breach of the layer order in the tree below `root`."""
    found = []
    for unit, path in source_files(root):
        place = path.relative_to(root).as_posix()
        if unit not in RANK:
            found.append(f"{place}: scancheck.{unit} has no layer")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=place)
        for name in imported_names(tree):
            if problem := complaint(unit, name):
                found.append(f"{place}: {name}: {problem}")
    return found


def test_lower_layers_never_import_higher_ones() -> None:
    """No module imports a layer above its own, and every module has a layer."""
    assert violations(ROOT) == []


def test_every_folder_is_read() -> None:
    """The check sees modules of the package and of both linked folders."""
    folders = {path.relative_to(ROOT).parts[0] for _, path in source_files(ROOT)}
    assert folders == {"scancheck", "kernels", "oracles"}


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        pytest.param(
            "scancheck/formats.py",
            "from scancheck.metrics import measure",
            "formats is below metrics",
            id="upward",
        ),
        pytest.param(
            "scancheck/ops/gla.py",
            "def f():\n    import scancheck.bounds.rounding",
            "ops is below bounds",
            id="inside-a-function",
        ),
        pytest.param(
            "oracles/fp64.py",
            "from scancheck import runner",
            "oracles is below runner",
            id="linked-folder",
        ),
        pytest.param(
            "kernels/models/gla.py",
            "import importlib\nimportlib.import_module('scancheck.checks')",
            "kernels is below checks",
            id="by-name",
        ),
        pytest.param(
            "scancheck/record.py",
            "from scancheck import verify",
            "record is below gate",
            id="lazy-function",
        ),
        pytest.param(
            "scancheck/record.py",
            "from scancheck import Contract",
            "record is below gate",
            id="lazy-class",
        ),
        pytest.param(
            "scancheck/record.py",
            "import scancheck",
            "record is below gate",
            id="package-root",
        ),
        pytest.param(
            "scancheck/ops/gla.py",
            "from .normal_form import solve",
            "relative import",
            id="relative",
        ),
        pytest.param(
            "scancheck/bounds/storage.py",
            "from oracles.fp64 import solve",
            "not as scancheck.oracles.fp64",
            id="root-folder-name",
        ),
        pytest.param(
            "scancheck/cli.py",
            "import scancheck.helpers",
            "scancheck.helpers has no layer",
            id="unknown-target",
        ),
        pytest.param(
            "scancheck/helpers.py",
            "import math",
            "scancheck.helpers has no layer",
            id="unknown-module",
        ),
    ],
)
def test_planted_breach_is_reported(
    tmp_path: Path, file: str, line: str, expected: str
) -> None:
    """Each way to break the order, planted in an empty tree, is the one thing found."""
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(line + "\n", encoding="utf-8")

    found = violations(tmp_path)

    assert len(found) == 1
    assert found[0].startswith(f"{file}: ")
    assert expected in found[0]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("scancheck/metrics.py", "from scancheck.formats import FP32"),
        ("scancheck/case.py", "from scancheck.kernel import Kernel"),
        ("scancheck/record.py", "from scancheck import __version__"),
        ("scancheck/cli.py", "from scancheck import verify"),
        ("scancheck/cli.py", "import torch, numpy.linalg"),
        ("oracles/ladder.py", "from scancheck.oracles.fp64 import solve"),
    ],
)
def test_allowed_imports_are_not_reported(tmp_path: Path, file: str, line: str) -> None:
    """Imports downward, sideways, of the version and of others' packages are fine."""
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(line + "\n", encoding="utf-8")
    assert violations(tmp_path) == []
