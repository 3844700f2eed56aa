"""Heat maps of the error: chunk size x format, one for each variant."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scancheck.report.svg import FAINT, INK, Drawn, canvas, to_svg
from scancheck.report.ways import Way, by_precision, excess, ways_of
from scancheck.report.words import VARIANTS, format_label, scientific, variant_words
from scancheck.study.row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From as good as storing to a hundred times worse. The colours differ in hue from
# end to end and carry their number, so none has to be told from its neighbour.
HEAT = ("#2b6f9e", "#6aa6b8", "#d9c36a", "#d2803a", "#9c2f2a")
WORST = 100.0
LABEL_WIDTH, CELL_WIDTH, CELL_HEIGHT, AXIS_HEIGHT = 1.45, 0.66, 0.34, 0.5  # inches
# Relative luminance at which black and white text have the same contrast (WCAG 2.2).
DARK_BELOW = 0.179
WHITE, BLACK = "#ffffff", "#000000"


def legend() -> list[tuple[str, str]]:
    """Colours of the scale with what each means."""
    steps = [WORST ** (n / (len(HEAT) - 1)) for n in range(len(HEAT))]
    words = ["as good as storing"]
    words += [f"{step:.2g} times its error" for step in steps[1:-1]]
    words.append(f"{WORST:g} times or more")
    return list(zip(HEAT, words, strict=True))


def heat_maps(rows: Sequence[Row], op: str) -> list[Drawn]:
    """Worst error of every format by chunk size, one map a variant."""
    swept = [row for row in rows if row.section in ("grid", "captured")]
    ways = [way for way in ways_of(swept) if way.op == op and way.algorithm == "chunk"]
    present = {way.variant for way in ways}
    order = [variant for variant in VARIANTS if variant in present]
    order += sorted(present - set(order))
    chunks = sorted({way.chunk or 0 for way in ways})
    return [
        _heat_map(op, variant, chunks, [way for way in ways if way.variant == variant])
        for variant in order
    ]


def _heat_map(op: str, variant: str, chunks: list[int], ways: list[Way]) -> Drawn:
    labels = list(
        dict.fromkeys(format_label(w) for w in sorted(ways, key=by_precision))
    )
    cells = {(format_label(way), way.chunk or 0): way for way in ways}
    title = variant_words(variant)
    alt = f"Heat map for {op}, {title}: worst relative RMS error. "
    alt += ". ".join(
        f"{label}: "
        + ", ".join(
            f"{scientific(cells[label, chunk].worst.rms_rel)} in chunks of {chunk}"
            for chunk in chunks
            if (label, chunk) in cells
        )
        for label in labels
    )
    width = LABEL_WIDTH + CELL_WIDTH * len(chunks)
    height = AXIS_HEIGHT + CELL_HEIGHT * len(labels)
    with canvas(width, height) as figure:
        axes = figure.subplots()
        for (label, chunk), way in cells.items():
            _draw_cell(axes, chunks.index(chunk), labels.index(label), way)
        axes.set_xlim(-0.5, len(chunks) - 0.5)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xticks(range(len(chunks)), [str(chunk) for chunk in chunks])
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(length=0)
        axes.set_xlabel("tokens in a chunk")
        axes.spines[:].set_visible(False)
        svg = to_svg(figure, alt)
    return Drawn(title=title, svg=svg)


def _draw_cell(axes: "Axes", x: int, y: int, way: Way) -> None:
    """One coloured cell with the worst error in it, and other verdicts below."""
    from matplotlib.patches import Rectangle

    face, ink = cell_colours(excess(way.farthest))
    cell = Rectangle(
        (x - 0.48, y - 0.46), 0.96, 0.92, facecolor=face, edgecolor=FAINT, linewidth=0.4
    )
    axes.add_patch(cell)
    others = sorted({row.verdict for row in way.rows} - {"PASS"})
    lift = 0.16 if others else 0.0
    words = scientific(way.worst.rms_rel)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "color": ink}
    axes.text(x, y - lift, words, fontsize=9.0 - 10 * lift, **middle)
    if others:
        axes.text(x, y + 0.25, others[0], fontsize=5.5, **middle)


def cell_colours(times: float) -> tuple[str, str]:
    """Colours of a cell and of its text, for an error so many times that of storing.

    An error that is unknown has no colour.
    """
    from matplotlib.colors import LinearSegmentedColormap

    if not math.isfinite(times):
        return "none", INK
    share = min(1.0, math.log(max(times, 1.0)) / math.log(WORST))
    red, green, blue, _ = LinearSegmentedColormap.from_list("heat", HEAT)(share)
    face = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
    dark = luminance((red, green, blue)) < DARK_BELOW
    return face, WHITE if dark else BLACK


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
