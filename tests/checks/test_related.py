"""Outputs that must equal others to the bit, and what NaN in either means."""

from typing import Any

import numpy as np
import pytest

from scancheck.checks.related import compared, subject_of
from scancheck.ops import OPS
from scancheck.recipes.build import build
from scancheck.registry import resolve_target
from scancheck.verdict import Verdict

NAN = float("nan")


@pytest.mark.parametrize(
    ("got", "wanted", "verdict"),
    [
        (1.0, 1.0, Verdict.PASS),
        (NAN, NAN, Verdict.PASS),  # an overflow that e4m3 stores as NaN, both times
        (NAN, 1.0, Verdict.NONFINITE),
        (1.0, NAN, Verdict.FAIL),
        (1.0, 1.0625, Verdict.FAIL),
    ],
)
def test_nan_equals_nan_and_nothing_else(
    bench: Any, got: float, wanted: float, verdict: Verdict
) -> None:
    """Both NaN is equal; NaN on one side alone is red, whichever side it is."""
    (kernel,) = resolve_target("model.linear_scan.sequential.plain", None)
    case = bench.case(T=24, D=2, dtype="fp8_e4m3")
    subject = subject_of(
        kernel, OPS[kernel.op], case, build(case), bench.request("structure=sequential")
    )
    values = subject.whole.outcome.outputs["h"]
    one, other = values.copy(), values.copy()
    one[0, 3, 1], other[0, 3, 1] = got, wanted
    slack = {"h": np.zeros(values.shape)}
    report = compared(subject, {"h": one}, {"h": other}, slack, "relation:tried")
    assert report.verdict is verdict
