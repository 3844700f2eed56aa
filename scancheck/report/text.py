"""A run as one screen of text: the verdict, what is wrong where, and what to try."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scancheck.record import Finding, RunRecord
from scancheck.report.blindness import BLIND_ADVICE, blind_advice
from scancheck.report.place import element, place_words, tensor_label
from scancheck.verdict import (
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_PASS,
    EXIT_RED,
)

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100  # columns of a screen
HEIGHT = 30  # lines of a screen
STEP_COLUMNS = ("token", "a", "b", "wanted", "got")
STEP_WIDTH = 15  # columns of each
FEWEST_STEPS = 4  # that say something
IN_FULL = 3  # findings that are told in full
BRIEF = 12  # lines of a test's message (style.md, section 5)
NAMED = 3  # cases that are listed by id
RANGE_ADVICE = "a shorter chunk, a sequential order or a log form would hold"

STYLES = {
    EXIT_PASS: "bold green",
    EXIT_RED: "bold red",
    EXIT_INCONCLUSIVE: "bold yellow",
    EXIT_HARNESS: "bold yellow",
}
RED_STYLE, AMBER_STYLE, QUIET_STYLE = "red", "yellow", "dim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the screen; a command is never broken, so that it can be copied."""

    text: str
    style: str = ""  # a rich style, or empty

    @property
    def height(self) -> int:
        """Rows that it takes on a screen of WIDTH columns."""
        return max(1, -(-len(self.text) // WIDTH))


def explain(record: RunRecord) -> str:
    """One screen of plain text on a run."""
    return "\n".join(line.text for line in screen(record))


def render(record: RunRecord, console: "Console") -> None:
    """Prints the screen of a run, in colour where the console has colours."""
    for line in screen(record):
        console.print(line.text, style=line.style or None, markup=False, soft_wrap=True)


def brief(record: RunRecord) -> str:
    """At most BRIEF lines for a failing test: verdict, first finding, replay."""
    lines = [_verdict_line(record)]
    if record.findings:
        *told, replay = _finding_lines(1, record.findings[0], record)
        rest = record.findings[1:]
        lines += [*told, *_wrapped(f"and {_more(rest)}" if rest else ""), replay]
    else:
        lines += _blind_lines(record) + _uncertified_lines(record)
        lines += _not_judged_lines(record)
        lines.append(Line(text=f"replay: {record.replay}"))
    # The command that replays the failure outlives every other line.
    kept = lines if len(lines) <= BRIEF else [*lines[: BRIEF - 1], lines[-1]]
    return "\n".join(line.text for line in kept)


def screen(record: RunRecord) -> list[Line]:
    """The lines of `explain`, with their styles."""
    head = [_verdict_line(record), *_summary_lines(record)]
    tail = [
        *_range_lines(record),
        *_uncertified_lines(record),
        *_blind_lines(record),
        *_not_judged_lines(record),
        Line(text=f"run again (seed {record.seed}): {record.replay}", style="bold"),
    ]
    room = HEIGHT - sum(line.height for line in head + tail)
    found = _findings(record, room)
    left = room - sum(line.height for line in found)
    return head + found + _step_lines(record.findings, left) + tail


def _step_lines(findings: tuple[Finding, ...], room: int) -> list[Line]:
    """The first failure that was shrunk, every token's numbers side by side.

    As many tokens around the first wrong one as there is room for, or no line.
    """
    told = next((finding.steps for finding in findings if finding.steps), None)
    if told is None or room < FEWEST_STEPS + 2:
        return []
    shown = told["steps"]
    count = min(len(shown), room - 2)
    first = next(n for n, step in enumerate(shown) if step["wrong"])
    start = max(0, min(first - count // 2, len(shown) - count))
    chunk = "" if told["chunk"] is None else f", chunk {told['chunk']}"
    lines = [
        Line(text=f"step by step, shrunk to {told['tokens']} tokens{chunk}:"),
        Line(text="".join(f"{name:>{STEP_WIDTH}}" for name in STEP_COLUMNS)),
    ]
    for step in shown[start : start + count]:
        cells = (f"{step[name]:.7g}" for name in STEP_COLUMNS)
        text = "".join(f"{cell:>{STEP_WIDTH}}" for cell in cells)
        wrong = bool(step["wrong"])
        style = RED_STYLE if wrong else ""
        lines.append(Line(text=text + ("  wrong" if wrong else ""), style=style))
    return lines


def _verdict_line(record: RunRecord) -> Line:
    gradients = ", gradients" if record.gradients else ""
    return Line(
        text=f"{record.verdict}  {record.target}  {record.op} {record.dtype}"
        f"{gradients}, profile {record.profile}: exit code {record.exit_code}",
        style=STYLES[record.exit_code],
    )


def _summary_lines(record: RunRecord) -> list[Line]:
    cases = sum(record.counts.values())
    counts = ", ".join(f"{n} {verdict}" for verdict, n in record.counts.items())
    lines = _wrapped(
        f"{_plural(cases, 'case')} in {record.duration_s:.1f} s"
        f"{f': {counts}' if counts else ''}; {record.elements} values judged, "
        f"{record.vacuous} vacuous (smaller than their budget)"
    )
    if record.device != "cpu":
        lines += _wrapped(_device(record))
    if record.judged_on_cpu:
        lines += _wrapped(f"judged on the CPU: {'; '.join(record.judged_on_cpu)}")
    lines += _wrapped(f"{_contract(record)}; false-alarm rate {record.p:g}")
    ratios = ", ".join(f"{n} {_number(r)}" for n, r in record.worst_ratio.items())
    rhos = ", ".join(f"{n} {_number(r)}" for n, r in record.worst_rho.items())
    if ratios:
        text = f"worst error / budget: {ratios}"
        text += f"; worst rho (RMS against predicted): {rhos}" if rhos else ""
        lines += _wrapped(text)
    return lines


def _device(record: RunRecord) -> str:
    """Where a kernel ran that was not judged on the CPU, and why there."""
    known = record.environment.get("cuda_device")
    text = f"on {record.device}{f' ({known})' if known else ''}"
    return text if record.device_asked else f"{text}: the kernel runs there by default"


def _contract(record: RunRecord) -> str:
    if record.contract_declared:
        return f"contract (declared): {record.contract}"
    wide = " (fp64 for fp64)" if "fp64" in record.dtype else ""
    return f"contract (assumed): any order of operations in fp32{wide}"


def _findings(record: RunRecord, room: int) -> list[Line]:
    """The first findings in full, as many as fit, and the others counted."""
    findings = record.findings
    blocks = [
        _finding_lines(number, finding, record)
        for number, finding in enumerate(findings[:IN_FULL], start=1)
    ]
    lines: list[Line] = []
    for shown in range(len(blocks), 0, -1):
        rest = findings[shown:]
        lines = [line for block in blocks[:shown] for line in block]
        lines += _wrapped(f"and {_more(rest)}" if rest else "", style=RED_STYLE)
        if sum(line.height for line in lines) <= room:
            break
    return lines


def _finding_lines(number: int, finding: Finding, record: RunRecord) -> list[Line]:
    """What is wrong, where, why probably, what to try, and how to see it again."""
    reason, _, cause = finding.reason.partition(". Likely cause: ")
    label = tensor_label(finding)
    title = f"{number}. {finding.verdict} {label or finding.check}"
    where = finding.check if label else ""
    cases = f"{where}{', ' if where else ''}{_plural(finding.cases, 'case')}"
    inputs = f", {finding.profile} inputs" if finding.profile else ""
    lines = _wrapped(f"{title} ({cases}{inputs}): {reason}", style=RED_STYLE)
    if finding.first_wrong_index is not None:
        place = place_words(finding)
        first = f"first wrong: {element(record.op, finding)}"
        lines += _wrapped(f"{first}, {place}" if place else first, indent=3)
    observed = _observations(finding, record)
    if observed:
        lines += _wrapped("; ".join(observed), indent=3)
    if finding.values:
        lines += _wrapped("  ".join(finding.values), indent=3)
    if cause:
        lines += _wrapped(f"likely cause: {cause}", indent=3)
    lines += _wrapped(f"try: {finding.advice}", indent=3)
    if finding.would_pass is not None:
        text = f"would pass with --contract {finding.would_pass}"
        lines += _wrapped(text, indent=3, style=AMBER_STYLE)
    lines.append(Line(text=f"   replay: {finding.replay}", style=QUIET_STYLE))
    return lines


def _observations(finding: Finding, record: RunRecord) -> list[str]:
    """How large the error is, and how it answers to a wider dtype and to repeats."""
    if finding.tensor is None or finding.check == "repeat":
        return []
    told = []
    if finding.ratio is not None:
        told.append(f"error / budget {_number(finding.ratio)}")
    if finding.rho is not None:
        told.append(f"rho {_number(finding.rho)}")
    match finding.shrinks_with_wider_dtype:
        case True:
            told.append("gone or far smaller in fp64: rounding")
        case False:
            told.append("still there in fp64: not rounding")
    changing = {f.tensor for f in record.findings if f.check == "repeat"}
    changes = finding.tensor in changing
    told.append("differs between runs" if changes else "the same in every run")
    return told


def _range_lines(record: RunRecord) -> list[Line]:
    cases = record.range_cases
    if not cases:
        return []
    red = record.exit_code == EXIT_RED and record.verdict == "RANGE"
    style = RED_STYLE if red else AMBER_STYLE
    lines = _wrapped(
        f"RANGE: {_plural(len(cases), 'case')} where the algorithm must leave the "
        f"format's range{', red as required' if red else ', excused'}; {RANGE_ADVICE}",
        style=style,
    )
    # Beside findings, excused cases are not what the reader came for.
    named = 1 if record.findings else NAMED
    for case in cases[:named]:
        lines += _wrapped(case, indent=3, style=style)
    if len(cases) > named:
        lines += _wrapped(f"and {len(cases) - named} more", indent=3, style=style)
    return lines


def _uncertified_lines(record: RunRecord) -> list[Line]:
    cases = record.uncertified_cases
    if not cases:
        return []
    listed = ", ".join(cases[:NAMED])
    more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
    return _wrapped(
        f"UNCERTIFIED: no reference could be certified for {listed}{more}; these "
        "cases were not judged",
        style=AMBER_STYLE,
    )


def _blind_lines(record: RunRecord) -> list[Line]:
    """Parts that no passed case could have shown a fault in, by kind of advice."""
    if not record.unseen:
        return []
    if record.exit_code == EXIT_RED:
        return _wrapped(
            f"not covered by a passed case: {', '.join(record.unseen)}",
            style=QUIET_STYLE,
        )
    lines = _wrapped(
        "BLIND: no passed case could have shown a fault in these parts (none moved a "
        "result by ten budgets)",
        style=AMBER_STYLE,
    )
    by_advice: dict[str, list[str]] = {}
    for part in record.unseen:
        by_advice.setdefault(blind_advice(part), []).append(part)
    for advice, parts in by_advice.items():
        lines += _wrapped(f"{', '.join(parts)}: {advice}", indent=3, style=AMBER_STYLE)
    return [*lines, *_wrapped(BLIND_ADVICE, indent=3, style=AMBER_STYLE)]


def _not_judged_lines(record: RunRecord) -> list[Line]:
    if not record.not_judged:
        return []
    return _wrapped(f"not judged: {'; '.join(record.not_judged)}", style=QUIET_STYLE)


def _more(findings: tuple[Finding, ...]) -> str:
    listed = ", ".join(f"{f.verdict} {tensor_label(f) or f.check}" for f in findings)
    return f"{_plural(len(findings), 'other finding')}: {listed}"


def _wrapped(text: str, *, indent: int = 0, style: str = "") -> list[Line]:
    """The text broken between words, continued lines two columns further in."""
    rows = textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(text=row, style=style) for row in rows]


def _number(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.3g}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
