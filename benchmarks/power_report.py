"""The published page on the power of the rules: Markdown and one figure, from rows."""

from collections.abc import Callable, Iterable
from pathlib import Path

from power_rows import About, Row
from power_rules import LABELS
from power_summary import (
    ORDINARY,
    Share,
    by_bug,
    by_group,
    false_alarms,
    kills,
    shown,
    unnamed,
    wronged,
)

FIGURE = "power.svg"
TIMES = "time_to_first_finding.md"
WITH_ORACLE = ("assert_close", "allclose_1e4", "rms_0005")
Count = Callable[[Iterable[Row], str], Share]

TITLE = "# Which rule catches which bug, and what it wrongs\n"
INTRODUCTION = """\
Every planted bug and every correct kernel (models and controls) is run on the cases of
`scancheck verify`, gradients included. Five rules judge the very same tensors, those of
the first call on each case:

"""
EXPLANATION = f"""\
The naive loop is the op's definition in PyTorch, a step per token, gradients by
autograd. In fp32 (fp64 for fp64 cases) it is what tests of such kernels compare with;
as the baseline, all tensors, states and parameters too, are in the storage format.
scancheck also sees repeated calls, relations between calls, and what a call does to its
memory. A call that raises counts as rejected by every rule.

A bug counts as caught in an op and dtype when a tensor of any case is rejected that is
accepted of the fault-free control on the same case: a test that fails without the bug
too has not found it. Any case is generous to the other rules: these inputs are
scancheck's, each aimed at a hazard. Ordinary data, `{ORDINARY}` alone in the first line
of the tables by group, is closer to what their own tests draw.

![Kill rate and false alarms per rule and recipe group]({FIGURE})
"""


def write_report(rows: list[Row], about: About, folder: Path) -> bool:
    """Writes README.md and the figure; whether scancheck caught all and wronged none.

    The table of times to the first finding, where that file lies beside, ends the page.
    """
    from power_figure import draw

    draw(rows, folder / FIGURE)
    (folder / "README.md").write_text(page(rows, about, _times(folder / TIMES)))
    missed = kills(rows, "scancheck")
    perfect = missed.part == missed.whole and not wronged(rows, "scancheck").part
    return perfect and not unnamed(rows)


def page(rows: list[Row], about: About, times: str = "") -> str:
    """The page as Markdown."""
    parts = [
        f"{TITLE}\nMade by `{about.command}`; all rows are in `rows.parquet`.\n",
        INTRODUCTION + _rules() + "\n" + EXPLANATION,
        _summary(rows),
        "## Kill rate by recipe group\n\nPlanted bugs caught by a case of the group, "
        "of those that have one.\n\n" + _groups(rows, kills),
        "## False alarms by recipe group\n\nCases of correct kernels that are "
        "rejected, without those of verdict RANGE.\n\n" + _groups(rows, false_alarms),
        _arithmetic(rows),
        _dtypes(rows),
        _bugs(rows),
        _oracle(rows),
        times,
        "## Environment\n\n"
        f"Profile {about.profile}, seed {about.seed}. "
        + ", ".join(f"{k} {v}" for k, v in sorted(about.environment.items()))
        + "\n",
    ]
    return "\n".join(part for part in parts if part)


def _rules() -> str:
    loop, stored = "naive loop in fp32", "`torch.allclose` does, in every dtype"
    accepts = {
        "scancheck": (
            "its error is within the budget derived from the contract",
            "the certified oracle",
        ),
        "assert_close": ("`torch.testing.assert_close` does", loop),
        "allclose_1e4": (stored, loop),
        "rms_0005": (
            "the difference has an RMS below 0.005 of the reference's, or nowhere "
            "exceeds 1e-6 (flash-linear-attention)",
            loop,
        ),
        "twice_baseline": (
            "its largest error is at most twice the baseline's (FlashAttention)",
            "the oracle; baseline: naive loop in the storage format",
        ),
    }
    body = [[LABELS[rule], *texts] for rule, texts in accepts.items()]
    return _table(["rule", "accepts a tensor when", "compared with"], body)


def _times(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _table(head: list[str], body: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _percent(share: Share) -> str:
    if share.rate is None:
        return "-"
    # 99.96 % is not all, and 0.04 % is not none.
    exact = share.part in (0, share.whole)
    return f"{100 * share.rate:.0f} %" if exact else f"{100 * share.rate:.1f} %"


def _counted(share: Share) -> str:
    return f"{share.part} of {share.whole}"


def _summary(rows: list[Row]) -> str:
    bugs = len({row.bug for row in rows if row.bug})
    body = []
    for rule, label in LABELS.items():
        shares = [count(rows, rule) for count in (kills, shown, false_alarms, wronged)]
        cells = [f"{_percent(share)} ({_counted(share)})" for share in shares]
        body.append([label, *cells])
    head = [
        "rule",
        "planted bugs caught",
        "cases where a bug shows, rejected",
        "correct cases rejected",
        "correct kernels rejected",
    ]
    told = unnamed(rows)
    named = "scancheck names the cause of each bug that it was planted with"
    if told:
        named = f"scancheck does not name the cause of {', '.join(told)}"
    return (
        f"## Summary\n\n{bugs} planted bugs, counted once per op and dtype; correct "
        f"kernels once per dtype; {named}. A bug shows where scancheck rejects "
        "the case.\n\n" + _table(head, body)
    )


def _groups(rows: list[Row], count: Count) -> str:
    table = by_group(rows, count)
    body = [
        [group, *(_percent(share) for share in shares.values())]
        for group, shares in table.items()
    ]
    return _table(["recipe group", *LABELS.values()], body)


def _dtypes(rows: list[Row]) -> str:
    body = []
    for dtype in sorted({row.dtype for row in rows}):
        part = [row for row in rows if row.dtype == dtype]
        for label, count in (("bugs caught", kills), ("cases rejected", false_alarms)):
            shares = [_percent(count(part, rule)) for rule in LABELS]
            body.append([f"{dtype}: {label}", *shares])
    return "## By dtype\n\n" + _table(["", *LABELS.values()], body)


def _arithmetic(rows: list[Row]) -> str:
    """False alarms on kernels that compute in fp32, and on those in short formats."""
    body = []
    for short, label in ((False, "fp32 or wider"), (True, "declared shorter")):
        part = [row for row in rows if row.short == short]
        shares = [_percent(false_alarms(part, rule)) for rule in LABELS]
        body.append([label, *shares])
    return (
        "## False alarms by arithmetic\n\nCorrect kernels whose operations and states "
        "are fp32 or wider, whatever the storage, and those whose contract declares a "
        "shorter format for either.\n\n"
        + _table(["operations and states", *LABELS.values()], body)
    )


def _bugs(rows: list[Row]) -> str:
    table = by_bug(rows)
    body = [
        [bug.replace("_", " "), *(_marked(share) for share in shares.values())]
        for bug, shares in table.items()
    ]
    ordinary = [row for row in rows if row.recipe == ORDINARY]
    return (
        "## Each bug\n\nOps and dtypes in which the rule catches the bug; bold where "
        "it catches it nowhere.\n\n"
        + _table(["planted bug", *LABELS.values()], body)
        + "\nMissed by every case of all recipes:\n\n"
        + _missed(table)
        + f"\nMissed on ordinary data (`{ORDINARY}` alone):\n\n"
        + _missed(by_bug(ordinary))
    )


def _marked(share: Share) -> str:
    return _counted(share) if share.part else f"**{_counted(share)}**"


def _missed(table: dict[str, dict[str, Share]]) -> str:
    """A line per rule: bugs that it misses everywhere, and in some op or dtype."""
    lines = []
    for rule, label in LABELS.items():
        counted = {bug: shares[rule] for bug, shares in table.items()}
        nowhere = [bug for bug, share in counted.items() if not share.part]
        partly = [b for b, share in counted.items() if 0 < share.part < share.whole]
        text = ", ".join(nowhere) or "none"
        more = f"; in some op or dtype {', '.join(partly)}" if partly else ""
        lines.append(f"- **{label}** ({len(nowhere)}): {text}{more}\n")
    return "".join(lines)


def _oracle(rows: list[Row]) -> str:
    """What would change if the other rules compared with the oracle."""
    body = []
    for rule in WITH_ORACLE:
        changed = sum(
            bool(getattr(r, rule)) != bool(getattr(r, f"{rule}_oracle")) for r in rows
        )
        body.append(
            [
                LABELS[rule],
                _counted(Share(part=changed, whole=len(rows))),
                *(
                    f"{_counted(count(rows, rule))} -> "
                    f"{_counted(count(rows, f'{rule}_oracle'))}"
                    for count in (kills, false_alarms)
                ),
            ]
        )
    head = ["rule", "cases judged otherwise", "bugs caught", "correct cases rejected"]
    return (
        "## With the oracle as reference\n\nThe fp32 loop errs too. Held against the "
        "oracle instead, the same rules give:\n\n" + _table(head, body)
    )
