"""What a run's screen of text tells, in which order, and that it stays one screen."""

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scancheck.checks.influence import CALLS, parts_of
from scancheck.ops import OPS
from scancheck.ops.calling import ARGUMENTS
from scancheck.record import Finding, RunRecord
from scancheck.report.text import BRIEF, HEIGHT, WIDTH, brief, explain, render

PARTS = (
    "carry across a chunk edge",
    "first token",
    "last token",
    "input a",
    "input initial_state",
    "output final_state",
    "gradient b",
)

REPLAY = "scancheck verify my_scan.py:my_scan --op linear_scan --seed 7"

FINDING = Finding(
    check="oracle",
    verdict="FAIL",
    tensor="h",
    ratio=31.2,
    rho=None,
    first_wrong_index=(0, 64, 3),
    place={"token": 64, "chunk": 1, "position": 0, "where": "carry"},
    cause="carry_total",
    reason="120 of 4096 values are beyond the budget, the worst by 31.2 times. "
    "Likely cause: the carry between chunks is formed from the wrong total",
    advice="step through two chunks of four tokens",
    case={"op": "linear_scan"},
    case_id="linear_scan-fp32-gaussian_slow-1x17x195-0123456789",
    file=None,
    replay=f"{REPLAY} --case linear_scan-fp32-gaussian_slow-1x17x195-0123456789",
    cases=5,
    would_pass="compute=bf16",
    shrinks_with_wider_dtype=False,
    values=(
        "got=0x1.8000000000000p+0 (1.5)",
        "want=0x1.0000000000000p+0 (1)",
        "budget=0x1.0000000000000p-20 (9.53674e-07)",
    ),
)


def finding(**changes: Any) -> Finding:
    """FINDING with other fields."""
    return replace(FINDING, **changes)


def record(**changes: Any) -> RunRecord:
    """A run of one kernel that passed, with other fields."""
    passed = RunRecord(
        verdict="PASS",
        exit_code=0,
        target="my_scan.py:my_scan",
        op="linear_scan",
        dtype="fp32",
        profile="quick",
        seed=7,
        p=1e-6,
        contract="default",
        contract_declared=False,
        gradients=False,
        counts={"PASS": 31},
        vacuous=312,
        elements=120_344,
        worst_ratio={"final_state": 0.31, "h": 0.42},
        worst_rho={"h": 0.93},
        seen=("first token", "last token"),
        unseen=(),
        not_judged=(),
        environment={"scancheck": "0.1.0"},
        duration_s=6.24,
        replay=REPLAY,
    )
    return replace(passed, **changes)


def failed(*findings: Finding, **changes: Any) -> RunRecord:
    """A red run with these findings."""
    return record(
        verdict="FAIL",
        exit_code=1,
        counts={"FAIL": 5, "PASS": 26},
        findings=findings,
        **changes,
    )


def rows_of(text: str) -> int:
    """Rows that the text takes on a screen of WIDTH columns."""
    return sum(max(1, -(-len(line) // WIDTH)) for line in text.splitlines())


def one_line(text: str) -> str:
    """The text with its line breaks and indents made single spaces."""
    return " ".join(text.split())


def test_pass_says_what_was_judged_and_how_to_run_it_again() -> None:
    """A passing run names target, op, dtype, profile, cases, ratios, seed, command."""
    text = explain(record())
    first = text.splitlines()[0]
    assert first == (
        "PASS  my_scan.py:my_scan  linear_scan fp32, profile quick: exit code 0"
    )
    told = one_line(text)
    assert "31 cases in 6.2 s: 31 PASS; 120344 values judged, 312 vacuous" in told
    assert "worst error / budget: final_state 0.31, h 0.42" in told
    assert "rho (RMS against predicted): h 0.93" in told
    assert text.splitlines()[-1] == f"run again (seed 7): {REPLAY}"


@pytest.mark.parametrize(
    ("declared", "told"),
    [(False, "contract (assumed): any order"), (True, "contract (declared): comp")],
)
def test_contract_is_said_to_be_declared_or_assumed(declared: bool, told: str) -> None:
    """Nobody has to guess whether the kernel promised the contract it was held to."""
    text = explain(record(contract="compute=bf16", contract_declared=declared))
    assert told in one_line(text)


def test_finding_is_told_in_full() -> None:
    """A finding names element, place, size, repeatability, cause, advice, replay."""
    text = explain(failed(finding()))
    told = one_line(text)
    for part in (
        "1. FAIL h (oracle, 5 cases): 120 of 4096 values are beyond the budget",
        "first wrong: h[B=0, T=64, D=3], token 64: chunk 1, position 0, in the carry",
        "error / budget 31.2; still there in fp64: not rounding; the same in every run",
        "got=0x1.8000000000000p+0 (1.5) want=0x1.0000000000000p+0 (1) budget=0x1.0",
        "likely cause: the carry between chunks is formed from the wrong total",
        "try: step through two chunks of four tokens",
        "would pass with --contract compute=bf16",
    ):
        assert part in told
    assert f"   replay: {finding().replay}" in text.splitlines()


def test_profile_of_the_inputs_is_told_where_it_is_known() -> None:
    """Whether published models draw such inputs stands beside the number of cases."""
    told = one_line(explain(failed(finding(profile="realistic"))))
    assert "1. FAIL h (oracle, 5 cases, realistic inputs): 120 of" in told
    assert " inputs" not in one_line(explain(failed(finding(profile=None))))


def test_gradient_is_named_as_such() -> None:
    """A wrong gradient of `a` is `da`, at an element of the axes of `a`."""
    text = explain(failed(finding(check="gradient", tensor="a")))
    assert "FAIL da (gradient, 5 cases)" in text
    assert "da[B=0, T=64, D=3]" in text


def test_wider_dtype_and_repeats_are_told_apart() -> None:
    """An error that shrinks in fp64, and a tensor that changes, are said so."""
    findings = (
        finding(shrinks_with_wider_dtype=True),
        finding(check="repeat", reason="output h differs between identical runs"),
    )
    told = one_line(explain(failed(*findings)))
    assert "gone or far smaller in fp64: rounding; differs between runs" in told
    unknown = one_line(explain(failed(finding(shrinks_with_wider_dtype=None))))
    assert "fp64" not in unknown


def test_finding_without_tensor_is_told() -> None:
    """A kernel that raised has no element, no place and no ratio; the text says why."""
    bare = finding(
        check="call",
        verdict="ERROR",
        tensor=None,
        ratio=None,
        first_wrong_index=None,
        place=None,
        reason="the kernel raised ValueError: no. Likely cause: the call itself failed",
        would_pass=None,
        values=(),
    )
    told = one_line(explain(failed(bare)))
    assert "1. ERROR call (5 cases): the kernel raised ValueError: no" in told
    assert "first wrong" not in told
    assert "runs" not in told


def test_zero_budget_ratio_is_unbounded() -> None:
    """An error where none is allowed has no finite ratio."""
    text = explain(failed(finding(ratio=None), worst_ratio={"h": None}))
    assert "worst error / budget: h unbounded" in one_line(text)


def test_findings_beyond_the_screen_are_counted() -> None:
    """Of ten findings the first are told in full, and every other one is named."""
    findings = [finding(), finding(verdict="NONFINITE")]
    findings += [finding(check="gradient", tensor=n) for n in ("a", "b")] * 4
    text = explain(failed(*findings))
    shown = text.count("   replay: ")
    assert 1 <= shown <= 3
    assert f"and {10 - shown} other findings: " in one_line(text)


def test_blind_parts_are_named_with_what_to_do() -> None:
    """Each unseen part is named, and each kind of part has its own advice."""
    blind = record(verdict="BLIND", exit_code=3, unseen=PARTS)
    told = one_line(explain(blind))
    for part in PARTS:
        assert part in told
    assert "cases cross its edges" in told
    assert "--profile full" in told


@pytest.mark.parametrize("op", OPS)
def test_every_part_of_every_op_has_advice(op: str) -> None:
    """Those of calls of several sequences too."""
    known = OPS[op]
    accepted = (*(spec.name for spec in known.inputs), *ARGUMENTS)
    returned = [spec.name for spec in known.outputs]
    parts = parts_of(known, accepted, returned, gradients=True)
    assert set(CALLS.values()) < set(parts)
    told = one_line(explain(record(verdict="BLIND", exit_code=3, unseen=parts)))
    assert all(part in told for part in parts)
    assert "did a call of that kind pass" in told


def test_blind_says_nothing_loud_in_a_red_run() -> None:
    """In a red run the parts are unseen because their cases failed: one quiet line."""
    text = explain(failed(finding(), unseen=PARTS))
    assert "BLIND" not in text
    assert "not covered by a passed case: carry across a chunk edge" in one_line(text)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"range_cases": tuple(f"case-{i}: products" for i in range(5))},
            "RANGE: 5 cases where the algorithm must leave the format's range, "
            "excused; a shorter chunk, a sequential order or a log form would hold "
            "case-0: products case-1: products case-2: products and 2 more",
            id="range",
        ),
        pytest.param(
            {"uncertified_cases": ("case-0",), "verdict": "UNCERTIFIED"},
            "UNCERTIFIED: no reference could be certified for case-0; these cases",
            id="uncertified",
        ),
        pytest.param(
            {"not_judged": ("input g: not a parameter of the kernel",)},
            "not judged: input g: not a parameter of the kernel",
            id="not-judged",
        ),
    ],
)
def test_what_was_excused_or_not_judged_is_listed(
    changes: dict[str, object], told: str
) -> None:
    """RANGE, UNCERTIFIED and not judged are named, not only counted."""
    assert told in one_line(explain(record(**changes)))


names = st.lists(st.sampled_from(("h", "a", "b")), max_size=12)


@given(
    tensors=names,
    words=st.integers(1, 120),
    parts=st.lists(st.sampled_from(PARTS), unique=True),
    ranges=st.integers(0, 9),
)
def test_it_stays_one_screen(
    tensors: list[str], words: int, parts: list[str], ranges: int
) -> None:
    """However much was found, the first finding and the command fit on one screen."""
    reason = "word " * words + ". Likely cause: " + "cause " * (words // 4)
    findings = [finding(tensor=name, reason=reason) for name in tensors]
    text = explain(
        failed(
            *findings,
            unseen=tuple(parts),
            range_cases=tuple(f"case-{i}: products leave" for i in range(ranges)),
        )
    )
    assert text.endswith(REPLAY)
    first = rows_of("\n".join(text.partition("\n2. ")[0].splitlines()))
    assert rows_of(text) <= max(HEIGHT, first)


@given(tensors=names, words=st.integers(1, 300), parts=st.sampled_from([(), PARTS]))
def test_brief_has_at_most_twelve_lines(
    tensors: list[str], words: int, parts: tuple[str, ...]
) -> None:
    """The message of a failing test is short, and always ends with a way to replay."""
    reason = "word " * words + ". Likely cause: " + "cause " * words
    findings = [finding(tensor=name, reason=reason) for name in tensors]
    text = brief(failed(*findings, unseen=parts))
    assert len(text.splitlines()) <= BRIEF
    assert text.startswith("FAIL  my_scan.py:my_scan")
    assert REPLAY in text


def styles_of(run: RunRecord) -> str:
    """What `render` writes to a terminal with colours."""
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", width=400
    )
    render(run, console)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("run", "colour"),
    [
        pytest.param(record(), "32", id="green"),
        pytest.param(failed(finding()), "31", id="red"),
        pytest.param(record(verdict="BLIND", exit_code=3), "33", id="amber"),
        pytest.param(
            record(verdict="INTERRUPTED", exit_code=4), "33", id="interrupted"
        ),
    ],
)
def test_verdict_has_its_colour(run: RunRecord, colour: str) -> None:
    """PASS is green, red verdicts are red, the others amber."""
    assert styles_of(run).startswith(f"\x1b[1;{colour}m{run.verdict}")


def test_rendered_text_is_the_explained_text() -> None:
    """Without colours, exactly the lines of `explain` are printed, brackets and all."""
    run = failed(finding(), target="[bold]odd[/bold].py:fn")
    stream = io.StringIO()
    render(run, Console(file=stream, width=60))
    assert stream.getvalue() == explain(run) + "\n"


def steps_of(count: int, first_wrong: int) -> dict[str, Any]:
    """A shrunk failure as the record holds it."""
    return {
        "tokens": count,
        "chunk": 4,
        "steps": [
            {
                "token": n,
                "a": 0.5,
                "b": float(n),
                "wanted": n + 0.25,
                "got": n + 0.75 if n >= first_wrong else n + 0.25,
                "wrong": n >= first_wrong,
            }
            for n in range(count)
        ],
    }


def test_a_failure_is_laid_out_step_by_step() -> None:
    """Every token's decay, drive, wanted and got value stand side by side."""
    text = explain(failed(finding(steps=steps_of(8, 4))))
    assert "step by step, shrunk to 8 tokens, chunk 4:" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["token", "a", "b", "wanted", "got"] in lines
    assert ["3", "0.5", "3", "3.25", "3.25"] in lines
    assert ["4", "0.5", "4", "4.25", "4.75", "wrong"] in lines


@given(
    count=st.integers(1, 8),
    wrong=st.integers(0, 7),
    findings=st.integers(1, 5),
    unseen=st.integers(0, 7),
)
def test_steps_never_leave_the_screen(
    count: int, wrong: int, findings: int, unseen: int
) -> None:
    """They take what room is left, hold the first wrong token, or are not there."""
    steps = steps_of(count, min(wrong, count - 1))
    found = [finding(steps=steps) for _ in range(findings)]
    text = explain(failed(*found, unseen=PARTS[:unseen]))
    assert rows_of(text) <= HEIGHT
    if "step by step" in text:
        assert sum(line.endswith("  wrong") for line in text.splitlines()) >= 1


def test_a_device_other_than_the_cpu_is_told() -> None:
    """With its name, and whether the kernel or the request chose it."""
    facts = {"cuda_device": "NVIDIA H200 (sm_90)"}
    chosen = record(device="cuda:0", environment=facts)
    assert "on cuda:0 (NVIDIA H200 (sm_90)): the kernel runs there" in explain(chosen)
    asked = explain(replace(chosen, device_asked=True))
    assert "on cuda:0 (NVIDIA H200 (sm_90))\n" in asked
    assert "cuda" not in explain(record())
