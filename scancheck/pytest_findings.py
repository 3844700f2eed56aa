"""Stored findings as tests: one line runs every file of a folder again.

@pytest.mark.scan_findings("findings", kernel=my_scan)
def test_findings_stay_fixed(replay_finding):
    replay_finding()
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from scancheck.gate import Result

MARKER, FIXTURE = "scan_findings", "replay_finding"
HELP = "folder, kernel=None): `replay_finding` runs each finding stored in the folder"
SUFFIX = ".safetensors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each file; a folder without any is an error, not a pass."""
    if FIXTURE not in metafunc.fixturenames:
        return
    folder = _folder(metafunc.definition)
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: no finding (*{SUFFIX}) in {folder}"
        )
    metafunc.parametrize(FIXTURE, files, indirect=True, ids=[f.stem for f in files])


@pytest.fixture
def replay_finding(request: pytest.FixtureRequest) -> "Callable[..., Result]":
    """Judges one stored finding of the marker's folder; fails while it fails.

    Takes another kernel, else that of the marker, else the registered one that the file
    names. A kernel given as an object runs in this process, one given by its name in a
    process of its own. Skips where the kernel cannot run here.
    """
    marker = request.node.get_closest_marker(MARKER)
    given = marker.kwargs.get("kernel") if marker is not None else None

    def judge(kernel: Any = None) -> "Result":
        __tracebackhide__ = True
        from scancheck.errors import KernelUnavailable, ScancheckError
        from scancheck.gate.replay import replay
        from scancheck.report.text import brief

        try:
            result = replay(request.param, given if kernel is None else kernel)
        except KernelUnavailable as error:
            pytest.skip(str(error))
        except ScancheckError as error:
            pytest.fail(str(error), pytrace=False)
        if not result:
            raise AssertionError(brief(result.record))
        return result

    return judge


def _folder(node: pytest.Item | pytest.Function) -> Path:
    """The folder of the marker, beside the test's file unless it is absolute."""
    marker = node.get_closest_marker(MARKER)
    if marker is None or len(marker.args) != 1 or set(marker.kwargs) - {"kernel"}:
        raise pytest.UsageError(
            f"{node.nodeid}: expected @pytest.mark.{MARKER}(FOLDER) or "
            f"@pytest.mark.{MARKER}(FOLDER, kernel=KERNEL)"
        )
    return Path(node.path).parent / str(marker.args[0])
