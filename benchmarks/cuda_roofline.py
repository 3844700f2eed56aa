"""What bounds the CUDA linear_scan kernels: counters beside the floors of a roofline.

    python benchmarks/cuda_roofline.py [-o reports/h200/linear_scan_roofline.md]

Runs itself under Nsight Compute (ncu), at the clocks of ordinary runs, one launch a
line. Two floors are told: that of bytes, read and written at the rate of a large copy,
and that of issue slots, the instructions over four schedulers a multiprocessor, each
issuing one a cycle. A kernel near neither waits: the stalls say for what, in warps that
wait for every instruction issued. Needs a CUDA device whose counters may be read.
"""

import argparse
import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from scancheck.kernels.cuda.catalog import linear_scan
from scancheck.kernels.cuda.linear_scan_instances import VARIANTS

SHAPES = ((8, 4096, 2048), (1, 65536, 2048))
SCHEDULERS = 4
LARGE = 2**32  # bytes that a copy moves for the rate
READING = """\
What a block loads stays in registers until the state before it comes. They are enough
for two blocks of eight warps on a multiprocessor, four warps a scheduler. Loads of one
block overlap with arithmetic of the other alone, so a kernel takes its larger floor and
a part of the smaller one: little of it where that is below a third, as for the plain
scan; a third to a half of it where it comes near, as for the compensated forms in 16
bits and the log-space one with the reproducible exponential. Fewer registers a thread,
for more blocks at once, need smaller tiles: half a line of 128 bytes a row, or fewer
channels a thread. Both were slower by more than they gained."""
STALLS = (
    "barrier",
    "long_scoreboard",
    "short_scoreboard",
    "wait",
    "not_selected",
    "math_pipe_throttle",
    "lg_throttle",
    "mio_throttle",
    "no_instruction",
)
TIME = "gpu__time_duration.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
CLOCK = "smsp__cycles_elapsed.avg.per_second"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = (TIME, INSTRUCTIONS, CLOCK, DRAM, ISSUE, *map(_STALL.format, STALLS))
UNITS = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "ns": 1e-9, "us": 1e-6}
UNITS |= {"ms": 1e-3, "second": 1.0, "s": 1.0}
UNITS |= {"hz": 1.0, "Hz": 1.0, "Mhz": 1e6, "MHz": 1e6, "Ghz": 1e9, "GHz": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch to be counted."""

    shape: tuple[int, int, int]  # B, T, D
    dtype: torch.dtype
    variant: str
    backward: bool = False

    @property
    def label(self) -> str:
        """How the table calls it."""
        way = " backward" if self.backward else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{', '.join(map(str, self.shape))} | {dtype} | {self.variant}{way}"

    @property
    def elements(self) -> int:
        """Steps of all channels."""
        return torch.Size(self.shape).numel()

    @property
    def bytes(self) -> int:
        """Read and written: a, b and h, or those, the cotangent and two gradients."""
        return self.elements * self.dtype.itemsize * (5 if self.backward else 3)


def launches() -> list[Launch]:
    """Every variant in bf16, the plain kernel in fp32 too, and backward passes."""
    found = []
    for shape in SHAPES:
        for variant in VARIANTS:
            found.append(Launch(shape=shape, dtype=torch.bfloat16, variant=variant))
        for dtype in (torch.float32, torch.bfloat16):
            if dtype is torch.float32:
                found.append(Launch(shape=shape, dtype=dtype, variant="plain"))
            found.append(
                Launch(shape=shape, dtype=dtype, variant="plain", backward=True)
            )
    return found


def run(launch: Launch) -> None:
    """The launch, seen by the profiler alone of what leads to it."""
    policy = VARIANTS[launch.variant]
    a = (1 - 0.1 * torch.rand(launch.shape, device="cuda")).to(launch.dtype)
    b = torch.randn(launch.shape, device="cuda").to(launch.dtype)
    gates = {"a": a} if policy.of_decays else {"g": a.float().log().to(launch.dtype)}
    inputs = {
        name: x.requires_grad_(launch.backward)
        for name, x in (*gates.items(), ("b", b))
    }
    call = linear_scan("single_pass", launch.variant).call
    h, _ = call(**inputs)
    cotangent = torch.randn_like(h)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    if launch.backward:
        torch.autograd.grad(h, list(inputs.values()), cotangent)
    else:
        call(**inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def counted() -> list[dict[str, float]]:
    """The metrics of every launch, in SI units."""
    command = ["ncu", "--csv", "--page", "raw", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--metrics", ",".join(METRICS)]
    command += ["-k", "regex:^(forward|single_pass_backward)"]
    command += [sys.executable, __file__, "--launch"]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in output.stdout.splitlines() if line.startswith('"')]
    if output.returncode or not lines:
        sys.exit(f"ncu failed:\n{output.stdout[-2000:]}\n{output.stderr[-2000:]}")
    units, *rows = csv.DictReader(lines)
    return [
        {
            name: float(row[name].replace(",", "")) * UNITS.get(units[name], 1.0)
            for name in METRICS
        }
        for row in rows
    ]


def copy_rate(moved: int) -> float:
    """Bytes per second of a copy that reads and writes `moved` bytes in all."""
    from triton.testing import do_bench

    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    spent = do_bench(lambda: target.copy_(source), return_mode="median")
    return 1e3 * moved / float(spent)


def table() -> str:
    """The counters of every launch as a Markdown table, and how to read it."""
    rate = copy_rate(LARGE)
    small = min(launch.bytes for launch in launches())
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy of "
        f"{LARGE / 1e9:.1f} GB {rate / 1e9:.0f} GB/s, of {small / 1e9:.1f} GB, as the "
        f"smallest launch here moves, {copy_rate(small) / 1e9:.0f} GB/s",
        "",
        "| B, T, D | dtype | kernel | us | floor of bytes | floor of issue slots "
        "| instructions an element | issue slots used | DRAM busy "
        "| warps waiting per instruction |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for launch, found in zip(launches(), counted(), strict=True):
        slots = SCHEDULERS * multiprocessors * found[CLOCK]
        waits = sorted(((found[_STALL.format(s)], s) for s in STALLS), reverse=True)
        told = ", ".join(f"{s.replace('_', ' ')} {n:.1f}" for n, s in waits[:3])
        lines.append(
            f"| {launch.label} | {1e6 * found[TIME]:.1f} "
            f"| {1e6 * launch.bytes / rate:.1f} "
            f"| {1e6 * found[INSTRUCTIONS] / slots:.1f} "
            f"| {32 * found[INSTRUCTIONS] / launch.elements:.1f} "
            f"| {found[ISSUE]:.0f} % | {found[DRAM]:.0f} % | {told} |"
        )
    return "\n".join((*lines, "", READING)) + "\n"


def main() -> None:
    """Counts, prints the table, and keeps it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, help="Markdown file to write")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        for launch in launches():
            run(launch)
        return
    text = table()
    print(text)
    if arguments.o is not None:
        arguments.o.parent.mkdir(parents=True, exist_ok=True)
        arguments.o.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
