"""Rows come back from their file as they were, and nothing else is taken for them."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.errors import RecordUnreadable
from scancheck.study.row import KINDS, Row, column_types
from scancheck.study.store import Study, read_study, write_study

VALUES: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
}


def rows() -> st.SearchStrategy[Row]:
    """Rows with any values that their columns can hold."""
    columns: dict[str, st.SearchStrategy[Any]] = {}
    for name, (kind, optional) in column_types().items():
        columns[name] = VALUES[kind] | st.none() if optional else VALUES[kind]
    columns["kind"] = st.sampled_from(KINDS)
    return st.builds(Row, **columns)


def study_of(*some: Row) -> Study:
    """A study that holds these rows."""
    return Study(
        rows=some,
        seed=3,
        profile="quick",
        environment={"scancheck": "0.1.0", "cpu": "x"},
        seconds=1.5,
    )


def some_row(**changes: Any) -> Row:
    """A row of zeros and empty texts."""
    plain = {str: "", int: 0, float: 0.0, bool: False}
    values = {
        name: None if optional else plain[kind]
        for name, (kind, optional) in column_types().items()
    }
    return Row(**(values | {"kind": "case"} | changes))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A file with one row."""
    path = tmp_path / "rows.parquet"
    write_study(study_of(some_row(rms_rel=0.1)), path)
    return path


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(some=st.lists(rows(), max_size=4))
def test_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, some: list[Row]
) -> None:
    """Every value of every column is the same after writing and reading."""
    path = tmp_path_factory.mktemp("store") / "rows.parquet"
    study = study_of(*some)
    write_study(study, path)
    assert read_study(path) == study


def test_file_can_be_read_without_scancheck(stored: Path) -> None:
    """Columns are those of Row, metadata is JSON with version, seed, environment.

    Without a device there is no column of bits.
    """
    table = pq.read_table(stored)
    assert table.schema.names == [f.name for f in fields(Row) if f.name != "bits"]
    about = json.loads(table.schema.metadata[b"scancheck"])
    assert about["schema_version"] == 2
    assert about["seed"] == 3
    assert about["environment"]["cpu"] == "x"
    assert "device" not in about


def test_a_study_of_a_device_says_so(tmp_path: Path) -> None:
    """Its file has the bits, and its metadata the device."""
    path = tmp_path / "rows.parquet"
    study = replace(study_of(some_row(bits="0f"), some_row()), device="cuda:1")
    write_study(study, path)
    assert pq.read_table(path).column("bits").to_pylist() == ["0f", None]
    assert read_study(path) == study


def test_a_failed_write_leaves_the_old_file(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the middle, the file from before is whole and nothing is left."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    before = stored.read_bytes()
    monkeypatch.setattr(pq, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_study(study_of(), stored)
    assert stored.read_bytes() == before
    assert list(stored.parent.iterdir()) == [stored]


def test_missing_file(tmp_path: Path) -> None:
    """A path where nothing is says so."""
    with pytest.raises(RecordUnreadable, match="does not exist"):
        read_study(tmp_path / "none.parquet")


def test_folder_is_no_file(tmp_path: Path) -> None:
    """A folder, also one with Parquet files in it, is refused."""
    with pytest.raises(RecordUnreadable, match="is a folder"):
        read_study(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"{}", b"\x00" * 500, b"PAR1" * 99])
def test_other_bytes(tmp_path: Path, content: bytes) -> None:
    """What is no Parquet file gives one message, whatever its bytes."""
    path = tmp_path / "rows.parquet"
    path.write_bytes(content)
    with pytest.raises(RecordUnreadable, match="expected a Parquet file"):
        read_study(path)


def test_truncated_file(stored: Path) -> None:
    """No prefix of a file is taken for the file."""
    whole = stored.read_bytes()
    for size in range(0, len(whole), 97):
        stored.write_bytes(whole[:size])
        with pytest.raises(RecordUnreadable):
            read_study(stored)


def test_flipped_bytes(stored: Path) -> None:
    """A damaged byte gives the message or another study, never another exception."""
    whole = bytearray(stored.read_bytes())
    refused = 0
    for place in range(0, len(whole), 41):
        damaged = whole.copy()
        damaged[place] ^= 0xFF
        stored.write_bytes(damaged)
        try:
            read_study(stored)
        except RecordUnreadable:
            refused += 1
    assert refused > 20


def _rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def _with_about(table: pa.Table, **changes: Any) -> pa.Table:
    about = json.loads(table.schema.metadata[b"scancheck"]) | changes
    return table.replace_schema_metadata({b"scancheck": json.dumps(about).encode()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda t: t.replace_schema_metadata({}), "names no scancheck", id="foreign"
        ),
        pytest.param(
            lambda t: _with_about(t, schema_version=99),
            "expected schema version 2; got 99",
            id="newer",
        ),
        pytest.param(
            lambda t: _with_about(t, environment=7), "damaged metadata", id="metadata"
        ),
        pytest.param(
            lambda t: _with_about(t, seed=None), "damaged metadata", id="no-seed"
        ),
        pytest.param(
            lambda t: t.replace_schema_metadata({b"scancheck": b"{"}),
            "damaged metadata",
            id="no-json",
        ),
        pytest.param(
            lambda t: t.replace_schema_metadata({b"scancheck": b"[1]"}),
            "damaged metadata",
            id="no-object",
        ),
        pytest.param(lambda t: t.drop_columns(["op"]), "differs in op", id="dropped"),
        pytest.param(
            lambda t: t.append_column("extra", pa.array([1])),
            "differs in extra",
            id="added",
        ),
        pytest.param(
            lambda t: t.set_column(
                t.schema.get_field_index("T"), "T", pa.array(["1024"])
            ),
            "type",
            id="type",
        ),
        pytest.param(
            lambda t: t.set_column(0, "kind", pa.array(["odd"])),
            "expected kind case, position, in_chunk, length, step; got 'odd'",
            id="kind",
        ),
        pytest.param(
            lambda t: t.set_column(
                t.schema.get_field_index("op"), "op", pa.array([None], pa.string())
            ),
            "column op has an empty value",
            id="empty",
        ),
    ],
)
def test_other_content(
    stored: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    """A Parquet file that holds something else says what is different."""
    _rewritten(stored, change)
    with pytest.raises(RecordUnreadable, match=message):
        read_study(stored)
