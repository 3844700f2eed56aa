"""Errors and bits of the CUDA functions over all 2^32 inputs, as a table.

    python benchmarks/cuda_functions.py [--device FILE.npz] [-o FOLDER]

Without a device: the error of each function of kernels/models/cuda_functions.py
against fp64, half a minute each. FILE.npz comes from cuda_function_device.py: with it
the bits of Reproducible and Tabulated on the device are compared with the CPU's, and
the errors of Fast and of the hardware are told too. Writes cuda_functions.md into
FOLDER. Exit code 1: other bits, or an error beyond the one that
kernels/cuda/error_models.py states.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda_function_sweep import HASH_BLOCK, SWEPT, TABULATED, Sweep, sweep

from scancheck.contract import ErrorModel
from scancheck.kernels.cuda.error_models import (
    FAST_ERRORS,
    REPRODUCIBLE_ERRORS,
    TABULATED_ERRORS,
)

HEADER = ("function", "error", "at", "beyond e1", "stated", "falls", "bits", "")
STATED: Mapping[str, Mapping[str, ErrorModel]] = {
    "reproducible": REPRODUCIBLE_ERRORS,
    "fast": FAST_ERRORS,
    "tabulated": TABULATED_ERRORS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one function."""

    name: str
    error: float  # relative, in u
    at: float  # where that is
    beyond: float  # error beyond e1 |x|, in u
    stated: ErrorModel | None
    wrong_kinds: int  # NaN, infinite or finite results that should not be
    falls: int | None = None  # inputs at which the CPU's function falls
    other_bits: str | None = None  # on the device: "none", or where they begin

    @property
    def passed(self) -> bool:
        """Whether error, kinds and bits are as stated."""
        if self.wrong_kinds or self.other_bits not in (None, "none"):
            return False
        if self.stated is None:
            return True
        # Of a logarithm e0 stands before |log(x)|, and e1 alone.
        logarithm = self.stated.e1 > 0 and self.name.endswith("log")
        return self.beyond <= (self.stated.e1 if logarithm else self.stated.e0)


def largest(errors: Any, inputs: Any) -> tuple[float, float]:
    """The largest error of all blocks and its input."""
    block = errors.argmax()
    return float(errors[block]), float(inputs[block].astype(np.uint32).view(np.float32))


def other_bits(here: Any, there: Any) -> str:
    """Where the first block begins whose hashes differ."""
    blocks = np.nonzero(here != there)[0]
    if not len(blocks):
        return "none"
    first = int(blocks[0]) * HASH_BLOCK
    return f"{len(blocks)} blocks, from 0x{first:08x}"


def row_of_cpu(name: str, found: Sweep) -> Row:
    """The CPU's function by itself."""
    error, at = largest(found.errors[:, 0], found.inputs[:, 0])
    return Row(
        name=f"reproducible {name}",
        error=error,
        at=at,
        beyond=error,
        stated=REPRODUCIBLE_ERRORS[name],
        wrong_kinds=int(found.wrong_kinds.sum()),
        falls=int(found.descents.sum()),
    )


def row_of_device(key: str, device: Mapping[str, Any], cpu: Sweep | None) -> Row:
    """A function of the device beside the CPU's, where there is one."""
    policy, name = key.split("_", 1)
    errors, inputs = device[f"{key}_errors"], device[f"{key}_inputs"]
    error, at = largest(errors[:, 0], inputs[:, 0])
    return Row(
        name=f"{policy} {name}",
        error=error,
        at=at,
        beyond=float(errors[:, 1].max()),
        stated=STATED.get(policy, {}).get(name),
        wrong_kinds=int(device[f"{key}_kinds"].sum()),
        falls=None if cpu is None else int(cpu.descents.sum()),
        other_bits=None if cpu is None else other_bits(cpu.sums, device[f"{key}_sums"]),
    )


def rows(device: Mapping[str, Any] | None) -> Iterator[Row]:
    """One row after the other; each of the CPU's takes half a minute."""
    if device is None:
        for name in SWEPT:
            yield row_of_cpu(name, sweep(name))
        return
    for key in [k.removesuffix("_sums") for k in device if k.endswith("_sums")]:
        policy, name = key.split("_", 1)
        cpu = None
        if policy == "reproducible":
            cpu = sweep(name)
        elif policy == "tabulated" or name.startswith("exp2"):
            assert name in TABULATED
            cpu = sweep(name, tabulated=True)
        yield row_of_device(key, device, cpu)


def cells(row: Row) -> tuple[str, ...]:
    """The row as text."""
    stated = "-"
    if row.stated is not None:
        stated = f"{row.stated.e0:g}"
        if row.stated.e1:
            stated += f" + {row.stated.e1:g} \\|x\\|"
            if row.name.endswith("log"):
                stated = f"{row.stated.e0:g} \\|log x\\| + {row.stated.e1:g}"
    return (
        row.name,
        f"{row.error:.4g}",
        f"{row.at:.9g}",
        f"{row.beyond:.4f}",
        stated,
        "-" if row.falls is None else str(row.falls),
        {None: "-", "none": "equal"}.get(row.other_bits, str(row.other_bits)),
        "PASS" if row.passed else "FAIL",
    )


def main() -> int:
    """The table, row by row on the terminal and whole in the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    device = None
    if options.device is not None:
        with np.load(options.device) as file:
            device = dict(file)
    folder = options.output or Path("reports") / ("h200" if device else "cpu")
    where = str(device["device"]) if device else "the CPU"
    lines = [
        f"# The CUDA functions over all 2^32 inputs, on {where}",
        "",
        "Errors relative, in u = 2^-24, where the exact result is a normal number.",
        "Beyond e1: what is left of the error after e1 \\|x\\|, of a logarithm after",
        "e0 \\|log x\\|. Falls: how often the next larger input gives less.",
        "",
    ]
    if device:
        lines += [
            f"ex2.approx.ftz is unlike its table (SHA-256 {device['ex2_hash']}) for "
            f"{int(device['ex2_mismatches'].sum())} inputs.",
            "",
        ]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    failed = False
    for row in rows(device):
        lines.append("| " + " | ".join(cells(row)) + " |")
        print(lines[-1], flush=True)
        failed |= not row.passed
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda_functions.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
