"""The figure of the power page: two heat maps, rules by recipe groups."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from power_rows import Row
from power_rules import LABELS
from power_summary import Share, by_group, false_alarms, kills

ALL = "all groups"


def draw(rows: list[Row], path: Path) -> None:
    """Writes the figure; the same bytes for the same rows."""
    settings = {"svg.hashsalt": "scancheck", "svg.fonttype": "none"}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(11, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, count, title, colours in (
            (left, kills, "planted bugs caught", "Blues"),
            (right, false_alarms, "correct cases rejected", "Oranges"),
        ):
            table = {ALL: {rule: count(rows, rule) for rule in LABELS}}
            _heat_map(axes, table | by_group(rows, count), title, colours)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _heat_map(
    axes: Axes, table: dict[str, dict[str, Share]], title: str, colours: str
) -> None:
    rates = [[s.rate for s in shares.values()] for shares in table.values()]
    shown = [[float("nan") if r is None else r for r in row] for row in rates]
    axes.imshow(shown, vmin=0.0, vmax=1.0, cmap=colours, aspect="auto")
    axes.set_title(title)
    axes.set_xticks(range(len(LABELS)), list(LABELS.values()), rotation=25, ha="right")
    axes.set_yticks(range(len(table)), list(table))
    for y, row in enumerate(rates):
        for x, rate in enumerate(row):
            if rate is not None:
                ink = "white" if rate > 0.6 else "black"
                axes.text(x, y, f"{100 * rate:.0f} %", ha="center", va="center", c=ink)
