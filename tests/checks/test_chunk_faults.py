"""Faults of chunks of matrix products are recognised by what they return."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scancheck.case import make_case
from scancheck.checks.chunk_faults import ChunkFault, CutInverse, ReadTooLate
from scancheck.checks.faulty_recurrence import run
from scancheck.checks.hypotheses import explain
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import parse_contract
from scancheck.diagnosis import CAUSES
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.chunk_catalog import chunk_faulty
from scancheck.kernels.models.catalog import model

BUGS = {kernel.name: kernel for kernel in chunk_faulty()}
STEPWISE = parse_contract("structure=sequential")
SIZES = {"B": 1, "T": 37, "H": 2, "HV": 4, "K": 4, "V": 3}


def judged(kernel: Kernel, **options: Any) -> CaseReport:
    """The report of one case in fp32, under the contract of a step form."""
    sizes = SIZES | options
    if kernel.op == "rwkv6":
        del sizes["HV"]
    case = make_case(
        kernel.op,
        sizes,
        dtype="fp32",
        recipe="gaussian_slow",
        seed=3,
        options={"initial_state": True, "chunk": 16},
    )
    return check_case(kernel, case, Request(contract=STEPWISE))


@pytest.mark.parametrize(
    "name",
    [name for name in BUGS if "upper_triangle" not in name],
)
def test_planted_bugs_are_named(name: str) -> None:
    """The one cause that fits, and the chunk where it has one."""
    square = {"T": 4, "H": 4} if "heads_taken" in name else {}
    found = explain(judged(BUGS[name], **square), [16])
    assert found is not None
    assert found.cause == BUGS[name].symptom
    assert found.cause in CAUSES
    assert found.chunk == (None if square else 16)


@pytest.mark.parametrize("size", [8, 32])
def test_of_another_chunk_nothing_is_said(size: int) -> None:
    """The same fault with edges elsewhere does not explain the outputs."""
    bug = BUGS["faulty.gated_delta_rule.carried_state_decayed_twice"]
    assert explain(judged(bug), [size]) is None


def test_how_far_an_inverse_goes_is_said() -> None:
    """Two doublings, seven erasures."""
    found = explain(judged(BUGS["faulty.kda.inverse_cut_short"]), [16])
    assert found is not None
    assert found.detail.endswith("at most 7 erasures on its way: 2 doublings")


class Whole(ChunkFault):
    """No fault at all, in the frame of one."""

    def chunk(self, part: Any, state: Any) -> Any:
        """Steps one by one."""
        from scancheck.checks.chunk_faults import _Steps

        steps, o = _Steps(part), np.empty_like(part.v.value)
        for t in range(o.shape[1]):
            before = state
            state = steps.moved(t, state, steps.seen(t, state), steps.at("v", t))
            read = before if part.reads_before else state
            o[:, t] = (steps.at("r", t) * read).sum(1)
        return o, state


@pytest.mark.parametrize(
    "op", ["simple_gla", "gla", "rwkv6", "rwkv7", "ssd", "delta_rule", "kda"]
)
def test_frame_without_a_fault_is_the_oracle(op: str) -> None:
    """Reads before the update, decays of values and erasures, in fp64."""
    sizes = {"B": 2, "T": 19, "H": 2, "K": 4, "V": 3}
    if op == "ssd":
        sizes = {"B": 2, "T": 19, "H": 2, "G": 1, "P": 3, "N": 4}
    elif op not in ("gla", "rwkv6", "rwkv7"):
        sizes["HV"] = 4
    case = make_case(op, sizes, dtype="fp32", recipe="gaussian_slow", seed=1)
    report = check_case(
        model(op, "sequential", "plain"), case, Request(contract=STEPWISE)
    )
    outputs = run(report, Whole(8))
    for name, ball in report.truth.outputs.items():
        scale = 1.0 + np.abs(ball.hi).max()
        assert np.abs(outputs[name] - ball.hi).max() <= 1000 * 2.0**-53 * scale


@pytest.mark.parametrize("op", ["delta_rule", "kda", "rwkv7"])
def test_an_inverse_of_enough_rounds_is_complete(op: str) -> None:
    """In a chunk of eight tokens two doublings are all there is to do."""
    sizes = {"B": 2, "T": 19, "H": 2, "K": 4, "V": 3}
    if op != "rwkv7":
        sizes["HV"] = 4
    case = make_case(op, sizes, dtype="fp32", recipe="gaussian_slow", seed=1)
    kernel = model(op, "sequential", "plain")
    report = check_case(kernel, case, Request(contract=STEPWISE))
    for name, ball in report.truth.outputs.items():
        outputs = run(report, CutInverse(8, 2))
        assert np.abs(outputs[name] - ball.hi).max() <= 1e-10
        cut = run(report, CutInverse(8, 0))
        assert np.abs(cut[name] - ball.hi).max() > 1e-6


def test_gates_of_zero_hide_what_is_read_too_late() -> None:
    """A decay of one once more is no fault."""
    kernel = model("simple_gla", "sequential", "plain")
    report = judged(replace(kernel, contract=STEPWISE))
    zero = dict(report.inputs.tensors) | {
        "g": np.zeros_like(report.inputs.tensors["g"])
    }
    plain = run(report, Whole(16), zero)
    late = run(report, ReadTooLate(16), zero)
    assert all(np.array_equal(plain[name], late[name]) for name in plain)
