"""Faults planted in CUDA sources: each has its place, compiles, and is compiled in."""

import pytest

from scancheck.diagnosis import CAUSES
from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda import catalog, compile
from scancheck.kernels.cuda.toolkit import compiler_unavailable
from scancheck.kernels.faulty.cuda_sources import (
    FAULTS,
    HIDDEN_RACE,
    SourceFault,
    edited,
    fault_named,
    kernel_of,
    planted,
)

EVERY = (*FAULTS, HIDDEN_RACE)
IDS = [f"{fault.kernel.split('.')[1]}-{fault.name}" for fault in EVERY]


def test_faults_say_what_they_are() -> None:
    """Names are unique in an op, causes are known, and each op has each kind."""
    assert len(set(IDS)) == len(EVERY)
    for fault in FAULTS:
        assert fault.symptoms <= set(CAUSES)
    for kind in ("missing barrier", "initial state ignored", "low precision"):
        ops = {fault.kernel.split(".")[1] for fault in FAULTS if fault.kind == kind}
        assert ops == {"linear_scan", "selective_scan"}
    assert fault_named("selective_scan", "exp_in_fp16").kernel.endswith(".fast")
    with pytest.raises(CaseInvalid, match="planted in linear_scan; got none"):
        fault_named("linear_scan", "none")


@pytest.mark.parametrize("fault", EVERY, ids=IDS)
def test_every_edit_has_one_place(fault: SourceFault) -> None:
    """It changes its file, whose kernel is registered and takes the dtype."""
    text = (compile.SOURCES / fault.file).read_text("utf-8")
    assert edited(fault, text) != text
    assert fault.dtype in kernel_of(fault).dtypes
    with pytest.raises(CaseInvalid, match="got 0"):
        edited(fault, "")
    with pytest.raises(CaseInvalid, match="got 2"):
        edited(fault, text + text)


@pytest.mark.skipif(
    compiler_unavailable() is not None, reason=str(compiler_unavailable())
)
@pytest.mark.parametrize("fault", EVERY, ids=IDS)
def test_every_edit_is_compiled(fault: SourceFault) -> None:
    """For sm_90 the instance has other code with the fault, and the old one after."""
    source, begins = fault.instance
    instance = next(i for i in catalog.sources()[source] if i.startswith(begins))

    def image() -> bytes:
        return compile.cubin(source, (instance,), "sm_90").image

    right = image()
    with planted(fault) as folder:
        assert folder.is_dir()
        assert image() != right
    assert not folder.exists()
    assert image() == right
