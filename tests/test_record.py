"""A run's record as JSON: finite or null, whole or not there."""

import json
import math
import stat
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.record import (
    SCHEMA_VERSION,
    Finding,
    RunRecord,
    to_json,
    write_json,
)

FINDING = Finding(
    check="oracle",
    verdict="FAIL",
    tensor="h",
    ratio=math.inf,
    rho=None,
    first_wrong_index=(0, 64, 3),
    place={"token": 64, "chunk": 1, "position": 0, "where": "carry"},
    cause="carry",
    reason="1 of 8 values are beyond the budget",
    advice="compare",
    case={"op": "linear_scan"},
    case_id="linear_scan-fp32",
    file=None,
    replay="scancheck verify",
)
RECORD = RunRecord(
    verdict="FAIL",
    exit_code=1,
    target="kernel.py:scan",
    op="linear_scan",
    dtype="fp32",
    profile="quick",
    seed=0,
    p=1e-6,
    contract="default",
    contract_declared=False,
    gradients=True,
    counts={"FAIL": 1},
    vacuous=0,
    elements=8,
    worst_ratio={"h": math.nan},
    worst_rho={},
    seen=(),
    unseen=("input a",),
    not_judged=(),
    environment={"torch": "2"},
    duration_s=1.0,
    replay="scancheck verify",
    findings=(FINDING,),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_every_key_of_the_schema_is_there() -> None:
    """The JSON has the schema's version and each field, of findings too."""
    data = to_json(RECORD)
    assert data["schema_version"] == SCHEMA_VERSION
    assert set(data) == {"schema_version"} | {f.name for f in fields(RunRecord)}
    assert set(data["findings"][0]) == {f.name for f in fields(Finding)}


@given(st.floats(), st.floats())
def test_numbers_are_finite_or_null(ratio: float, worst: float) -> None:
    """What is not finite becomes null; every finite number comes back exactly."""
    finding = replace(FINDING, ratio=ratio)
    record = replace(RECORD, findings=(finding,), worst_ratio={"h": worst})
    text = json.dumps(to_json(record), allow_nan=False)
    data = json.loads(text)
    for want, got in (
        (ratio, data["findings"][0]["ratio"]),
        (worst, data["worst_ratio"]["h"]),
    ):
        assert got == (want if math.isfinite(want) else None)


def test_tuples_become_lists() -> None:
    """JSON has no tuples: the record equals what is read back."""
    data = to_json(RECORD)
    assert json.loads(json.dumps(data)) == data
    assert data["findings"][0]["first_wrong_index"] == [0, 64, 3]
    assert data["unseen"] == ["input a"]


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_written_file_is_read_back(data: dict[str, Any]) -> None:
    """The file holds the data, one file and nothing beside it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        write_json(data, path)
        assert json.loads(path.read_text()) == data
        assert [p.name for p in Path(folder).iterdir()] == ["run.json"]


def test_file_can_be_read_by_others(tmp_path: Path) -> None:
    """The file has the rights of an ordinary file, not those of a temporary one."""
    write_json(to_json(RECORD), tmp_path / "run.json")
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o644


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """What cannot be written as JSON leaves no file and no part of one."""
    with pytest.raises(ValueError, match="JSON"):
        write_json({"fine": 1, "ratio": math.nan}, tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_a_failure_keeps_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    """An interruption at the last moment keeps an earlier file as it was."""
    path = tmp_path / "run.json"
    path.write_text("earlier")

    def interrupted(source: str, target: Path) -> None:
        raise interruption

    monkeypatch.setattr("scancheck.record.os.replace", interrupted)
    with pytest.raises(interruption):
        write_json({"fine": 1}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "earlier"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A folder that does not exist raises OSError and is not made."""
    with pytest.raises(OSError, match="absent"):
        write_json({}, tmp_path / "absent" / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_a_bare_file_name_is_written_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path without a folder means the current one."""
    monkeypatch.chdir(tmp_path)
    write_json({"fine": 1}, Path("run.json"))
    assert json.loads((tmp_path / "run.json").read_text()) == {"fine": 1}
