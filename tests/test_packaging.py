"""What an installed scancheck holds: the same files as the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Folder of the checkout, and where its files belong in the wheel.
FOLDERS = {
    "scancheck": "scancheck",
    "kernels": "scancheck/kernels",
    "oracles": "scancheck/oracles",
}
SHIPPED = {".css", ".cu", ".cuh", ".j2", ".py", ".typed", ".zlib"}


def shipped_files(root: Path) -> set[str]:
    """The wheel paths of every file below `root` that has to be shipped."""
    found = set()
    for folder, target in FOLDERS.items():
        # followlinks is off: kernels and oracles are read as folders of their own.
        for place, _, names in os.walk(root / folder):
            inside = Path(place).relative_to(root / folder)
            found |= {
                (Path(target) / inside / name).as_posix()
                for name in names
                if Path(name).suffix in SHIPPED
            }
    return found


@pytest.fixture(scope="module")
def wheel_listing(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that was built from an sdist of this checkout, offline.

    A copy is built, so that neither stale build folders nor other test processes
    have a say.
    """
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore)
    run = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_exactly_the_source_files(wheel_listing: set[str]) -> None:
    """The wheel has each source, style and template file once, and nothing else."""
    packaged = {name for name in wheel_listing if ".dist-info/" not in name}
    assert packaged == shipped_files(ROOT)


def test_wheel_registers_command_plugin_and_licence(wheel_listing: set[str]) -> None:
    """The wheel carries its entry points and the licence text."""
    metadata = {name.partition(".dist-info/")[2] for name in wheel_listing}
    assert {"entry_points.txt", "licenses/LICENSE"} <= metadata


@pytest.mark.parametrize("folder", ["kernels", "oracles"])
def test_linked_folder(folder: str) -> None:
    """The root folder is reached by a relative link and is no package of its own.

    A regular package called `kernels` in the working directory would hide an
    installed package of that name from every program started there.
    """
    assert os.readlink(ROOT / "scancheck" / folder) == f"../{folder}"
    assert not (ROOT / folder / "__init__.py").exists()
