"""The result of a run as data: findings, counts, and their JSON (semantics.md)."""

import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of failure, shown on its clearest case."""

    check: str
    verdict: str
    tensor: str | None  # output or gradient
    ratio: float | None  # largest error / budget
    rho: float | None
    first_wrong_index: tuple[int, ...] | None
    place: dict[str, Any] | None  # token, chunk, position, carry or local
    cause: str  # key of the likely cause
    reason: str
    advice: str
    case: dict[str, Any]  # the case, enough to build it again
    case_id: str
    file: str | None  # where the finding is stored, if it is
    replay: str  # command line
    cases: int = 1  # cases with the same check, tensor and verdict
    would_pass: str | None = None  # contract under which the outputs would pass
    shrinks_with_wider_dtype: bool | None = None
    values: tuple[str, ...] = ()  # got, want and budget at the first wrong index, hex
    profile: str | None = None  # of the recipe: adversarial or realistic
    steps: dict[str, Any] | None = None  # the failure shrunk, token by token


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What one `verify` run did and found."""

    verdict: str
    exit_code: int
    target: str
    op: str
    dtype: str
    profile: str
    seed: int
    p: float
    contract: str
    contract_declared: bool
    gradients: bool
    counts: dict[str, int]  # cases per verdict
    vacuous: int  # passed elements whose budget exceeds their value
    elements: int  # elements judged
    worst_ratio: dict[str, float | None]  # per output and gradient, passed cases too
    worst_rho: dict[str, float | None]  # per output, where it was computed
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    not_judged: tuple[str, ...]
    environment: dict[str, str]
    duration_s: float
    replay: str
    range_cases: tuple[str, ...] = ()
    uncertified_cases: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    device: str = "cpu"  # or cuda:N
    device_asked: bool = False  # whether the request named it
    judged_on_cpu: tuple[str, ...] = ()  # why, where the kernel ran on CUDA


def to_json(record: RunRecord) -> dict[str, Any]:
    """The record as plain JSON values: numbers finite or null, tuples as lists."""
    data = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    return dict(to_plain(data))


def finite_or_none(value: float) -> float | None:
    """The value where JSON has a number for it."""
    return value if math.isfinite(value) else None


def to_plain(value: Any) -> Any:
    """The value as JSON values: numbers finite or null, tuples as lists, keys texts."""
    match value:
        case dict():
            return {str(k): to_plain(v) for k, v in value.items()}
        case list() | tuple():
            return [to_plain(v) for v in value]
        case bool() | None | int() | str():
            return value
        case float():
            return finite_or_none(value)
        case _:
            return str(value)


def write_json(data: dict[str, Any], path: Path) -> None:
    """Writes the JSON so that the file is whole or not there at all.

    Raises OSError when the folder does not exist or cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent or Path(), suffix=".part")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(data, stream, indent=2, allow_nan=False)
            stream.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
