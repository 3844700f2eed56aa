"""The page on fuzzing from its rows: the answer in words, speed, each planted bug."""

import math
import statistics

from evidence import Row, environment, table

LONGEST_S = 120.0  # after which a bug counts as not found
SOON_S = 10.0
WORKERS = 2  # processes that judge, one for each core
CASES, CASES_S = 10_000, 600.0  # so many verified cases within this time
LEAST_SPEED = 20.0  # verified cases/s

WHAT = """\
Counted is the time from the start of the campaign until the case that fails is judged,
its cause named and its file saved. That includes the processes in which the kernel
runs, not the imports of `scancheck fuzz`, which it does once. With the first seed then
until that file holds the smallest case found, which has the same verdict and cause,
while a second process goes on judging. The size is that case's. Each file was copied
into another folder and judged there from the copy alone, by another process.
"""


def as_it_must_be(row: Row) -> bool:
    """Whether the bug was found, and its finding replays."""
    return row["found"] == "True" and row["replays"] == "True"


def page(rows: list[Row], speeds: list[Row]) -> tuple[str, bool]:
    """The page as Markdown, and whether everything is as it must be.

    It can stand at the end of the page on power, so its title is a section's.
    """
    good = all(map(as_it_must_be, rows)) and all(map(_fast_enough, speeds))
    seeds = sorted({int(row["seed"]) for row in rows})
    commits = sorted({row["commit"] for row in (*rows, *speeds)})
    parts = [
        "## Time to the first finding\n",
        f"Made by `python benchmarks/fuzzing.py`, seeds {', '.join(map(str, seeds))}, "
        f"at commit {', '.join(commits)}.\n",
        _answer(rows) if rows else "",
        WHAT,
        _speed(speeds) if speeds else "",
        _bugs(rows),
        f"{environment()}\n",
    ]
    return "\n".join(part for part in parts if part), good


def verified(row: Row) -> int:
    """Cases on which the reference was certified, so that they were judged."""
    return int(row["cases"]) - int(row["uncertified"])


def _fast_enough(row: Row) -> bool:
    return row["findings"] == "0" and _per_second(row) >= max(
        LEAST_SPEED, CASES / CASES_S
    )


def _per_second(row: Row) -> float:
    return verified(row) / float(row["seconds"])


def _seconds(row: Row) -> float:
    return float(row["seconds"]) if row["found"] == "True" else math.inf


def _of_bug(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["kernel"], []).append(row)
    return found


def _answer(rows: list[Row]) -> str:
    bugs = _of_bug(rows)
    medians = {name: _median(of) for name, of in bugs.items()}
    always = [name for name, of in bugs.items() if max(map(_seconds, of)) < math.inf]
    soon = sum(seconds <= SOON_S for seconds in medians.values())
    slowest = max(rows, key=_seconds)
    found = [row for row in rows if row["found"] == "True"]
    replayed = sum(row["replays"] == "True" for row in found)
    named = sum(row["cause"] == row["planted"] for row in found)
    told = [
        f"{len(always)} of {len(bugs)} planted bugs (each op counted) were found by "
        f"every seed within {LONGEST_S:.0f} s.",
        f"The median of their medians is {_time(statistics.median(medians.values()))};"
        f" {100 * soon / len(bugs):.0f} % have a median within {SOON_S:.0f} s.",
        f"The slowest campaign: {_time(_seconds(slowest))} "
        f"({slowest['kernel']}, seed {slowest['seed']}).",
        f"{replayed} of {len(found)} findings fail in the same way from their file in "
        f"another folder. The first finding names the very cause that was planted in "
        f"{named} of {len(found)} campaigns; its cases are judged one by one, without "
        "the relations and comparisons of `scancheck verify`.",
    ]
    missed = [f"{r['kernel']} (seed {r['seed']})" for r in rows if r not in found]
    if missed:
        told.append(f"**Not found**: {', '.join(missed)}.")
    return "\n".join(told) + "\n"


def _speed(speeds: list[Row]) -> str:
    cases = sum(map(verified, speeds))
    seconds = sum(float(row["seconds"]) for row in speeds)
    start = max(float(row["start_seconds"]) for row in speeds)
    body = [
        [
            row["kernel"],
            str(verified(row)),
            row["pass"],
            row["range"],
            row["uncertified"],
            row["findings"],
            row["seconds"],
            f"{_per_second(row):.1f}",
            row["commit"],
        ]
        for row in speeds
    ]
    head = [
        "correct kernel",
        "verified cases",
        "PASS",
        "RANGE",
        "UNCERTIFIED",
        "findings",
        "seconds",
        "cases/s",
        "commit",
    ]
    return (
        f"{cases} verified cases of correct kernels took {seconds:.0f} s, "
        f"{cases / seconds:.1f} cases/s: {CASES} in {CASES * seconds / cases:.0f} s "
        f"(at most {CASES_S:.0f}; at least {LEAST_SPEED:.0f} cases/s). {WORKERS} "
        "processes, their start included, all formats of the kernel, outputs and "
        "gradients; 1 to 64 channels, and 1 to 512 tokens but for about one case in "
        "twenty, which is longer, up to 65 536. `scancheck fuzz` for a single case "
        f"takes {start:.1f} s, nearly all of it imports.\n\n" + table(head, body)
    )


def _bugs(rows: list[Row]) -> str:
    body = []
    for name, of in _of_bug(rows).items():
        found = [row for row in of if row["found"] == "True"]
        shrunk = [row for row in found if row["shrunk_seconds"]]
        body.append(
            [
                name,
                _time(_median(of)),
                _time(max(map(_seconds, of))),
                ", ".join(row["cases"] or "-" for row in of),
                _causes(found, of[0]["planted"]),
                ", ".join(sorted({row["profile"] for row in found})) or "-",
                ", ".join(f"{float(row['shrunk_seconds']):.1f} s" for row in shrunk),
                ", ".join(row["size"] for row in shrunk),
                f"{sum(row['replays'] == 'True' for row in found)} of {len(of)}",
            ]
        )
    head = [
        "planted bug",
        "saved after, median",
        "slowest seed",
        "cases until found",
        "cause as found",
        "inputs",
        "shrunk after",
        "to the size",
        "replays alike",
    ]
    return table(head, body)


def _causes(found: list[Row], planted: str) -> str:
    """The causes named, and the planted one where no seed named it first."""
    told = sorted({row["cause"] for row in found})
    missing = f" (planted: {planted})" if found and planted not in told else ""
    return (", ".join(told) or "not found") + missing


def _median(rows: list[Row]) -> float:
    return statistics.median(map(_seconds, rows))


def _time(seconds: float) -> str:
    return "not found" if math.isinf(seconds) else f"{seconds:.1f} s"
