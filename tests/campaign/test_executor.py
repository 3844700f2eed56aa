"""Kernels in processes of their own: what they do to it costs one trial."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer

import pytest

from scancheck.campaign.executor import KernelProcess
from scancheck.campaign.trial import Judged, Trial
from scancheck.case import make_case
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.registry import loader
from scancheck.runner.process import Stopped
from scancheck.verdict import Verdict

LIMIT_S = 3.0


def trial(steps: int) -> Trial:
    """A plain trial of so many tokens."""
    sizes = {"B": 1, "T": steps, "D": 2}
    case = make_case("linear_scan", sizes, recipe="gaussian_slow", seed=1)
    return Trial(case=case)


@contextmanager
def process_of(
    path: Path, name: str, stop: Event | None = None
) -> Iterator[KernelProcess]:
    """The process of a kernel in the file, which is given LIMIT_S once it runs."""
    process = KernelProcess(
        loader(f"{path}:{name}", "linear_scan", "cpu"),
        Contract(),
        gradients=False,
        limit_s=LIMIT_S,
        threads=1,
        stop=stop or Event(),
    )
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("crashes", "call crashed", "by SIGSEGV"),
        ("hangs", "call hung", "did not return within 3 s"),
        ("leaves", "call crashed", "exit code 7"),
        ("exits", "call raised", "no device"),
        ("interrupts", "call raised", "KeyboardInterrupt"),
    ],
)
def test_a_kernel_that_ends_or_blocks_its_process_costs_one_trial(
    kernel_file: Path, name: str, key: str, told: str
) -> None:
    """It is an ERROR that says how and where; the trials around it are judged."""
    with process_of(kernel_file, name) as process:
        assert process.judge(trial(5)).verdict is Verdict.PASS
        failed = process.judge(trial(50))
        assert process.judge(trial(6)).verdict is Verdict.PASS
    assert failed.verdict is Verdict.ERROR
    assert failed.failure is not None
    assert failed.failure.cause == "call"
    assert failed.failure.key.startswith(key)
    assert told in failed.failure.reason
    if name in ("crashes", "hangs", "exits"):
        assert f"in {name})" in failed.failure.reason
        assert "own_kernels.py:" in failed.failure.key


def test_what_a_kernel_prints_stays_away(
    kernel_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it reaches the terminal of the campaign."""
    with process_of(kernel_file, "chatters") as process:
        assert process.judge(trial(5)).verdict is Verdict.PASS
    assert capfd.readouterr() == ("", "")


def test_a_kernel_that_cannot_be_loaded_is_a_mistake_of_the_request(
    kernel_file: Path,
) -> None:
    """The message is that of the target, not of a process that ended."""
    with (
        process_of(kernel_file, "missing") as process,
        pytest.raises(CaseInvalid, match="has no 'missing'"),
    ):
        process.judge(trial(5))


def test_a_stopped_campaign_waits_for_no_kernel(kernel_file: Path) -> None:
    """A trial at hand is given up when the campaign is stopped."""
    stop = Event()
    with process_of(kernel_file, "hangs", stop) as process:
        assert isinstance(process.judge(trial(5)), Judged)
        timer = Timer(0.5, stop.set)
        timer.start()
        with pytest.raises(Stopped):
            process.judge(trial(50))
        timer.join()
