"""The page of the oracles' speed: figures, those that could not be had, and merging.

A run adds its figures to those that the page has, each with the commit it is of.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cuda_speed import figures_table, free_memory
from figures import Figure

NO_PLAIN_PASS = ", which is not a plain pass"

WHAT = """\
Times are medians of whole calls by the clock of the host, the device idle before and
after, arrays on the device unless said otherwise; so what the host does is in them. The
oracle alone is its call on the same case, from fp64 arrays to values and radii of both
outputs. Judging is `scancheck.screen.screen`: the same scan, the budget, the second
moment where the contract has one, and the comparison with what a kernel
cuda.linear_scan.single_pass returned in fp32, down to the sums on the host.
"""

CALLS = """\
What a call adds to its scan, by torch.profiler at 3ef9501 on B1 T2048 D131072: the
kernel took 2.19 of 2.57 ms there (1.22e11), and a call of [1, 16, 128], whose kernels
take 8 us, 0.36 ms: what CuPy and Python do on the host, of which most comes before the
kernel starts. Machines differ by a tenth in the kernel and by half in the host. The
kernel reads and writes 32 bytes a state-element-step, 3.9 TB/s there, of the 4.8 that
the memory of an H200 is specified to have.
"""

FEW_LANES = """\
What holds judging back where lanes are few, by Nsight Compute at 297354d on
[1, 65536, 2048] (`ncu --kernel-name judge_lanes --set full`): one warp on each of 64
multiprocessors, 220 instructions a step and 3.5 cycles for each, of which 1.5 wait for
the result before and 0.6 for memory. Prefetching the table of paths changed nothing
(6.8 and 7.3 times the oracle). At one instruction a cycle it would be 1.8 times; lanes
are independent, steps are not, so only several warps for one lane could come nearer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A figure that is still to be measured; tensors are made when it is."""

    name: str
    shape: str
    measure: Callable[[], Figure]

    @property
    def key(self) -> tuple[str, str]:
        """What tells the figure from others."""
        return self.name, self.shape


class Page:
    """The page and its figures as JSON, as they stand."""

    def __init__(self, output: Path, known: Mapping[str, str]) -> None:
        self.output = output
        self.figures: dict[tuple[str, str], Figure] = {}
        self.commits: dict[tuple[str, str], str] = {}
        self.failures: dict[tuple[str, str], str] = {}
        self.commit = known.get("commit", "unknown")
        self.known = {self.commit: dict(known)}

    def take_up(self) -> None:
        """The figures that were written before; exits where they are of another GPU."""
        path = self.output.with_suffix(".json")
        if not path.exists():
            return
        data = json.loads(path.read_text(encoding="utf-8"))
        here, there = self.known[self.commit], data["environment"]
        if there.get("cuda_device") != here.get("cuda_device"):
            raise SystemExit(
                f"{path}: has figures of {there.get('cuda_device')}; here is "
                f"{here.get('cuda_device')}. Write to another page, with -o"
            )
        earlier = {there.get("commit", "unknown"): there}
        self.known = {**earlier, **data.get("environments", {}), **self.known}
        names = [field.name for field in fields(Figure)]
        for one in data["figures"]:
            figure = Figure(**{n: one[n] for n in names})
            key = figure.name, figure.shape.removesuffix(NO_PLAIN_PASS)
            self.figures[key] = figure
            self.commits[key] = one.get("commit", there.get("commit", "unknown"))

    def add(self, job: Job) -> None:
        """Measures a figure; what keeps it from that is told in its place."""
        self.figures.pop(job.key, None)
        try:
            self.figures[job.key] = job.measure()
            self.commits[job.key] = self.commit
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            self.failures[job.key] = f"{type(error).__name__}: {first}"
        with suppress(Exception):  # of a device that is lost, as the next figure tells
            free_memory()

    def write(self, order: list[tuple[str, str]]) -> None:
        """Both files, figures in that order; those of no job any more are left out."""
        kept = [key for key in order if key in self.figures]
        figures = [self.figures[key] for key in kept]
        of = [self.commits[key] for key in kept]
        known = {commit: self.known[commit] for commit in {*of, self.commit}}
        data = {
            "schema_version": 1,
            "environment": known[self.commit],
            "environments": known,
            "figures": [
                asdict(figure) | {"passed": figure.passed, "commit": commit}
                for figure, commit in zip(figures, of, strict=True)
            ],
            "not_measured": [
                {"name": name, "shape": shape, "reason": self.failures[name, shape]}
                for name, shape in self.failures
            ],
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=2) + "\n"
        self.output.with_suffix(".json").write_text(text, encoding="utf-8")
        text = page(figures, known, self.commit, self.failures)
        self.output.write_text(text, encoding="utf-8")


def page(
    figures: list[Figure],
    known: Mapping[str, Mapping[str, str]],
    commit: str,
    failures: Mapping[tuple[str, str], str],
) -> str:
    """The page as Markdown; `known` has the environment of each commit in it."""
    device = known[commit].get("cuda_device", "no device")
    lines = [
        f"# Speed of the oracles on {device}\n",
        f"Made by `python benchmarks/cuda_oracles.py`.\n{WHAT}",
        figures_table(figures),
    ]
    if failures:
        told = (f"- {n}, {w}: {reason}" for (n, w), reason in failures.items())
        lines.append("Not measured:\n\n" + "\n".join(told) + "\n")
    lines += [CALLS, FEW_LANES]
    for one in sorted(known, key=lambda name: name != commit):
        every = ", ".join(f"{k} {v}" for k, v in sorted(known[one].items()))
        lines.append(f"Environment: {every}\n")
    return "\n".join(lines)
