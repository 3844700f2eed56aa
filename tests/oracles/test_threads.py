"""Work shared between cores."""

from threading import Barrier, Lock, get_ident

import pytest

from scancheck.oracles import threads
from scancheck.oracles.threads import meanwhile, share


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("work", [0, threads.SMALL_WORK, 10 * threads.WORK_OF_A_THREAD])
def test_every_task_is_run_once(
    cores: int, tasks: int, work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges cover all tasks and do not overlap, on any number of cores."""
    monkeypatch.setattr(threads, "cores", lambda: cores)
    done, lock = [0] * tasks, Lock()

    def run(first: int, last: int) -> None:
        with lock:
            for task in range(first, last):
                done[task] += 1

    share(tasks, work, run)
    assert done == [1] * tasks


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (threads.SMALL_WORK - 1, 1),
        (threads.SMALL_WORK, 2),
        (threads.WORK_OF_A_THREAD, 3),
        (100 * threads.WORK_OF_A_THREAD, 8),
    ],
)
def test_as_many_threads_as_the_work_keeps_busy(
    work: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of many cores little work is not handed to all of them."""
    monkeypatch.setattr(threads, "_most", 0)
    threads.keep_to(8)
    seen, barrier = set(), Barrier(expected, timeout=10)

    def run(first: int, last: int) -> None:
        if get_ident() not in seen:
            seen.add(get_ident())
            barrier.wait()  # broken where there are fewer

    share(100, work, run)
    assert len(seen) == expected


def test_a_process_keeps_to_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several processes on a machine takes no more than its part."""
    monkeypatch.setattr(threads, "_most", 0)
    threads.keep_to(1)
    seen = set()
    share(100, 2**30, lambda first, last: seen.add(get_ident()))
    assert threads.cores() == 1
    assert seen == {get_ident()}


def test_errors_of_other_threads_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever thread a range fails in, the caller sees the error."""
    monkeypatch.setattr(threads, "cores", lambda: 3)

    def run(first: int, last: int) -> None:
        if last == 50:
            raise ValueError("the last one")

    with pytest.raises(ValueError, match="the last one"):
        share(50, threads.SMALL_WORK, run)


@pytest.mark.parametrize("work", [0, threads.SMALL_WORK])
def test_jobs_are_run_once_and_in_order(
    work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a block are done by its end, whether or not it shares work."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    seen: list[int] = []
    with meanwhile([lambda i=i: seen.append(i) for i in range(3)]):
        for _ in range(2):
            share(8, work, lambda first, last: None)
    assert seen == [0, 1, 2]
    with meanwhile([lambda: seen.append(3)]):
        pass
    assert seen == [0, 1, 2, 3]


def test_no_job_is_left_behind_by_an_error() -> None:
    """After a block that failed nothing runs the rest of its jobs."""
    seen: list[str] = []
    with (
        pytest.raises(ValueError, match="inside"),
        meanwhile([lambda: seen.append("a")]),
    ):
        raise ValueError("inside")
    share(8, threads.SMALL_WORK, lambda first, last: None)
    assert seen == []
