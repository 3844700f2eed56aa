"""Kernels executed in processes of their own, which they may end."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from scancheck.bridge import bits_differ
from scancheck.errors import CaseInvalid
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.calling import Calling, called
from scancheck.recipes.inputs import Inputs
from scancheck.registry import loader, resolve_target
from scancheck.runner import Outcome, execute
from scancheck.runner.own_process import in_own_process
from scancheck.runner.poison import memory_filled_with

LINEAR_SCAN = op_named("linear_scan")
LIMIT_S = 2.0

KERNEL_FILE = Path(__file__).parents[1] / "own_kernels.py"


@contextmanager
def own(name: str) -> Iterator[Kernel]:
    """A kernel of the file, in its process."""
    target = f"{KERNEL_FILE}:{name}"
    (kernel,) = resolve_target(target, "linear_scan")
    load = loader(target, "linear_scan", "cpu")
    with in_own_process(kernel, load, limit_s=LIMIT_S) as found:
        yield found


def inputs(steps: int) -> Inputs:
    """Values that every format holds."""
    shape = (2, steps, 3)
    numbers = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    return Inputs(tensors={"a": np.full(shape, 0.5), "b": numbers % 7}, switches={})


def run(kernel: Kernel, steps: int) -> Outcome:
    """What comes of so many tokens in fp32."""
    return execute(kernel, LINEAR_SCAN, inputs(steps), "fp32")


def test_the_outcome_is_that_of_this_process() -> None:
    """Outputs and gradients have the same bits."""
    bars = {"h": np.ones((2, 9, 3))}
    (here,) = resolve_target(f"{KERNEL_FILE}:scan", "linear_scan")
    with own("scan") as there:
        one, other = (
            execute(kernel, LINEAR_SCAN, inputs(9), "fp32", cotangents=bars)
            for kernel in (here, there)
        )
    assert one.problem is None
    assert other.problem is None
    assert one.outputs.keys() == other.outputs.keys()
    for name, values in (one.outputs | one.gradients).items():
        assert not bits_differ(values, (other.outputs | other.gradients)[name]).any()


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("crashes", "crashed", r"the kernel ended its process, by SIGSEGV .*crashes\)"),
        ("leaves", "crashed", "the kernel ended its process, exit code 7"),
        (
            "hangs",
            "hung",
            r"the kernel did not return within 2 s .*in hangs\); .* longer --case-time",
        ),
        ("interrupts", "raised", "raised KeyboardInterrupt"),
        ("loses_the_device", "device_error", "CUDA error: an illegal memory access"),
    ],
)
def test_what_ends_the_process_costs_one_outcome(
    name: str, kind: str, told: str
) -> None:
    """Its problem says how and where; the calls around it have their outputs."""
    with own(name) as kernel:
        before, failed, after = (run(kernel, steps) for steps in (5, 50, 6))
    assert before.problem is None
    assert after.problem is None
    assert after.outputs["h"].shape == (2, 6, 3)
    assert failed.problem is not None
    assert failed.problem.kind == kind
    assert failed.outputs == {}
    assert re.search(told, failed.problem.message)
    assert failed.device_lost == (name == "loses_the_device")


def test_one_process_answers_until_it_is_closed() -> None:
    """It is another one than the caller's, and the same for every call."""
    with own("in_process") as kernel:
        found = [run(kernel, 5).outputs["h"].flat[0] for _ in range(3)]
    assert len(set(found)) == 1
    assert found[0] != float(os.getpid())


def test_the_filling_of_memory_goes_along() -> None:
    """Memory that is not written is NaN there, or zero where that is asked for."""
    with own("unwritten") as kernel:
        assert np.isnan(run(kernel, 5).outputs["h"]).all()
        with memory_filled_with(0):
            assert not run(kernel, 5).outputs["h"].any()


def test_a_kernel_that_cannot_be_loaded_there() -> None:
    """The message is that of the target."""
    kernel = Kernel(name="k", op="linear_scan", call=lambda a, b: b)
    load = loader(f"{KERNEL_FILE}:missing", "linear_scan", "cpu")
    with (
        pytest.raises(CaseInvalid, match="has no 'missing'"),
        in_own_process(kernel, load),
    ):
        pass


def test_verdicts_survive_a_crash() -> None:
    """Longer cases are ERROR, shorter ones pass, whichever comes first."""
    with own("crashes") as kernel:
        record = verify(kernel).record
    assert record.verdict == "ERROR"
    assert record.counts["PASS"] > 5
    assert record.counts["ERROR"] > 5
    assert set(record.counts) == {"PASS", "ERROR"}
    (finding,) = [f for f in record.findings if f.check == "call"]
    assert "by SIGSEGV" in finding.reason


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """The process imports the kernel, and not the program that asks."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        "print('runs', flush=True)\n"
        "from scancheck.registry import loader, resolve_target\n"
        "from scancheck.runner.own_process import in_own_process\n"
        "(kernel,) = resolve_target(sys.argv[1], 'linear_scan')\n"
        "load = loader(sys.argv[1], 'linear_scan', 'cpu')\n"
        "with in_own_process(kernel, load):\n"
        "    print('started', sys.modules['__main__'].__file__ == sys.argv[0])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), f"{KERNEL_FILE}:scan"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "runs\nstarted True\n", done.stderr


def test_packed_sequences_reach_the_other_process() -> None:
    """How sequences lie goes with the question."""
    tensors = {name: x[:1] for name, x in inputs(9).tensors.items()}
    offsets = called(LINEAR_SCAN, Calling(cu_seqlens=(0, 4, 9)))
    with own("by_sequence") as kernel:
        outcome = execute(kernel, offsets, Inputs(tensors=tensors, switches={}), "fp32")
    assert outcome.problem is None
    first = outcome.outputs["h"][0, [0, 4]]
    assert np.array_equal(first, tensors["b"][0, [0, 4]])
