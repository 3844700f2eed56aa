"""CUDA kernels in CUDA graphs, on other streams, and without synchronisation.

    python benchmarks/cuda_graphs.py [--update] [--match NAMES] [-o reports/h200]

Writes cuda_graphs.md and .csv. Of every kernel, forwards alone and with all gradients:
captured in a torch.cuda.CUDAGraph, its inputs changed in place, replayed, and compared
bit by bit with a call on the new inputs; so is a call on a stream that is not the
default one. A call may not synchronise (torch.cuda.set_sync_debug_mode) nor take memory
but from torch's pool: capturing fails where it does. Needs a CUDA device. Exit code 1:
one of these.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from cuda_cases import Case, Drawn, drawn
from evidence import (
    Row,
    chosen,
    commit,
    environment,
    options_of,
    read_rows,
    table,
    write_rows,
)

COMMAND = "python benchmarks/cuda_graphs.py"
FIELDS = (
    "kernel",
    "dtype",
    "pass",
    "cases",
    "values",
    "replays_differing",
    "stream_differing",
    "synchronised",
    "bytes_of_cupy",
    "commit",
)
DTYPES = ("fp32", "bf16")
WORKERS = 6
CASES = {
    "linear_scan": (
        Case(sizes=(2, 700, 66), optional=("initial_state",), form="g"),
        Case(sizes=(1, 257, 33), form="g"),
    ),
    "selective_scan": (
        # Kernels for many channels and for any.
        Case(
            sizes=(2, 96, 200, 16, 2),
            optional=("D", "z", "delta_bias", "initial_state", "delta_softplus"),
        ),
        Case(sizes=(1, 33, 201, 3, 1)),
    ),
}
Call = Callable[[dict[str, Any]], list[Any]]


def call_of(name: str, given: Drawn, backwards: bool) -> Call:
    """The kernel on tensors of its inputs: outputs, and gradients where asked for."""
    import torch

    from scancheck.kernels.cuda.catalog import kernels

    (kernel,) = (k for k in kernels() if k.name == name)

    def call(tensors: dict[str, Any]) -> list[Any]:
        if not backwards:
            return list(kernel.call(**tensors, **given.switches))
        leaves = {k: x.detach().requires_grad_() for k, x in tensors.items()}
        outputs = kernel.call(**leaves, **given.switches)
        found = torch.autograd.grad(outputs, list(leaves.values()), given.cotangents)
        return [*(x.detach() for x in outputs), *found]

    return call


def others(given: Drawn, seed: int) -> dict[str, Any]:
    """The same tensors in another order of their rows: new values of the same range."""
    return {
        name: x.roll(1 + seed, max(0, x.ndim - 2)) for name, x in given.tensors.items()
    }


def differing(got: list[Any], expected: list[Any]) -> int:
    """How many values have other bits."""
    from scancheck.kernels.models.of_cuda_kernels import different

    return sum(int(different(*both).sum()) for both in zip(got, expected, strict=True))


def synchronises(call: Callable[[], Any]) -> bool:
    """Whether torch sees the call wait for the device."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def beside_pool(call: Callable[[], Any]) -> int:
    """Bytes that a call takes from CuPy's allocator instead of torch's.

    That it takes none from the driver itself is seen where it is captured: CUDA then
    refuses every allocation and synchronisation but those of torch's pool.
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()  # what it holds in reserve it would hand out unseen
    before = int(pool.total_bytes())
    call()
    return int(pool.total_bytes()) - before


def replayed(call: Call, static: dict[str, Any], news: list[dict[str, Any]]) -> int:
    """Values that differ between replays on new inputs, and calls on them."""
    import torch

    held = {name: x.clone() for name, x in static.items()}
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    # Without torch.cuda.graph, which collects garbage for half a second.
    with torch.cuda.stream(stream):
        graph.capture_begin()
        results = call(held)
        graph.capture_end()
    torch.cuda.synchronize()
    wrong = 0
    for new in news:
        for name, x in held.items():
            x.copy_(new[name])
        for x in results:
            x.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        wrong += differing(results, call(new))
    return wrong


def on_stream(call: Call, tensors: dict[str, Any], expected: list[Any]) -> int:
    """Values that differ on a stream of its own."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = call(tensors)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return differing(results, expected)


def rows_of(name: str) -> list[Row]:
    """Both formats and passes of one kernel, on the current device."""
    at = commit()
    found = []
    for dtype, backwards in product(DTYPES, (False, True)):
        row = {"kernel": name, "dtype": dtype, "commit": at}
        row["pass"] = "forward and gradients" if backwards else "forward"
        found.append(row | row_of(name, dtype, backwards))
    return found


def row_of(name: str, dtype: str, backwards: bool) -> Row:
    """The figures of all cases."""
    found = dict.fromkeys(FIELDS[3:9], 0)
    for case in CASES[name.split(".")[1]]:
        given = drawn(name, case, dtype, "cuda")
        call = call_of(name, given, backwards)
        news = [others(given, seed) for seed in range(2)]
        again = partial(call, given.tensors)
        expected = again()
        found["cases"] += 1
        found["values"] += (len(news) + 1) * sum(x.numel() for x in expected)
        found["synchronised"] += synchronises(again)
        found["bytes_of_cupy"] += beside_pool(again)
        found["replays_differing"] += replayed(call, given.tensors, news)
        found["stream_differing"] += on_stream(call, given.tensors, expected)
    return {field: str(value) for field, value in found.items()}


def judged(names: list[str]) -> Iterator[list[Row]]:
    """Each kernel's rows as they come, from a few processes."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=spawn) as executor:
        futures = [executor.submit(rows_of, name) for name in names]
        for future in as_completed(futures):
            yield future.result()


def as_it_must_be(row: Row) -> bool:
    """Values were compared, and nothing is against it."""
    return int(row["values"]) > 0 and not any(int(row[key]) for key in FIELDS[5:9])


def page(found: list[Row]) -> str:
    """The rows as Markdown."""
    wrong = sum(not as_it_must_be(row) for row in found)
    values = sum(int(row["values"]) for row in found)
    commits = ", ".join(sorted({row["commit"] for row in found}))
    return (
        "# CUDA kernels in CUDA graphs and on other streams\n\n"
        f"{len(found)} kernels x formats x passes, {values} values: {wrong} rows with "
        "a value that differs from that of a call on the same inputs, a "
        "synchronisation, or memory of CuPy's pool. A call that allocates or waits "
        "otherwise cannot be captured. Each graph is replayed on two "
        f"new inputs. Commit {commits}. Made by `{COMMAND}`.\n\n"
        + table(
            [name.replace("_", " ") for name in FIELDS[:-1]],
            [[row[name] for name in FIELDS[:-1]] for row in found],
        )
        + f"\n{environment()}\n"
    )


def run(
    names: list[str],
    folder: Path,
    kept: list[Row],
    judge_all: Callable[[], Iterable[list[Row]]],
) -> int:
    """Writes page and rows as they come; 1 where one is not as it must be."""
    found = list(kept)
    for rows in judge_all():
        found += rows
        found.sort(key=lambda row: (row["kernel"], row["dtype"], row["pass"]))
        print(rows[0]["kernel"], *filter(None, map(told, rows)), flush=True)
        write_rows(found, FIELDS, folder / "cuda_graphs.csv")
        (folder / "cuda_graphs.md").write_text(page(found), encoding="utf-8")
    missing = set(names) - {row["kernel"] for row in found}
    mine = [row for row in found if row["kernel"] in names]
    return int(bool(missing) or not all(map(as_it_must_be, mine)))


def told(row: Row) -> str:
    """What is against the row."""
    wrong = {key: row[key] for key in FIELDS[5:9] if int(row[key])}
    return f"{row['dtype']} {row['pass']}: {wrong}" if wrong else ""


def main() -> int:
    """Judges the kernels that are asked for, or with --update those left."""
    from scancheck.kernels.cuda.catalog import kernels

    options = options_of(__doc__, "reports/h200").parse_args()
    names = [k.name for k in kernels() if chosen(k.name, options.match)]
    kept = read_rows(options.output / "cuda_graphs.csv") if options.update else []
    wrong = {row["kernel"] for row in kept if not as_it_must_be(row)}
    kept = [row for row in kept if row["kernel"] not in wrong]
    settled = {row["kernel"] for row in kept}
    left = [name for name in names if name not in settled]
    return run(names, options.output, kept, lambda: judged(left))


if __name__ == "__main__":
    sys.exit(main())
