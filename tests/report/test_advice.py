"""The advice follows from the rows, and from nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.report.advice import AS_GOOD_AS_STORED, answers, headline
from scancheck.report.ways import cost, excess, ways_of
from scancheck.study.row import Row
from scancheck.study.store import Study

MakeRow = Callable[..., Row]


def test_excess_at_the_limit_holds_and_beyond_it_fails(made_up: MakeRow) -> None:
    """sqrt(2) times the error of storing is still as good as storing; more is not."""
    floor = 2.0**-9
    at = made_up(floor_rel=floor, rms_rel=floor * AS_GOOD_AS_STORED)
    beyond = replace(at, rms_rel=floor * (AS_GOOD_AS_STORED + 1e-6))
    assert answers([at])[0].best is not None
    assert answers([beyond])[0].best is None
    assert answers([at, replace(beyond, recipe="unit_decay")])[0].best is None


@pytest.mark.parametrize(
    ("rms", "floor", "expected"),
    [
        (2e-3, 1e-3, 2.0),
        (None, 1e-3, float("inf")),
        (1e-3, None, float("inf")),
        (0.0, 0.0, 1.0),
        (1e-3, 0.0, float("inf")),
    ],
)
def test_excess_is_infinite_where_it_is_unknown(
    made_up: MakeRow, rms: float | None, floor: float | None, expected: float
) -> None:
    """A missing error never counts as a small one."""
    assert excess(made_up(rms_rel=rms, floor_rel=floor)) == expected


def test_one_bad_case_outweighs_any_number_of_good_ones(made_up: MakeRow) -> None:
    """A way holds only where it holds on all of its cases, and the bad one is named."""
    good = [made_up(seed=seed) for seed in range(20)]
    bad = made_up(seed=20, rms_rel=0.1, recipe="decay_near_one", T=4096)
    answer = answers([*good, bad])[0]
    assert answer.best is None
    assert answer.why == "59 times the error of storing on decay_near_one (4096 tokens)"


def test_accuracies_with_one_answer_are_one_goal(small_study: Study) -> None:
    """No two neighbouring goals of an op have the same answer."""
    found = [a for a in answers(small_study.rows) if "RMS" in a.goal]
    goals = [a.goal for a in found if a.op == "linear_scan"]
    assert goals == [
        "RMS error of at most 1e-2",
        "RMS error of at most 1e-3 to 1e-5",
        "RMS error of at most 1e-6",
    ]


def test_ways_without_a_carry_are_no_answer(made_up: MakeRow) -> None:
    """One chunk for the whole sequence says nothing about the carried state."""
    assert answers([made_up(chunk=1024, T=1024)]) == []
    assert answers([made_up(chunk=512, T=1024)])[0].best is not None


def test_cheaper_is_bytes_then_operations_then_carries(made_up: MakeRow) -> None:
    """Ways are ordered by storage, work and number of chunks, in that order."""
    rows = [
        made_up(storage="bf16", compute="bf16", state="bf16", chunk=64),
        made_up(storage="bf16", compute="fp32", state="bf16", chunk=64),
        made_up(storage="bf16", compute="fp32", chunk=256),
        made_up(storage="bf16", compute="fp32", chunk=16),
        made_up(storage="bf16", compute="fp32", variant="kahan", chunk=256),
        made_up(storage="bf16", compute="bf16", state="bf16", variant="full"),
        made_up(storage="bf16", compute="fp32", variant="full"),
        made_up(storage="bf16", compute="fp32", variant="log_diff", chunk=64),
        made_up(storage="fp32", compute="fp32", chunk=256),
    ]
    ways = ways_of(reversed(rows))
    assert [way.rows[0] for way in ways] == rows
    assert sorted(ways, key=cost) == ways


def test_only_forward_sequence_outputs_count(made_up: MakeRow) -> None:
    """Final states, gradients, profiles and lengths are not evidence for an answer."""
    others = [
        made_up(sequence=False, tensor="final_state"),
        made_up(cotangent="dense"),
        made_up(kind="position", token=0, tokens=8),
        made_up(kind="length"),
    ]
    assert ways_of(others) == []
    assert "No way to compute with bf16" in headline(others)


def test_headline_names_format_evidence_and_what_fails(small_study: Study) -> None:
    """It says what holds for both ops, on how many cases, and how bad bf16 is."""
    text = headline(small_study.rows)
    assert "linear_scan and selective_scan: bf16 storage, fp32 arithmetic" in text
    assert "in all 2 cases" in text
    assert "1.03 times" in text
    assert "bf16 itself has up to 5.9 times that error" in text


def test_headline_tells_ops_apart_where_they_differ(small_study: Study) -> None:
    """An op for which nothing holds is not covered by the other's sentence."""
    rows = [
        replace(row, verdict="FAIL") if row.op == "selective_scan" else row
        for row in small_study.rows
    ]
    text = headline(rows)
    assert "selective_scan: nothing measured here is as good as bf16 storage" in text
    assert text.startswith("linear_scan: bf16 storage, fp32 arithmetic, plain")


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    errors=st.lists(st.none() | st.floats(1e-9, 1.0), min_size=1, max_size=6),
    passes=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_an_answer_always_holds_and_is_the_first_that_does(
    made_up: MakeRow, errors: list[float | None], passes: list[bool]
) -> None:
    """Whatever the rows, no cheaper way than the answer reaches the goal."""
    rows = [
        made_up(chunk=2**n, rms_rel=error, verdict="PASS" if passes[n] else "FAIL")
        for n, error in enumerate(errors)
    ]
    for answer in answers(rows):
        if "RMS" not in answer.goal:
            continue
        limit = float(answer.goal.split()[-1])
        holds = [
            way
            for way in ways_of(rows)
            if way.passed == 1 and (way.worst.rms_rel or 1.0) <= limit
        ]
        assert answer.best == (holds[0] if holds else None)


def test_ways_are_compared_on_the_same_cases(made_up: MakeRow) -> None:
    """A harder case that only one way ran costs it nothing, but is told."""
    rows = [made_up(chunk=16), made_up(chunk=64)]
    longer = made_up(chunk=64, T=4096, recipe="unit_decay", rms_rel=1e-2)
    answer = answers([*rows, longer])[0]
    assert answer.best is not None
    assert answer.best.chunk == 64
    assert answer.best.rows == (rows[1],)
    assert answer.beyond == (
        "chunk 64: 5.9 times the error of storing on unit_decay (4096 tokens)"
    )
    assert answers(rows)[0].beyond == ""
