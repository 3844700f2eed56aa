"""A Parquet file of rows to one self-contained page, and nothing else."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scancheck.report.advice import (
    ACCURACIES,
    AS_GOOD_AS_STORED,
    answers,
    headline,
)
from scancheck.report.curves import (
    LENGTH_LINES,
    in_chunk_figures,
    length_figures,
    position_figures,
)
from scancheck.report.device_errors import (
    by_gate,
    device_lines,
    device_sentences,
    gradients,
    kernel_lines,
)
from scancheck.report.everyday import accuracies, everyday, sentences
from scancheck.report.failures import failures
from scancheck.report.hazards import hazard_tables
from scancheck.report.heat_map import heat_maps, legend
from scancheck.report.ledger import MAMBA_LAYER, bytes_in_words, ledgers
from scancheck.report.memory import (
    BITS,
    STEP,
    quantised_memory,
    stored_memory,
    tokens_in_words,
)
from scancheck.report.range_map import CHUNKS, measured_ranges, range_map
from scancheck.report.tables import (
    gradient_summary,
    gradient_table,
    verdict_counts,
    way_table,
)
from scancheck.report.words import (
    MISSING,
    describe_way,
    listed,
    plain_number,
    scientific,
    tokens,
    variant_words,
)
from scancheck.study.row import Row
from scancheck.study.store import Study, read_study

ORDINARY = ("grid", "growth", "captured")  # sections that the general answers rest on
MOST_LISTED = 50  # tensors that do not pass
TEMPLATES = Path(__file__).parent / "templates"


def render(parquet: Path, output: Path) -> str:
    """Writes the page of a file of rows; returns its headline.

    The same file gives the same bytes. Raises RecordUnreadable for a file that is not
    one of `scancheck report`, and OSError when the page cannot be written.
    """
    study = read_study(parquet)
    write_text(page(study, parquet.name), output)
    return " ".join(lead(study.rows))


def lead(rows: Sequence[Row]) -> list[str]:
    """The answer in a few sentences.

    Of CUDA kernels, else of everyday gates, else of ordinary inputs.
    """
    return device_sentences(rows) or sentences(rows) or [headline(_ordinary(rows))]


def _ordinary(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.section in ORDINARY]


def page(study: Study, source: str) -> str:
    """The page as HTML text; `source` is the name of the file of rows."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "sci": scientific,
        "num": plain_number,
        "variant": variant_words,
        "tokens": tokens,
        "size": bytes_in_words,
        "memory": tokens_in_words,
        "listed": listed,
        "exact": _exact,
        "yes": _yes,
    }
    content = _content(study)
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    if content["device"]:
        style += (TEMPLATES / "device.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        **content, style=style, source=source
    )


def _exact(value: float | None) -> str:
    """Enough digits to tell neighbouring fp32 values apart; n/a where there is none."""
    return MISSING if value is None else f"{value:.9g}"


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "same" if value else "other"


def _content(study: Study) -> dict[str, Any]:
    """Everything the template names."""
    rows = study.rows
    ops = list(dict.fromkeys(row.op for row in rows))
    subjects = list(dict.fromkeys(row.subject for row in rows))
    ordinary = _ordinary(rows)
    device = device_lines(rows)
    cases = {
        (row.kernel, row.case_id, row.cotangent) for row in rows if row.kind == "case"
    }
    return {
        "study": study,
        "device": device,
        "device_kernels": kernel_lines(device),
        "device_examples": {x.row.op: x.row.kernel for x in reversed(device)},
        "device_gates": by_gate(device),
        "device_gradients": gradients(device),
        "lead": lead(rows),
        "headline": headline(ordinary),
        "ops": ops,
        "subjects": subjects,
        "everyday": everyday(rows),
        "accuracies": accuracies(rows),
        "limits": ACCURACIES,
        "answers": answers(ordinary),
        "describe_way": describe_way,
        "counts": verdict_counts(rows),
        "cases": len(cases),
        "others": [r for r in rows if r.kind == "case" and r.verdict != "PASS"],
        "recipes": sorted({row.recipe for row in rows}),
        "lengths": sorted({row.T for row in rows}),
        "most_listed": MOST_LISTED,
        "limit": AS_GOOD_AS_STORED,
        "heat_legend": legend(),
        "length_lines": LENGTH_LINES,
        "heat": {op: heat_maps(rows, op) for op in subjects},
        "position": {op: position_figures(rows, op) for op in subjects},
        "in_chunk": {op: in_chunk_figures(rows, op) for op in subjects},
        "length": {op: length_figures(rows, op) for op in subjects},
        "hazards": hazard_tables(rows),
        "failures": failures(rows),
        "range_chunks": CHUNKS,
        "ranges": range_map(),
        "measured_ranges": measured_ranges(rows),
        "quantised": quantised_memory(),
        "quantised_bits": BITS,
        "quantised_step": STEP,
        "stored": stored_memory(),
        "layer": MAMBA_LAYER,
        "ledgers": ledgers(),
        "ways": way_table(rows),
        "gradients": gradient_table(rows),
        "gradient_summary": gradient_summary(rows),
    }


def write_text(text: str, path: Path) -> None:
    """Writes a text file so that it is whole or not there at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
