"""The catalogue of planted bugs: complete, self-explaining, and cheap to list."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from scancheck.diagnosis import CAUSES
from scancheck.kernel import Kernel
from scancheck.kernels.faulty import catalog, chunked_torch
from scancheck.kernels.faulty.chunk_catalog import (
    CHUNK_BUGS,
    chunk_controls,
    chunk_faulty,
)
from scancheck.kernels.faulty.sequence_catalog import (
    SEQUENCE_BUGS,
    sequence_controls,
    sequence_faulty,
)
from scancheck.kernels.faulty.step_catalog import (
    STEP_BUGS,
    step_controls,
    step_faulty,
)
from scancheck.kernels.models.step_calls import FAMILIES
from scancheck.ops.calling import ARGUMENTS
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.selective_scan import SELECTIVE_SCAN

ROOT = Path(__file__).parents[2]
OPS = {op.name: op for op in (LINEAR_SCAN, SELECTIVE_SCAN)}
KERNELS = catalog.faulty() + catalog.controls()


def test_every_bug_has_its_file() -> None:
    """The catalogue lists every file of the folder that is called a planted bug."""
    folder = ROOT / "kernels" / "faulty"
    planted = {
        path.stem
        for path in folder.glob("*.py")
        if (ast.get_docstring(ast.parse(path.read_text())) or "").startswith("Planted")
    }
    bugs = (*catalog.BUGS, *STEP_BUGS, *CHUNK_BUGS, *SEQUENCE_BUGS)
    assert planted == {bug.module for bug in bugs}
    assert {
        kernel.name.rpartition(".")[2]
        for kernel in (*KERNELS, *step_faulty(), *chunk_faulty(), *sequence_faulty())
        if kernel.hazard
    } == planted


def test_every_bug_says_what_it_is() -> None:
    """Names are unique; a planted bug has a hazard in one sentence and its symptom.

    Bugs whose outputs cannot be told apart, as two ways not to compensate, share one.
    """
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    assert len({bug.hazard for bug in catalog.BUGS}) == len(catalog.BUGS) >= 32
    for kernel in catalog.faulty():
        assert kernel.symptom
        assert kernel.hazard is not None
        assert kernel.hazard.endswith(".")
        assert kernel.chunk in (None, chunked_torch.CHUNK)
    assert all(kernel.symptom is None for kernel in catalog.controls())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_signature_names_the_parameters_of_the_op(kernel: Kernel) -> None:
    """A kernel's parameters are those of its op, the log form of the decay apart."""
    op = OPS[kernel.op]
    known = {spec.name for spec in op.inputs} | set(op.switches)
    assert set(inspect.signature(kernel.call).parameters) == known - {"g"}


def test_bugs_of_ops_with_heads_say_what_they_are() -> None:
    """They have a name, hazard and symptom too, and the signature of their op."""
    planted = (*step_faulty(), *chunk_faulty())
    kernels = (*planted, *step_controls(), *chunk_controls())
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    hazards = [bug.hazard for bug in (*STEP_BUGS, *CHUNK_BUGS)]
    assert len(set(hazards)) == len(hazards)
    for kernel in planted:
        assert kernel.symptom
        assert kernel.hazard is not None
        assert kernel.hazard.endswith(".")
    for kernel in kernels:
        names = FAMILIES[kernel.op].names
        assert tuple(inspect.signature(kernel.call).parameters) == names


def test_bugs_of_several_sequences_say_what_they_are() -> None:
    """Name, hazard and symptom, and the op's signature with how it may be called."""
    kernels = (*sequence_faulty(), *sequence_controls())
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert len({bug.hazard for bug in SEQUENCE_BUGS}) == len(SEQUENCE_BUGS)
    for kernel in sequence_faulty():
        assert kernel.symptom in CAUSES
        assert kernel.hazard is not None
        assert kernel.hazard.endswith(".")
    for kernel in kernels:
        names = (*FAMILIES[kernel.op].names, *ARGUMENTS)
        assert tuple(inspect.signature(kernel.call).parameters) == names


def test_catalogue_loads_no_torch() -> None:
    """Listing the planted bugs imports no torch."""
    program = (
        "import sys\n"
        "from scancheck.kernels.faulty.catalog import controls, faulty\n"
        "from scancheck.kernels.faulty.chunk_catalog import chunk_faulty\n"
        "from scancheck.kernels.faulty.sequence_catalog import sequence_faulty\n"
        "from scancheck.kernels.faulty.step_catalog import step_faulty\n"
        "assert faulty() and controls() and step_faulty() and chunk_faulty()\n"
        "assert sequence_faulty()\n"
        "assert 'torch' not in sys.modules\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
