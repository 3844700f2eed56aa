"""Work shared between the cores: compiled loops and NumPy both release the GIL."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Below this many elementary steps, handing work to a thread costs more than it saves.
SMALL_WORK = 2**14
# Ranges that tasks are cut into, for each core.
RANGES = 4


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, so that a forked child makes its own."""
    return ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="scancheck")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def share(tasks: int, work: int, run: Callable[[int, int], None]) -> None:
    """Calls run(first, last) over ranges that cover 0 .. tasks, on all cores.

    `work` is the number of elementary steps in all; little of it runs at once here.
    """
    if work < SMALL_WORK or min(cores(), tasks) < 2:
        run(0, tasks)
        return
    parts = min(RANGES * cores(), tasks)
    edges = [tasks * part // parts for part in range(parts + 1)]
    # Whoever is free takes the next range.
    ranges = iter(list(pairwise(edges)))
    lock = Lock()

    def work_off() -> None:
        while True:
            with lock:
                span = next(ranges, None)
            if span is None:
                return
            run(*span)

    pool = _pool(os.getpid())
    others = [pool.submit(work_off) for _ in range(min(cores(), parts) - 1)]
    work_off()
    for other in others:
        other.result()


def ahead(function: Callable[[T], R], items: Iterable[T], work: int) -> Iterator[R]:
    """function(item) for each item in order, computed one item ahead of its use."""
    if work < SMALL_WORK or cores() < 2:
        yield from map(function, items)
        return
    pool = _pool(os.getpid())
    waiting: Future[R] | None = None
    for item in items:
        # One call at a time, in order: a call may build on the one before.
        ready = [waiting.result()] if waiting is not None else []
        waiting = pool.submit(function, item)
        yield from ready
    if waiting is not None:
        yield waiting.result()


class Beside:
    """Runs calls beside the caller, one at a time and in order."""

    def __init__(self, work: int) -> None:
        self.idle = work < SMALL_WORK or cores() < 2
        self.waiting: Future[None] | None = None

    def call(self, function: Callable[[], None]) -> None:
        """Waits for the call before, then starts this one."""
        self.wait()
        if self.idle:
            function()
        else:
            self.waiting = _pool(os.getpid()).submit(function)

    def wait(self) -> None:
        """Returns when nothing is running; an error of the call is raised here."""
        if self.waiting is not None:
            self.waiting.result()
            self.waiting = None
