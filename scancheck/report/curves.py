"""Curves of the error: along the sequence, and against its length."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scancheck.report.growth import growth_in_words
from scancheck.report.svg import FAINT, SERIES, Drawn, canvas, to_svg
from scancheck.report.words import algorithm_label, scientific
from scancheck.study.row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of each series: what matplotlib calls its marker, and how text shows it.
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"))
MOST_TICKS = 5  # of lengths
LARGEST_DRAWN = 1e150  # margins and ticks beyond it overflow at the end of fp64
MARKS = 12  # markers along a curve, to tell curves apart without colour
# Of a length figure, from the top: name, field of Row, colour, dashes, marker.
LENGTH_LINES = (
    ("sound bound", "max_budget_rel", 3, "-", ""),
    ("probable bound", "probable_rel", 2, "--", ""),
    ("largest error", "max_rel", 1, "-", "o"),
    ("RMS error", "rms_rel", 0, "-", "s"),
)


def position_figures(rows: Sequence[Row], op: str) -> list[Drawn]:
    """RMS error along the sequence, one figure a recipe and storage format."""
    return _profiles(rows, op, "position")


def in_chunk_figures(rows: Sequence[Row], op: str) -> list[Drawn]:
    """RMS error along a chunk, over all chunks of the sequence."""
    return _profiles(rows, op, "in_chunk")


def _profiles(rows: Sequence[Row], op: str, kind: str) -> list[Drawn]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.kind == kind and row.subject == op:
            groups.setdefault((row.recipe, row.storage), []).append(row)
    return [
        _profile(f"{s} storage, {r}", op, found, edges=kind == "position")
        for (r, s), found in groups.items()
    ]


def _profile(title: str, op: str, rows: list[Row], *, edges: bool) -> Drawn:
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(algorithm_label(row), []).append(row)
    # A label has one colour in all figures of a storage format; the legend has the
    # order in which the curves end.
    series = {label: n for n, label in enumerate(sorted(curves))}
    order = sorted(curves, key=lambda label: -_ends(curves[label])[1])
    what = "sequence" if edges else "chunk"
    alt = f"RMS error along the {what}, {op}, {title}. " + ". ".join(
        "{}: {} at the start, {} at the end".format(
            label, *(scientific(end) for end in _ends(curves[label]))
        )
        for label in order
    )
    end = max(row.T if edges else row.chunk or 0 for row in rows)
    with canvas(10.0 if edges else 5.0, 2.9) as figure:
        axes = figure.subplots()
        for label in order:
            _draw_curve(axes, series[label], curves[label])
        _scale_errors(axes)
        if edges:
            _draw_edges(axes, rows)
        axes.set_xlim(0, end)
        axes.set_xlabel("token" if edges else "token of a chunk")
        axes.set_ylabel("RMS error / RMS truth")
        axes.grid(True, axis="y")
        svg = to_svg(figure, alt)
    legend = tuple(
        (
            series[label] % len(SERIES) + 1,
            MARKERS[series[label] % len(MARKERS)][1],
            label,
        )
        for label in order
    )
    return Drawn(title=title, svg=svg, legend=legend)


def _draw_edges(axes: "Axes", rows: list[Row]) -> None:
    """A thin line at every chunk edge."""
    end = max(row.T for row in rows)
    for chunk in {row.chunk for row in rows if row.chunk}:
        for edge in range(chunk, end, chunk):
            axes.axvline(edge, color=FAINT, linewidth=0.6, zorder=0)


def _scale_errors(axes: "Axes") -> None:
    """A logarithmic scale, where there is an error to scale by."""
    if any(np.size(line.get_xdata()) for line in axes.get_lines()):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")


def _ends(points: list[Row]) -> tuple[float, float]:
    """The first and the last error that is known and not zero; 0 where none is."""
    known = [point.rms_rel for point in points if point.rms_rel]
    return (known[0], known[-1]) if known else (0.0, 0.0)


def _draw_curve(axes: "Axes", n: int, points: list[Row]) -> None:
    known = [
        (p.token + p.tokens / 2, p.rms_rel)
        for p in points
        if p.rms_rel and p.token is not None and p.tokens is not None
    ]
    every = max(1, len(known) // MARKS)
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        color=SERIES[n % len(SERIES)],
        marker=MARKERS[n % len(MARKERS)][0],
        markevery=(n * every // len(MARKERS), every),
        linewidth=1.1,
    )


def length_figures(rows: Sequence[Row], op: str) -> dict[str, list[Drawn]]:
    """Error against length with both bounds by recipe, one figure a way to compute."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.kind == "length" and row.subject == op:
            label = f"{row.storage} storage, {algorithm_label(row)}"
            groups.setdefault((row.recipe, label), []).append(row)
    figures: dict[str, list[Drawn]] = {}
    for (recipe, label), found in groups.items():
        found.sort(key=lambda row: row.T)
        figures.setdefault(recipe, []).append(_length(op, recipe, label, found))
    return figures


def _length(op: str, recipe: str, label: str, rows: list[Row]) -> Drawn:
    growth = growth_in_words(rows)
    lengths = sorted({row.T for row in rows})
    lines = {field: _by_length(rows, field) for _, field, *_ in LENGTH_LINES}
    # Whatever is sound is probable too; lambda makes short sequences' bound wider.
    sound = lines["max_budget_rel"]
    lines["probable_rel"] = {
        t: min(value, sound.get(t, value)) for t, value in lines["probable_rel"].items()
    }
    alt = f"Error against length, {op}, {recipe}, {label}: RMS error {growth}. "
    alt += ". ".join(
        f"{name} "
        + ", ".join(f"{scientific(lines[field].get(t))} at {t}" for t in lengths)
        for name, field, *_ in LENGTH_LINES
    )
    with canvas(3.5, 2.3) as figure:
        axes = figure.subplots()
        for _, field, colour, dashes, marker in LENGTH_LINES:
            axes.plot(
                list(lines[field]),
                [y if y < LARGEST_DRAWN else np.nan for y in lines[field].values()],
                color=SERIES[colour],
                linestyle=dashes,
                marker=marker,
            )
        axes.set_xscale("log", base=2)
        _scale_errors(axes)
        # Labels of more lengths would overlap.
        shown = lengths[:: -(-len(lengths) // MOST_TICKS)]
        axes.set_xticks(shown, [str(t) for t in shown])
        axes.minorticks_off()
        axes.set_xlabel("tokens")
        axes.set_ylabel("error / RMS truth")
        axes.grid(True, axis="y")
        svg = to_svg(figure, alt)
    return Drawn(title=label, note=f"RMS error {growth}", svg=svg)


def _by_length(rows: list[Row], field: str) -> dict[int, float]:
    """One field by length: RMS over seeds of an RMS, else the largest over seeds."""
    found: dict[int, list[float]] = {}
    for row in rows:
        value = getattr(row, field)
        if value:
            found.setdefault(row.T, []).append(value)
    if field == "rms_rel":
        return {t: float(np.sqrt(np.mean(np.square(v)))) for t, v in found.items()}
    return {t: max(values) for t, values in found.items()}
