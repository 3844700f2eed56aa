"""What the page on fuzzing says of its rows."""

from typing import Any

import pytest
from fuzzing_page import as_it_must_be, page, verified

BUG = {
    "kernel": "faulty.linear_scan.stale",
    "seed": "0",
    "planted": "local_element",
    "found": "True",
    "seconds": "1.50",
    "cases": "12",
    "shrunk_seconds": "4.00",
    "verdict": "FAIL",
    "cause": "local_element",
    "profile": "adversarial",
    "recipe": "gaussian_slow",
    "dtype": "fp32",
    "size": "B=1 T=65 D=1",
    "replays": "True",
    "commit": "abc",
}
LOST = dict.fromkeys(BUG, "") | {"found": "False", "commit": "abc"}
SPEED = {
    "kernel": "model",
    "seed": "0",
    "cases": "5010",
    "pass": "4990",
    "range": "10",
    "uncertified": "10",
    "findings": "0",
    "seconds": "100.0",
    "start_seconds": "4.5",
    "commit": "abc",
}


def bug(**changes: Any) -> dict[str, str]:
    """BUG with other fields."""
    return BUG | changes


def told(rows: list[dict[str, str]], *speeds: dict[str, str]) -> tuple[str, bool]:
    """The page with single spaces, and whether all is as it must be."""
    text, good = page(rows, list(speeds))
    return " ".join(text.split()), good


def test_the_answer_comes_first_in_words() -> None:
    """Found by all seeds, medians, how many are soon, the slowest, and replays."""
    other = "faulty.selective_scan.order"
    rows = [bug(), bug(seed="1", seconds="2.5"), bug(seed="2", seconds="30.00")]
    rows += [bug(kernel=other, seconds="20", cause="unknown", shrunk_seconds="")]
    text, good = told(rows)
    assert good
    assert "seeds 0, 1, 2, at commit abc." in text
    assert "2 of 2 planted bugs (each op counted) were found by every seed" in text
    assert "median of their medians is 11.2 s; 50 % have a median within 10 s" in text
    assert "slowest campaign: 30.0 s (faulty.linear_scan.stale, seed 2)" in text
    assert "4 of 4 findings fail in the same way" in text
    assert "planted in 3 of 4 campaigns" in text
    assert "| faulty.linear_scan.stale | 2.5 s | 30.0 s | 12, 12, 12 | local_e" in text
    assert "unknown (planted: local_element)" in text
    assert text.startswith("## Time to the first finding")


def test_a_bug_that_is_not_found_is_told_as_such() -> None:
    """By name, and nothing is as it must be then."""
    lost = LOST | {"kernel": "faulty.lost", "seed": "1"}
    text, good = told([bug(), bug(kernel="faulty.lost"), lost])
    assert not good
    assert "1 of 2 planted bugs" in text
    assert "**Not found**: faulty.lost (seed 1)." in text
    assert "The slowest campaign: not found (faulty.lost, seed 1)" in text
    assert "| faulty.lost | not found | not found | 12, - |" in text


def test_only_what_was_certified_counts_as_verified() -> None:
    """10 000 cases in words, from those of all kernels together."""
    assert verified(SPEED) == 5000
    text, good = told([bug()], SPEED, SPEED | {"seconds": "150.0"})
    assert good
    assert "10000 verified cases of correct kernels took 250 s, 40.0 cases/s" in text
    assert "for a single case takes 4.5 s" in text
    assert "10000 in 250 s (at most 600; at least 20 cases/s)" in text
    assert "| model | 5000 | 4990 | 10 | 10 | 0 | 100.0 | 50.0 | abc |" in text


@pytest.mark.parametrize("change", [{"findings": "1"}, {"seconds": "251.0"}])
def test_a_false_alarm_or_slowness_is_not_as_it_must_be(change: dict[str, str]) -> None:
    """Either makes the page's answer a failure."""
    assert not told([bug()], SPEED | change)[1]


@pytest.mark.parametrize("change", [{"found": "False"}, {"replays": "False"}])
def test_a_finding_must_replay(change: dict[str, str]) -> None:
    """Found alone is not enough."""
    assert as_it_must_be(BUG)
    assert not as_it_must_be(bug(**change))
