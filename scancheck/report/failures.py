"""Failures the way authors debug them: a few tokens, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from scancheck.study.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failing case, shrunk."""

    whole: Row  # the case as it was swept
    steps: tuple[Row, ...]  # in order

    @property
    def tokens(self) -> int:
        """Tokens of the shrunk sequence."""
        return self.steps[0].T

    @property
    def chunk(self) -> int | None:
        """Chunk size in which it still fails."""
        return self.steps[0].chunk


def failures(rows: Sequence[Row]) -> list[Failure]:
    """Every failing case whose steps are known, in the order of the rows."""
    steps: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "step":
            steps.setdefault(row.job, []).append(row)
    wholes = {
        row.job: row
        for row in rows
        if row.kind == "case" and row.sequence and row.job in steps
    }
    return [
        Failure(
            whole=wholes[job],
            steps=tuple(sorted(found, key=lambda row: row.token or 0)),
        )
        for job, found in steps.items()
        if job in wholes
    ]
