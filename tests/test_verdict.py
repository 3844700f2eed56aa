"""What counts as what: order of verdicts, exit codes, reasons and places."""

from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from scancheck.metrics import TensorMetrics
from scancheck.verdict import (
    EXIT_INCONCLUSIVE,
    EXIT_PASS,
    EXIT_RED,
    MEANING,
    RED,
    SEVERITY,
    Verdict,
    exit_code,
    first_wrong,
    judge,
    worst_verdict,
)


def metrics(**changes: Any) -> TensorMetrics:
    """Two rows of three tokens, all right, with some fields changed."""
    none = np.zeros((2, 3), dtype=bool)
    found = TensorMetrics(
        name="h",
        error=np.zeros((2, 3)),
        allowance=np.ones((2, 3)),
        ratio=np.zeros((2, 3)),
        nonfinite=none,
        wrong_kind=none,
        excused=none,
        uncertified=none,
        overflowing=none,
        vacuous=none,
    )
    return replace(found, **changes)


def at(*places: tuple[int, int]) -> Any:
    """A mask of these places."""
    mask = np.zeros((2, 3), dtype=bool)
    for place in places:
        mask[place] = True
    return mask


def ratio(value: float, *places: tuple[int, int]) -> Any:
    """A ratio of 1/2 everywhere but at these places."""
    return np.where(at(*places), value, 0.5)


def test_lists_are_complete() -> None:
    """Each verdict has a place in the order of severity and a meaning."""
    assert sorted(SEVERITY) == sorted(Verdict)
    assert set(MEANING) == set(Verdict)


def test_order_of_severity() -> None:
    """Red verdicts come before amber ones, and those before PASS."""
    colours = [verdict in RED for verdict in SEVERITY]
    assert colours == sorted(colours, reverse=True)
    assert SEVERITY[0] is Verdict.ERROR
    assert SEVERITY[-1] is Verdict.PASS
    assert SEVERITY.index(Verdict.UNCERTIFIED) < SEVERITY.index(Verdict.RANGE)


SUBSETS = list(
    chain.from_iterable(combinations(Verdict, size) for size in range(len(Verdict) + 1))
)


def test_a_case_has_its_worst_verdict() -> None:
    """Whatever the order and number of checks; PASS where there is none."""
    for verdicts in SUBSETS:
        worst = worst_verdict([*verdicts, *reversed(verdicts)])
        ranks = [SEVERITY.index(v) for v in verdicts]
        assert worst is (SEVERITY[min(ranks)] if ranks else Verdict.PASS)


@pytest.mark.parametrize(
    "required", [set(), {"range"}, {"empty", "h"}], ids=["nothing", "range", "others"]
)
@pytest.mark.parametrize("blind", [False, True])
def test_exit_code(blind: bool, required: set[str]) -> None:
    """Red is 1 before all; then 3 where something is unseen, unknown or not judged."""
    reds = {"ERROR", "FAIL", "NONFINITE", "SUSPECT"}
    if "range" in required:
        reds.add("RANGE")
    for verdicts in SUBSETS:
        if reds & set(verdicts):
            expected = EXIT_RED
        elif blind or "UNCERTIFIED" in verdicts or not verdicts:
            expected = EXIT_INCONCLUSIVE
        else:
            expected = EXIT_PASS
        assert exit_code(verdicts, blind=blind, require=required) == expected


def test_exit_codes_are_those_of_the_page() -> None:
    """The numbers are public."""
    assert (EXIT_PASS, EXIT_RED, EXIT_INCONCLUSIVE) == (0, 1, 3)


@pytest.mark.parametrize(
    ("changes", "verdict", "index", "words"),
    [
        ({}, "PASS", None, ""),
        ({"ratio": ratio(1.0, (0, 1))}, "PASS", None, ""),
        ({"vacuous": at((0, 0))}, "PASS", None, ""),
        ({"ratio": ratio(1.5, (1, 1), (0, 2))}, "FAIL", (1, 1), "2 of 6.*1.5 times"),
        ({"ratio": ratio(np.inf, (1, 2))}, "FAIL", (1, 2), "1 of 6.*any bound"),
        ({"wrong_kind": at((1, 0))}, "FAIL", (1, 0), "1 of 6.*infinity is right"),
        ({"nonfinite": at((0, 2), (1, 1))}, "NONFINITE", (1, 1), "2 of 6.*NaN"),
        ({"uncertified": at((0, 0))}, "UNCERTIFIED", None, "1 of 6.*certified"),
        ({"excused": at((0, 0), (0, 1))}, "RANGE", None, "2 of 6.*range"),
    ],
)
def test_judgement_of_one_kind(
    changes: dict[str, Any], verdict: str, index: tuple[int, ...] | None, words: str
) -> None:
    """Each kind of element makes its verdict, with the first place and a reason."""
    import re

    check = judge("oracle", metrics(**changes), time_axis=1)
    assert (check.verdict, check.index) == (verdict, index)
    assert re.search(words, check.reason)
    assert bool(check.reason) == (verdict != "PASS")
    assert (check.check, check.tensor) == ("oracle", "h")


KINDS = {
    "FAIL": {"ratio": ratio(7.0, (0, 0))},
    "NONFINITE": {"nonfinite": at((0, 1))},
    "UNCERTIFIED": {"uncertified": at((1, 0))},
    "RANGE": {"excused": at((1, 1))},
    "SUSPECT": {},
}


@pytest.mark.parametrize(
    "kinds",
    [
        kinds
        for size in range(1, 6)
        for kinds in combinations(
            ("FAIL", "NONFINITE", "SUSPECT", *list(KINDS)[2:4]), size
        )
    ],
    ids="+".join,
)
def test_judgement_of_several_kinds(kinds: tuple[str, ...]) -> None:
    """Elements of several kinds give the most severe verdict."""
    changes: dict[str, Any] = {}
    for kind in kinds:
        changes |= KINDS[kind]
    check = judge(
        "oracle",
        metrics(**changes),
        time_axis=1,
        rho=2.0 if "SUSPECT" in kinds else None,
        rho_limit=1.5,
    )
    assert check.verdict is worst_verdict(Verdict(kind) for kind in kinds)


def test_rho_judges_only_where_it_has_a_limit() -> None:
    """rho is reported everywhere and makes SUSPECT beyond its limit alone."""
    reported = judge("oracle", metrics(), time_axis=1, rho=9.0)
    below = judge("oracle", metrics(), time_axis=1, rho=1.0, rho_limit=1.0)
    above = judge("oracle", metrics(), time_axis=1, rho=1.1, rho_limit=1.0)
    assert [c.verdict for c in (reported, below, above)] == ["PASS", "PASS", "SUSPECT"]
    assert [c.rho for c in (reported, below, above)] == [9.0, 1.0, 1.1]
    assert "1.10 times" in above.reason


def test_lambda_makes_suspect() -> None:
    """An element beyond the probable bound is SUSPECT, with its reason."""
    check = judge("oracle", metrics(), time_axis=1, beyond_probable=True)
    assert check.verdict is Verdict.SUSPECT
    assert "lambda" in check.reason


def test_ratio_is_the_worst_or_none() -> None:
    """The ratio of a check is finite or None; an empty tensor has none."""
    assert judge("oracle", metrics(ratio=ratio(3.0, (0, 1))), time_axis=1).ratio == 3.0
    infinite = metrics(ratio=ratio(np.inf, (0, 1)))
    assert judge("oracle", infinite, time_axis=1).ratio is None
    empty = {
        name: getattr(metrics(), name)[:, :0]
        for name in TensorMetrics.__dataclass_fields__
        if name != "name"
    }
    check = judge("oracle", metrics(**empty), time_axis=1)
    assert (check.verdict, check.ratio, check.index) == (Verdict.PASS, None, None)


@given(arrays(np.bool_, array_shapes(min_dims=1, max_dims=4, max_side=4)), st.data())
def test_first_wrong_is_the_earliest_token(wrong: Any, data: st.DataObject) -> None:
    """No wrong element comes earlier in time, nor earlier in order at that time."""
    axis = data.draw(st.none() | st.integers(0, wrong.ndim - 1))
    index = first_wrong(wrong, axis)
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)]
    if not places:
        assert index is None
        return
    assert index in places
    assert index is not None
    key = (lambda p: p) if axis is None else (lambda p: (p[axis], p))
    assert key(index) == min(key(place) for place in places)
