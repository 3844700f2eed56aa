"""Heat maps can be read: by number, by colour, and by what is said in their place."""

import math
import re
from collections.abc import Callable

import pytest

from scancheck.report.heat_map import HEAT, cell_colours, heat_maps, legend, luminance
from scancheck.report.svg import INK
from scancheck.study.row import Row

MakeRow = Callable[..., Row]


def channels(colour: str) -> list[float]:
    """Red, green and blue from 0 to 1."""
    return [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]


def test_text_has_contrast_on_every_colour() -> None:
    """At least 4.5 to 1 (WCAG 2.2, AA) on each of a thousand steps of the scale."""
    for n in range(1001):
        face, ink = cell_colours(10 ** (n / 500))
        light, dark = sorted(
            (luminance(channels(face)), luminance(channels(ink))), reverse=True
        )
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_scale_starts_at_storing_and_ends_at_a_hundred() -> None:
    """No error better than storing, or worse than a hundred times, leaves the scale."""
    assert cell_colours(0.9)[0] == cell_colours(1.0)[0] == HEAT[0]
    assert cell_colours(1e9)[0] == cell_colours(100.0)[0] == HEAT[-1]
    middle = zip(channels(cell_colours(10.0)[0]), channels(HEAT[2]), strict=True)
    assert max(abs(a - b) for a, b in middle) < 0.01
    assert cell_colours(math.inf) == ("none", INK)


def test_legend_names_the_colours_of_cells() -> None:
    """What the legend says of a colour is what a cell of that error has."""
    for colour, words in legend()[1:]:
        times = float(words.split()[0])
        assert (
            max(
                abs(a - b)
                for a, b in zip(
                    channels(cell_colours(times)[0]), channels(colour), strict=True
                )
            )
            < 0.02
        )


def test_one_map_a_variant_with_every_cell(made_up: MakeRow) -> None:
    """Variants are kept apart, and each cell holds its worst error."""
    rows = [
        made_up(variant=variant, chunk=chunk, recipe=recipe, rms_rel=error)
        for variant in ("plain", "full")
        for chunk in (16, 64)
        for recipe, error in (("a", chunk * 1e-4), ("b", chunk * 1.1e-4))
    ]
    drawn = heat_maps(rows, "linear_scan")
    assert [map_.title for map_ in drawn] == ["plain", "fully compensated"]
    for map_ in drawn:
        assert "1.8e-3 in chunks of 16, 7.0e-3 in chunks of 64" in map_.svg
        assert ">1.8e-3<" in map_.svg
        assert ">7.0e-3<" in map_.svg
        # Six decimals in every place would be much of the page's size.
        assert re.search(r' d="[^"]*\.\d', map_.svg)
        assert not re.search(r' (?:d|x|y)="[^"]*\.\d{3}', map_.svg)
    assert heat_maps(rows, "selective_scan") == []


@pytest.mark.parametrize("verdict", ["RANGE", "FAIL"])
def test_other_verdicts_are_in_the_cell(made_up: MakeRow, verdict: str) -> None:
    """A cell whose case does not pass says so; one that passes does not."""
    (drawn,) = heat_maps([made_up(verdict=verdict, rms_rel=None)], "linear_scan")
    assert f">{verdict}<" in drawn.svg
    (drawn,) = heat_maps([made_up()], "linear_scan")
    assert verdict not in drawn.svg
