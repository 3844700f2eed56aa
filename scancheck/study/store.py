"""Rows to one Parquet file and back, with what made them in the file's metadata."""

import json
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scancheck.errors import RecordUnreadable
from scancheck.study.row import (
    KINDS,
    LATER_COLUMNS,
    SCHEMA_VERSION,
    Row,
    column_types,
)

_ARROW = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
}
_KEY = b"scancheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A sweep, finished or not, as it is in its file."""

    rows: tuple[Row, ...]
    seed: int
    profile: str
    environment: dict[str, str]  # name -> text
    seconds: float  # the sweep took, all its parts together
    code: str = ""  # digest of the code that measured
    jobs: int = 0  # that were planned
    done: int = 0  # of them
    inputs: str = ""  # the captured tensors in words, where the sweep is of them
    device: str = "cpu"  # whose kernels were swept


def write_study(study: Study, path: Path) -> None:
    """Writes the study so that the file is whole or not there at all.

    Raises OSError when the folder does not exist or cannot be written.
    """
    empty = {
        name
        for name in LATER_COLUMNS
        if all(getattr(row, name) is None for row in study.rows)
    }
    table = pa.Table.from_pylist(
        [_record(row) for row in study.rows],
        schema=_schema(empty).with_metadata({_KEY: _metadata(study)}),
    )
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        pq.write_table(table, name, compression="zstd", write_page_checksum=True)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_study(path: Path) -> Study:
    """The study of a Parquet file.

    Raises RecordUnreadable for a file that is missing, damaged, not written by
    `write_study`, or of another schema version.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise RecordUnreadable(
            f"{path}: {what}; expected a Parquet file of `scancheck report`"
        )
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            about = _about(path, file.schema_arrow.metadata or {})
            _check_columns(path, file.schema_arrow)
            records = file.read().to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise RecordUnreadable(
            f"{path}: expected a Parquet file of `scancheck report`; cannot read it "
            f"({error})"
        ) from error
    return Study(rows=tuple(_row(path, record) for record in records), **about)


def _schema(left_out: Collection[str]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, _ARROW[kind], nullable=optional)
            for name, (kind, optional) in column_types().items()
            if name not in left_out
        ]
    )


def _record(row: Row) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}


def _metadata(study: Study) -> bytes:
    about = {
        "schema_version": SCHEMA_VERSION,
        "seed": study.seed,
        "profile": study.profile,
        "environment": study.environment,
        "seconds": study.seconds,
        "code": study.code,
        "jobs": study.jobs,
        "done": study.done,
        "inputs": study.inputs,
    }
    if study.device != "cpu":
        about["device"] = study.device
    return json.dumps(about, sort_keys=True).encode()


def _about(path: Path, metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Seed, profile, environment and duration from the file's metadata."""
    if _KEY not in metadata:
        raise RecordUnreadable(
            f"{path}: no rows of `scancheck report` (its metadata names no scancheck "
            "schema)"
        )
    try:
        about = json.loads(metadata[_KEY])
        version = about["schema_version"]
        if version != SCHEMA_VERSION:
            raise RecordUnreadable(
                f"{path}: expected schema version {SCHEMA_VERSION}; got {version}; "
                "run `scancheck report` again"
            )
        return {
            "seed": int(about["seed"]),
            "profile": str(about["profile"]),
            "environment": {str(k): str(v) for k, v in about["environment"].items()},
            "seconds": float(about["seconds"]),
            "code": str(about["code"]),
            "jobs": int(about["jobs"]),
            "done": int(about["done"]),
            "inputs": str(about["inputs"]),
            "device": str(about.get("device", "cpu")),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordUnreadable(f"{path}: damaged metadata ({error!r})") from error


def _check_columns(path: Path, schema: pa.Schema) -> None:
    """Raises RecordUnreadable unless the columns are those of `Row`."""
    expected = _schema(set(LATER_COLUMNS) - set(schema.names))
    if schema.names != expected.names or schema.types != expected.types:
        odd = sorted(set(schema.names) ^ set(expected.names))
        raise RecordUnreadable(
            f"{path}: expected the columns of schema version {SCHEMA_VERSION}; "
            f"differs in {', '.join(odd) or 'order or type'}"
        )


def _row(path: Path, record: dict[str, Any]) -> Row:
    for name, (_, optional) in column_types().items():
        if not optional and record[name] is None:
            raise RecordUnreadable(f"{path}: column {name} has an empty value")
    row = Row(**record)
    if row.kind not in KINDS:
        raise RecordUnreadable(
            f"{path}: expected kind {', '.join(KINDS)}; got {row.kind!r}"
        )
    return row
