"""Many runs in a few lines: the worst ratios, and what did not pass."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

WORST = 5


def summary(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The WORST largest error/budget ratios, then each run that is no pass.

    A row is a record as JSON with the id of its `test`. The order of the rows does not
    matter.
    """
    rows = sorted(rows, key=lambda row: (row["test"], row["target"], row["dtype"]))
    ratios = [
        (math.inf if ratio is None else ratio, tensor, row)
        for row in rows
        for tensor, ratio in row["worst_ratio"].items()
    ]
    # Python's sort is stable: equal ratios stay in the order of the tests.
    ratios.sort(key=lambda item: -item[0])
    lines = [f"worst error / budget in {len(rows)} runs:"] if ratios else []
    lines += [
        f"  {ratio:<9.3g} {tensor:<13} {row['target']} {row['dtype']}  {row['test']}"
        for ratio, tensor, row in ratios[:WORST]
    ]
    for row in rows:
        if row["exit_code"] != 0:
            lines += [
                f"{row['verdict']} {row['target']} {row['dtype']}  {row['test']}",
                f"  {_why(row)}",
            ]
    return lines


def _why(row: Mapping[str, Any]) -> str:
    """The first finding in one line, or what was not seen."""
    if row["findings"]:
        finding = row["findings"][0]
        tensor = finding["tensor"] or finding["check"]
        return f"{tensor}: {finding['reason']}; {finding['replay']}"
    if row["unseen"]:
        return f"not seen: {', '.join(row['unseen'])}"
    cases = row["uncertified_cases"] or row["range_cases"] or row["not_judged"]
    return "; ".join(cases[:1]) or row["replay"]
