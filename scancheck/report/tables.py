"""Rows summed up for the page's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from scancheck.report.ways import excess, ways_of
from scancheck.report.words import format_label, variant_words
from scancheck.study.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class WayLine:
    """One way to compute, over all its forward cases."""

    op: str
    algorithm: str
    variant: str
    storage: str
    compute: str
    state: str
    chunk: int | None
    cases: int
    passed: int
    verdicts: str  # other verdicts with their counts
    rms_rel: float | None  # worst
    excess: float  # worst error over that of storing the exact answer
    max_ulp: float | None
    err_over_uM: float | None
    max_ratio: float | None
    rho: float | None
    vacuous_share: float | None
    effective_bits: float | None  # fewest
    worst_on: str  # recipe and length of the worst RMS error
    final_state: float | None  # worst RMS error of the final state


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLine:
    """One gradient of one way to compute."""

    op: str
    tensor: str
    label: str
    chunk: int | None
    recipe: str
    T: int
    verdict: str
    rms_rel: float | None
    max_ratio: float | None
    max_ulp: float | None


def verdict_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Tensors by verdict, the commonest first."""
    found: dict[str, int] = {}
    for row in rows:
        if row.kind == "case":
            found[row.verdict] = found.get(row.verdict, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def way_table(rows: Sequence[Row]) -> list[WayLine]:
    """Every way to compute, cheapest first."""
    final = _final_states(rows)
    lines = []
    for way in ways_of(rows):
        others: dict[str, int] = {}
        for row in way.rows:
            if row.verdict != "PASS":
                others[row.verdict] = others.get(row.verdict, 0) + 1
        worst = way.worst
        lines.append(
            WayLine(
                op=way.op,
                algorithm=way.algorithm,
                variant=way.variant,
                storage=way.storage,
                compute=way.compute,
                state=way.state,
                chunk=way.chunk,
                cases=len(way.rows),
                passed=way.passed,
                verdicts=", ".join(f"{n} {v}" for v, n in sorted(others.items())),
                rms_rel=worst.rms_rel,
                excess=excess(way.farthest),
                max_ulp=_largest([row.max_ulp for row in way.rows]),
                err_over_uM=_largest([row.err_over_uM for row in way.rows]),
                max_ratio=_largest([row.max_ratio for row in way.rows]),
                rho=_largest([row.rho for row in way.rows]),
                vacuous_share=_largest([row.vacuous_share for row in way.rows]),
                effective_bits=_smallest([row.effective_bits for row in way.rows]),
                worst_on=f"{worst.recipe} ({worst.T})",
                final_state=_largest(
                    [final.get((row.kernel, row.case_id)) for row in way.rows]
                ),
            )
        )
    return lines


def gradient_summary(
    rows: Sequence[Row],
) -> tuple[list[str], list[tuple[str, str, list[float | None]]]]:
    """Ways to compute, and for each op and gradient its worst RMS error in each way."""
    errors: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    for row in _gradient_rows(rows):
        cells = errors.setdefault((row.subject, row.tensor), {})
        cells.setdefault(_gradient_label(row), []).append(row.rms_rel)
    labels = list(dict.fromkeys(label for cells in errors.values() for label in cells))
    lines = [
        (op, tensor, [_largest(cells.get(label, [])) for label in labels])
        for (op, tensor), cells in errors.items()
    ]
    return labels, lines


def _gradient_rows(rows: Sequence[Row]) -> list[Row]:
    return [
        row
        for row in rows
        if row.kind == "case" and row.cotangent is not None and row.tensor[:1] == "d"
    ]


def _gradient_label(row: Row) -> str:
    return f"{format_label(row)}: {variant_words(row.variant)}"


def _final_states(rows: Sequence[Row]) -> dict[tuple[str, str], float | None]:
    """RMS error of the final state by kernel and case."""
    return {
        (row.kernel, row.case_id): row.rms_rel
        for row in rows
        if row.kind == "case" and not row.sequence and row.cotangent is None
    }


def gradient_table(rows: Sequence[Row]) -> list[GradientLine]:
    """Every gradient that was measured."""
    return [
        GradientLine(
            op=row.subject,
            tensor=row.tensor,
            label=_gradient_label(row),
            chunk=row.chunk,
            recipe=row.recipe,
            T=row.T,
            verdict=row.verdict,
            rms_rel=row.rms_rel,
            max_ratio=row.max_ratio,
            max_ulp=row.max_ulp,
        )
        for row in _gradient_rows(rows)
    ]


def _largest(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _smallest(values: Sequence[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)
