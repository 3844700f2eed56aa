"""The speed benchmarks' rows, figures and truth; times need a device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_linear_scan_page import PLAIN, SHAPES, page, share
from cuda_speed import (
    Job,
    Store,
    Timing,
    by_key,
    error_of,
    in_rounds,
    measured,
    ratio,
    read,
    reference,
)

from scancheck.ops.linear_scan import LINEAR_SCAN

ROW = Timing(
    shape="B8 T4096 D2048",
    dtype="fp32",
    direction="forward",
    kernel=PLAIN,
    ms=0.19,
    copy=4.3e12,
)


def test_store_takes_up_a_run_where_it_was(tmp_path: Path) -> None:
    """Rows come back, one of a key; those of another environment are refused."""
    path = tmp_path / "new" / "rows.json"
    store = Store(path, {"gpu": "A"})
    assert not store.has("B8 T4096 D2048", "fp32", "forward")
    store.add([ROW, replace(ROW, kernel="x", ms=None, note="ImportError: no x")])
    store.add([replace(ROW, ms=0.18)])
    again = Store(path, {"gpu": "A"})
    assert again.has("B8 T4096 D2048", "fp32", "forward")
    assert not again.has("B8 T4096 D2048", "fp32", "backward")
    rows, environment = read(path)
    assert environment == {"gpu": "A"}
    assert {row.kernel: row.ms for row in rows} == {PLAIN: 0.18, "x": None}
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(SystemExit, match="another environment: gpu A there, B here"):
        Store(path, {"gpu": "B"})


def test_an_environment_that_tells_more_is_the_same(tmp_path: Path) -> None:
    """A package that is asked for since was not known to be another one before."""
    path = tmp_path / "rows.json"
    Store(path, {"gpu": "A"}).add([ROW])
    Store(path, {"gpu": "A", "fla-core": "0.6.0"}).add([replace(ROW, ms=0.18)])
    assert read(path)[1] == {"gpu": "A", "fla-core": "0.6.0"}


def test_what_does_not_run_has_a_note_and_no_ratio() -> None:
    """A peer that fails costs its row alone."""

    def broken() -> None:
        raise ImportError("no such peer\nat all")

    row = measured(replace(ROW, kernel="peer", ms=None), broken, timed=lambda f: f())
    assert row.ms is None
    assert row.note == "ImportError: no such peer"
    found = by_key([ROW, row])
    assert ratio(found, row.key, ROW.key) is None
    assert ratio(found, ROW.key, ROW.key) == 1.0
    assert "no such peer" in page([ROW, row], {})[0]


def test_error_is_that_of_the_first_output() -> None:
    """Relative 2-norm, of the first of several."""
    truth = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert error_of(torch.tensor([3.0, 4.5]), truth) == 0.1
    outputs = torch.tensor([3.0, 4.5]), torch.zeros(1)
    row = measured(ROW, lambda: outputs, truth, timed=lambda f: 7.0)
    assert (row.ms, row.error) == (7.0, 0.1)


def test_the_shorter_time_of_two_rounds_counts() -> None:
    """All jobs run once before any of them runs again; what failed does not."""
    order: list[str] = []
    times = {"a": iter([3.0, 2.0]), "b": iter([4.0, 5.0]), "long": iter([99.0])}

    def job(name: str) -> Job:
        def timed(call: Callable[[], Any]) -> float:
            order.append(name)
            return next(times[name])

        return Job(replace(ROW, kernel=name, ms=None), lambda: None, None, timed)

    rows = in_rounds(map(job, times))
    assert [row.ms for row in rows] == [2.0, 4.0, 99.0]
    assert order == ["a", "b", "long", "a", "b"]


def test_share_counts_what_must_move() -> None:
    """Three arrays forward, five backward, at the width of the dtype."""
    B, T, D = SHAPES[ROW.shape]
    alone = 12 * B * T * D / 0.19e-3 / 4.3e12
    assert share(ROW) == pytest.approx(alone)
    assert share(replace(ROW, dtype="bf16")) == pytest.approx(alone / 2)
    assert share(replace(ROW, direction="backward")) == pytest.approx(alone * 5 / 3)


@pytest.mark.parametrize(
    ("kernel", "ms", "reached"),
    [
        ("single_pass.full", 1.09, True),
        ("single_pass.full", 1.11, False),
        ("accelerated_scan.scalar", 1.0, True),
        ("accelerated_scan.scalar", 0.99, False),
        ("fla.chunk_hgrn", 1.99, False),
    ],
)
def test_page_fails_where_a_figure_is_missed(
    kernel: str, ms: float, reached: bool
) -> None:
    """Each requirement of the page decides."""
    rows = [ROW, replace(ROW, kernel=kernel, ms=ms * 0.19)]
    text, good = page(rows, {})
    assert good is reached
    assert ("FAIL" in text) is not reached


def test_page_fails_where_the_plain_kernel_is_slow() -> None:
    """Below 95 % of the copy."""
    assert page([ROW], {})[1]
    assert not page([replace(ROW, ms=0.21)], {})[1]


def test_reference_is_the_recurrence(card: str) -> None:
    """On decays and on their logarithms, from what is stored."""
    torch.manual_seed(1)
    where = "cuda" if card == "device" else "cpu"
    a = (1 - 0.1 * torch.rand(2, 50, 3)).half().to(where)
    b = torch.randn(2, 50, 3).half().to(where)
    state, states = 0.0, []
    for t in range(50):
        state = a[:, t].double() * state + b[:, t].double()
        states.append(state)
    want = torch.stack(states, 1)
    assert error_of(reference(LINEAR_SCAN, {"a": a, "b": b}, {}), want) < 1e-15
    of_logs = reference(LINEAR_SCAN, {"g": a.double().log(), "b": b}, {})
    assert error_of(of_logs, want) < 1e-14
