"""One row per kernel, dtype and case: which rule rejected it; as a Parquet file."""

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 1
_KEY = b"scancheck_power"
_ARROW = {str: pa.string(), bool: pa.bool_()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How the five rules judged one case of one kernel.

    A rule's column names the tensors that it rejects, with d before an input's name for
    its gradient, or "call" for a call that failed; it is empty where it accepts.
    """

    kernel: str
    op: str
    dtype: str
    bug: str  # the planted bug; empty for a correct kernel
    named: bool  # whether scancheck's run named the bug's own cause
    short: bool  # whether its contract declares arithmetic or states below fp32
    recipe: str
    case_id: str
    cotangent: str
    verdict: str  # scancheck's
    relation: str  # name of the relation that was red; empty for the case itself
    scancheck: str
    assert_close: str
    allclose_1e4: str
    rms_0005: str
    twice_baseline: str
    assert_close_oracle: str  # the same rules with the oracle as their reference
    allclose_1e4_oracle: str
    rms_0005_oracle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What made the rows."""

    command: str  # the last one that added to them
    profile: str
    seed: int
    environment: dict[str, str]


def write_rows(rows: list[Row], about: About, path: Path) -> None:
    """Writes the file so that it is whole or not there at all."""
    schema = pa.schema([pa.field(f.name, _ARROW[f.type]) for f in fields(Row)])
    told = {
        "schema_version": SCHEMA_VERSION,
        "command": about.command,
        "profile": about.profile,
        "seed": about.seed,
        "environment": about.environment,
    }
    schema = schema.with_metadata({_KEY: json.dumps(told, sort_keys=True).encode()})
    records = [{f.name: getattr(row, f.name) for f in fields(Row)} for row in rows]
    part = path.with_suffix(".part")
    table = pa.Table.from_pylist(records, schema=schema)
    pq.write_table(table, part, compression="zstd")
    os.replace(part, path)


def read_rows(path: Path) -> tuple[list[Row], About]:
    """What `write_rows` wrote; raises ValueError for another file."""
    table = pq.read_table(path)
    metadata = (table.schema.metadata or {}).get(_KEY)
    told = json.loads(metadata) if metadata else {}
    if told.pop("schema_version", None) != SCHEMA_VERSION:
        raise ValueError(f"{path}: expected rows of benchmarks/power.py, schema 1")
    return [Row(**record) for record in table.to_pylist()], About(**told)
