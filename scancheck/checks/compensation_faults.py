"""Compensation that goes wrong, imitated in fp32 to the last bit."""

from collections.abc import Iterator

import numpy as np

from scancheck.checks.carry_faults import Fault
from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import has_plain_decays


def faults_of_compensation(report: CaseReport) -> Iterator[Fault]:
    """linear_scan with all roundings recovered, but added up without the decay.

    Errors of products and sums are those of a sequential scan without fma.
    """
    tensors = report.inputs.tensors
    plain = has_plain_decays(op_of(report.case), tensors)
    if not plain or report.case.dtype == "fp64":
        return
    decays = tensors["a"].astype(np.float32).swapaxes(0, 1)
    drives = tensors["b"].astype(np.float32).swapaxes(0, 1)
    lost = np.zeros(drives.shape[1:], dtype=np.float32)
    state = tensors.get("initial_state", lost).astype(np.float32)
    rows = []
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(len(decays)):
            a, b = decays[t], drives[t]
            product = a * state
            exact = a.astype(np.float64) * state
            of_product = (exact - product).astype(np.float32)
            state = product + b
            seen = state - product
            of_sum = (product - (state - seen)) + (b - seen)
            lost = lost + (of_product + of_sum)
            rows.append(state.astype(np.float64) + lost)
    if rows:
        detail = "what roundings lost is added up without the decay of the state"
        h = np.stack(rows, 1)
        yield "compensation", detail, {"h": h, "final_state": h[:, -1]}
