"""Work shared between the cores: compiled loops and NumPy both release the GIL."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Below this many elementary steps, handing work to a thread costs more than it saves.
SMALL_WORK = 2**14


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, so that a forked child makes its own."""
    return ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="scancheck")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def share(tasks: int, work: int, run: Callable[[int, int], None]) -> None:
    """Calls run(first, last) over ranges that cover 0 .. tasks, one per core.

    `work` is the number of elementary steps in all; little of it runs at once here.
    """
    parts = min(cores(), tasks)
    if work < SMALL_WORK or parts < 2:
        run(0, tasks)
        return
    edges = [tasks * part // parts for part in range(parts + 1)]
    pool = _pool(os.getpid())
    others = [
        pool.submit(run, first, last)
        for first, last in pairwise(edges[1:])
    ]
    run(edges[0], edges[1])
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
