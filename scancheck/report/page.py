"""A Parquet file of rows to one self-contained page, and nothing else."""

import os
import tempfile
from pathlib import Path
from typing import Any

from scancheck.report.advice import AS_GOOD_AS_STORED, answers, headline
from scancheck.report.curves import LENGTH_LINES, length_figures, position_figures
from scancheck.report.heat_map import heat_maps, legend
from scancheck.report.tables import (
    gradient_summary,
    gradient_table,
    verdict_counts,
    way_table,
)
from scancheck.report.words import (
    describe_way,
    plain_number,
    scientific,
    variant_words,
)
from scancheck.study.store import Study, read_study

MOST_LISTED = 50  # tensors that do not pass
TEMPLATES = Path(__file__).parent / "templates"


def render(parquet: Path, output: Path) -> str:
    """Writes the page of a file of rows; returns its headline.

    The same file gives the same bytes. Raises RecordUnreadable for a file that is not
    one of `scancheck report`, and OSError when the page cannot be written.
    """
    study = read_study(parquet)
    write_text(page(study, parquet.name), output)
    return headline(study.rows)


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
    }
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        **_content(study), style=style, source=source
    )


def _content(study: Study) -> dict[str, Any]:
    """Everything the template names."""
    rows = study.rows
    ops = list(dict.fromkeys(row.op for row in rows))
    cases = {
        (row.kernel, row.case_id, row.cotangent) for row in rows if row.kind == "case"
    }
    return {
        "study": study,
        "headline": headline(rows),
        "ops": ops,
        "answers": answers(rows),
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
        "heat": {op: heat_maps(rows, op) for op in ops},
        "position": {op: position_figures(rows, op) for op in ops},
        "length": {op: length_figures(rows, op) for op in ops},
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
