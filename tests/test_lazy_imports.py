"""What loads at start-up: none of the large libraries, however scancheck is entered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scancheck

ROOT = Path(__file__).parents[1]

HEAVY = frozenset({"cupy", "matplotlib", "mpmath", "numba", "pandas", "torch"})

CLI_HELP = """
import runpy
sys.argv = ["scancheck", "--help"]
try:
    runpy.run_module("scancheck.cli", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""

# Only this plugin is loaded: what others bring along is not ours to promise.
PYTEST_START = """
import pytest
arguments = ["--collect-only", "-q", "-p", "scancheck.pytest_plugin", "--rootdir", "."]
assert pytest.main([*arguments, "-c", os.devnull, "empty"]) == 5
"""


def loaded_after(statements: str, folder: Path) -> set[str]:
    """The heavy libraries that a fresh interpreter holds after the statements."""
    (folder / "empty").mkdir()
    program = f"import os, sys\n{statements}\nprint('loaded', *sys.modules)"
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return HEAVY.intersection(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("import scancheck", id="import"),
        pytest.param("import scancheck.pytest_plugin", id="plugin"),
        pytest.param(CLI_HELP, id="cli-help"),
        pytest.param(PYTEST_START, id="pytest-start"),
    ],
)
def test_start_up_loads_no_heavy_library(statements: str, tmp_path: Path) -> None:
    """Importing, asking for help and starting pytest load no large library."""
    assert loaded_after(statements, tmp_path) == set()


def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    """The check itself reports a library that was imported."""
    assert loaded_after("import mpmath", tmp_path) == {"mpmath"}


@pytest.mark.parametrize("name", scancheck.__all__)
def test_public_names_resolve(name: str) -> None:
    """Every public name is there when asked for, and is listed by `dir`."""
    assert getattr(scancheck, name) is not None
    assert name in dir(scancheck)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt public name raises AttributeError that repeats the name."""
    with pytest.raises(AttributeError, match="'verfy'"):
        _ = scancheck.verfy
