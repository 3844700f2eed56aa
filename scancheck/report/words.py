"""Numbers and ways to compute in the words of the page."""

import math
from collections.abc import Iterable

from scancheck.report.ways import Way
from scancheck.study.row import Row

MISSING = "n/a"  # where a number does not apply, or is not finite
VARIANTS = {
    "plain": "plain",
    "log_diff": "difference of log sums",
    "kahan": "Kahan on the sum",
    "full": "fully compensated",
}


def scientific(value: float | None) -> str:
    """Two digits, as 1.7e-3; or MISSING."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def plain_number(value: float | None, digits: int = 3) -> str:
    """A few significant digits, without an exponent where that is readable."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return scientific(value)
    if abs(value) >= 10**digits - 0.5:  # which rounds to a number with more digits
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def variant_words(variant: str) -> str:
    """The variant spelled out; one that this version does not know, as it is."""
    return VARIANTS.get(variant, variant)


def describe_way(way: Way) -> str:
    """The way in words: formats, variant and chunk size."""
    chunk = "" if way.chunk is None else f", chunk {way.chunk}"
    return describe_kind(way) + chunk


def describe_kind(way: Way) -> str:
    """The way in words without its chunk size."""
    parts = [f"{way.storage} storage", f"{way.compute} arithmetic"]
    if way.state != way.compute:
        parts.append(f"{way.state} state")
    return ", ".join([*parts, variant_words(way.variant)])


def instruct(way: Way) -> str:
    """The way as an instruction, for a reader who knows none of the report's words."""
    formats = f"store in {way.storage}, compute in {way.compute}"
    variant = "" if way.variant == "plain" else f", {variant_words(way.variant)}"
    chunk = "" if way.chunk is None else f", in chunks of {way.chunk}"
    return f"{formats}, keep the state in {way.state}{variant}{chunk}"


def kind_label(way: Way | Row) -> str:
    """Formats and variant as short as they can be told apart."""
    if way.variant == "plain":
        return format_label(way)
    return f"{format_label(way)}, {variant_words(way.variant)}"


def listed(words: Iterable[object], last: str = "and") -> str:
    """The words with commas, and one between the last two."""
    texts = [str(word) for word in words]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def tokens(count: int) -> str:
    """A number of tokens, its thousands apart from 10 000 on."""
    return f"{count:,}".replace(",", "\u202f") if count >= 10_000 else str(count)


def format_label(way: Way | Row) -> str:
    """Storage format, and where arithmetic or state have another than usual."""
    return ", ".join([way.storage, *_formats_beside(way)])


def algorithm_label(way: Way | Row) -> str:
    """Algorithm, variant, and formats beside the storage format."""
    name = way.algorithm.replace("_", "-")
    parts = [name if way.chunk is None else f"{name} {way.chunk}"]
    if way.variant != "plain":
        parts.append(variant_words(way.variant))
    return ", ".join([*parts, *_formats_beside(way)])


def _formats_beside(way: Way | Row) -> list[str]:
    if way.compute != "fp32":
        return [f"{way.compute} arithmetic"]
    return [f"{way.state} state"] if way.state != way.compute else []
