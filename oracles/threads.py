"""Work shared between the cores: compiled loops and NumPy both release the GIL."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from threading import Lock, local

# Below this many elementary steps, handing work to a thread costs more than it saves.
SMALL_WORK = 2**14
# Each further thread has this many: every one must hold the interpreter to start and to
# end, so that many of them wait for one another longer than they work.
WORK_OF_A_THREAD = 2**16
# Ranges that tasks are cut into, for each core.
RANGES = 4

_local = local()
_most = 0  # threads at a time; 0: as many as cores


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, so that a forked child makes its own."""
    return ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="scancheck")


def cores() -> int:
    """Cores this process may use."""
    if _most:
        return _most
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def keep_to(count: int) -> None:
    """From now on this process uses so many cores, as one of several on a machine."""
    global _most
    _most = count
    _pool.cache_clear()


def share(tasks: int, work: int, run: Callable[[int, int], None]) -> None:
    """Calls run(first, last) over ranges that cover 0 .. tasks, on all cores.

    `work` is the number of elementary steps in all; little of it runs at once here, and
    more of it on as many threads as it keeps busy.
    """
    threads = min(cores(), tasks, 2 + work // WORK_OF_A_THREAD)
    if work < SMALL_WORK or threads < 2:
        run(0, tasks)
        return
    parts = min(RANGES * threads, tasks)
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
    others = [pool.submit(work_off) for _ in range(threads - 1)]
    _run_jobs()
    work_off()
    for other in others:
        other.result()


@contextmanager
def meanwhile(jobs: Iterable[Callable[[], None]]) -> Iterator[None]:
    """A block that runs jobs, in order, while a `share` in it keeps other cores busy.

    What is left of them is run at the end of the block. So this thread does what holds
    the interpreter, and other threads do compiled work: two threads that both hold it
    now and then would wait for each other most of the time.
    """
    _local.jobs = deque(jobs)
    try:
        yield
        _run_jobs()
    finally:
        _local.jobs.clear()


def _run_jobs() -> None:
    """Runs this thread's jobs that nobody has run yet."""
    jobs = getattr(_local, "jobs", None)
    while jobs:
        jobs.popleft()()
