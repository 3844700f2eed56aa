"""What published evidence is made with: options, rows that say their commit, words.

Rows are CSV files beside their pages, so that a run can be continued and a part of it
replaced.
"""

import argparse
import csv
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

Row = dict[str, str]


def options_of(doc: str, folder: str) -> argparse.ArgumentParser:
    """The options that all have: seed, part of the kernels, and where results go."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="parts of names, comma-separated")
    parser.add_argument("--update", action="store_true", help="keep other lines")
    parser.add_argument("-o", "--output", type=Path, default=Path(folder))
    return parser


def chosen(name: str, match: str) -> bool:
    """Whether a kernel's name has one of the parts."""
    return any(part in name for part in match.split(","))


def commit() -> str:
    """The commit of the checkout, marked where files differ from it.

    The evidence itself, which a run writes, makes no difference.
    """
    revision = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "-uno", "--", ":/", ":/!reports")
    return (revision or "unknown") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def environment() -> str:
    """A line that says what the rows were made in."""
    from scancheck.environment import describe

    return "Environment: " + ", ".join(
        f"{k} {v}" for k, v in sorted(describe().items())
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of an earlier run; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write_rows(rows: Iterable[Row], fields: Sequence[str], path: Path) -> None:
    """Writes the file so that it is whole or not there at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fields)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(part, path)


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
