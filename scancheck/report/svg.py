"""Matplotlib figures as inline SVG that takes its colours from the page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matplotlib writes colours as hex; these stand for what the style sheet decides.
INK, FAINT = "#010203", "#010204"
SERIES = ("#010211", "#010212", "#010213", "#010214", "#010215")
_ON_PAGE = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES, start=1)},
}
_SETTINGS: Any = {
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.minor.visible": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A figure on the page."""

    title: str
    svg: str  # an <svg> element with alternative text
    note: str = ""  # what to see in it
    legend: tuple[tuple[int, str, str], ...] = ()  # series from 1, marker, label


_PLACE = re.compile(r' d="[^"]*"|translate\([^)]*\)| [xy]="[^"]*"')
_FINER = re.compile(r"(\.\d\d)\d+")


@contextmanager
def canvas(width: float, height: float) -> "Iterator[Figure]":
    """An empty figure of a size in inches, in the page's style while it is drawn."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        # Settings of the user's own must not change the page.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Figure(figsize=(width, height), layout="constrained")


def to_svg(figure: "Figure", alt: str) -> str:
    """The figure as an SVG element whose alternative text is `alt`.

    The same figure gives the same text. Ids follow from `alt`, so that figures on one
    page do not share any. Called within `canvas`.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": alt}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for colour, variable in _ON_PAGE.items():
        text = text.replace(colour, variable)
    # Groups are called figure_1, axes_1 and so on in every figure; nothing refers to
    # them. Namespaces are implied within HTML.
    text = re.sub(r' id="[\w.]*_\d+"', "", text)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r"\n\s*", "\n", text)
    # A hundredth of a point is not seen; six decimals are a tenth of the page.
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    text = _PLACE.sub(lambda place: _FINER.sub(r"\1", place[0]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
