"""When a planted bug turns red, on which recipe, and by which cause it is named.

A mode of campaign.py. A bug is judged case by case, in the order of `scancheck verify
--gradients`, until a red case is named by the cause that the bug declares.
"""

import time
from typing import TYPE_CHECKING, Any

from evidence import Row, commit, environment, table

if TYPE_CHECKING:
    from scancheck.kernel import Kernel

FIELDS = (
    "kernel",
    "dtype",
    "verdict",
    "cause",
    "expected_cause",
    "first_red_recipe",
    "first_red_check",
    "cases_until_red",
    "cases_until_named",
    "seconds",
    "commit",
)
COMMAND = "python benchmarks/campaign.py --until-named"


class Named(Exception):
    """The bug has been named; no further case is needed."""


def judge(target: "str | Kernel", dtype: str, profile: str, seed: int) -> Row:
    """One line of the table, of a registered name or a kernel."""
    from scancheck.checks.experiments import likely_cause
    from scancheck.contract import Contract
    from scancheck.gate.findings import findings_of
    from scancheck.gate.loop import Judging
    from scancheck.registry import resolve_target
    from scancheck.verdict import RED

    (kernel,) = resolve_target(target, None)
    symptom = kernel.symptom or ""
    run = Judging(
        kernel=kernel,
        contract=kernel.contract or Contract(),
        declared=kernel.contract is not None,
        profile=profile,
        gradients=True,
        require=frozenset(),
        seed=seed,
        dtypes=(dtype,),
    )
    row = dict.fromkeys(FIELDS, "")
    row |= {"kernel": kernel.name, "dtype": dtype, "verdict": "PASS"}
    row |= {"expected_cause": symptom, "commit": commit()}
    causes: dict[str, None] = {}

    def look(done: int, total: int, report: Any) -> None:
        if report.verdict not in RED:
            return
        red = [item for item in run.tally.red if item.report is report]
        told = [likely_cause(i.kernel, i.report, i.check)[0] for i in red]
        if symptom not in told:  # a wider contract may say more
            told += [finding.cause for finding in findings_of(run.op, red, "")]
        if not row["cases_until_red"]:
            row["verdict"] = str(report.verdict)
            row["cases_until_red"] = str(done)
            row["first_red_recipe"] = report.case.recipe
            check = red[0].check
            row["first_red_check"] = " ".join(filter(None, (check.check, check.tensor)))
        causes.update(dict.fromkeys(told))
        if symptom in causes:
            row["cases_until_named"] = str(done)
            raise Named

    started = time.monotonic()
    try:
        run.judge(None, look)
    except Named:
        causes = {symptom: None}
    row["cause"] = " ".join(causes)
    row["seconds"] = f"{time.monotonic() - started:.1f}"
    return row


def as_it_must_be(row: Row) -> bool:
    """Whether the bug was named."""
    return bool(row["cases_until_named"])


def page(rows: list[Row], profile: str, seed: int) -> str:
    """The rows as Markdown."""
    named = sum(map(as_it_must_be, rows))
    bugs = {row["kernel"].split(".")[-1] for row in rows}
    shown = [name for name in FIELDS if name != "expected_cause"]
    return (
        "# Planted bugs: how soon they are red, and by what they are named\n\n"
        f"{len(bugs)} bugs, {len(rows)} kernels x dtypes; {named} named. Profile "
        f"{profile}, seed {seed}. Made by `{COMMAND}`.\n\n"
        + table(
            [name.replace("_", " ") for name in shown],
            [[row[name] for name in shown] for row in rows],
        )
        + f"\n{environment()}\n"
    )
