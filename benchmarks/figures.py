"""Figures of benchmarks: measured values beside their targets, as a table and JSON."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value and what it must reach."""

    name: str
    shape: str  # of what was measured
    value: float
    unit: str
    target: float | None = None  # None: told for comparison only
    at_least: bool = True  # whether more is better

    @property
    def passed(self) -> bool:
        """Whether the target is reached."""
        if self.target is None:
            return True
        if self.at_least:
            return self.value >= self.target
        return self.value <= self.target


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The shortest wall-clock time of a run, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def table(figures: list[Figure]) -> str:
    """The figures as lines of text."""
    rows = [("", "shape", "measured", "target", "")]
    for figure in figures:
        target = "-"
        if figure.target is not None:
            sign = ">=" if figure.at_least else "<="
            target = f"{sign} {figure.target:.4g}"
        rows.append(
            (
                figure.name,
                figure.shape,
                f"{figure.value:.4g} {figure.unit}",
                target,
                ("PASS" if figure.passed else "FAIL")
                if figure.target is not None
                else "",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def report(figures: list[Figure], path: Path | None = None) -> int:
    """Prints the table, writes JSON if asked; 1 if a target is missed."""
    from scancheck.environment import describe

    print(table(figures))
    if path is not None:
        data = {
            "schema_version": 1,
            "environment": describe(),
            "figures": [asdict(f) | {"passed": f.passed} for f in figures],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2) + "\n")
    return int(not all(figure.passed for figure in figures))
