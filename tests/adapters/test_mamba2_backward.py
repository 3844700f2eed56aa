"""What mamba_ssm's Mamba-2 does in its backward pass, and what was published of it.

mamba_chunk_scan_combined 2.3.2 forms steps as log(exp(x) + 1) in fp32. It keeps between
its kernels, in the format of the tensors, the output before the gate and the cotangent
behind it. The published values of wrong gradients are those: in fp16 to
the bit, in bf16 to one rounding.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.case import Case, make_case
from scancheck.formats import BF16, FP16, FP32, round_array
from scancheck.ops import OPS
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents

FloatArray = NDArray[np.float64]
Tensors = dict[str, FloatArray]

PUBLISHED = Path(__file__).parents[2] / "reports/field/h200"
SSD = OPS["ssd"]


def published(dtype: str, tensor: str) -> tuple[Case, tuple[int, ...], float]:
    """The case of a wrong gradient, where it is first wrong, and what came there."""
    path = PUBLISHED / f"mamba_ssm.mamba_chunk_scan_combined-{dtype}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    (found,) = (
        x
        for x in record["findings"]
        if x["check"] == "gradient" and x["tensor"] == tensor
    )
    case = make_case(**found["case"])
    assert case.id == found["case_id"]
    got = found["values"][0].removeprefix("got=").partition(" ")[0]
    return case, tuple(found["first_wrong_index"]), float.fromhex(got)


def solved(tensors: Tensors, softplus: bool, bars: Tensors | None) -> Solution:
    """The op in fp64."""
    return solve(Fp64System(), SSD, tensors, {"dt_softplus": softplus}, bars)


@pytest.mark.parametrize("tensor", ["x", "B"])
def test_gradients_of_small_steps_are_those_of_a_sum(tensor: str) -> None:
    """A step of softplus(-70) is log(1) = 0, and so is its share of the gradients."""
    case, place, got = published("bf16", tensor)
    given: dict[str, Any] = dict(build(case).tensors)
    x = given["dt"] + given.pop("dt_bias")
    low = np.log(round_array(FP32, np.exp(np.minimum(x, 20.0)) + 1.0))
    steps = given | {"dt": np.where(x > 20.0, x, low)}
    bars = cotangents(case, "final_state", case.seed)
    found = solved(steps, False, bars).gradients[tensor].value[place]
    assert abs(found - got) <= BF16.unit_roundoff * abs(found)
    right = solved(dict(build(case).tensors), True, bars).gradients[tensor].value[place]
    assert abs(right - got) > 16 * BF16.unit_roundoff * abs(right)


@pytest.mark.parametrize("tensor", ["x", "z"])
def test_gradients_go_through_what_is_kept_in_fp16(tensor: str) -> None:
    """The output before silu(z), and its cotangent, rounded to fp16."""
    case, place, got = published("fp16", tensor)
    given = dict(build(case).tensors)
    z = given.pop("z")
    bars = cotangents(case, "cancelling_pairs", case.seed)
    gate = 1.0 / (1.0 + np.exp(-z))
    kept = round_array(FP16, bars["y"] * z * gate)
    if tensor == "x":
        found = solved(given, True, bars | {"y": kept}).gradients["x"].value
    else:
        y = round_array(FP16, solved(given, True, None).outputs["y"].value)
        found = bars["y"] * y * gate * (1.0 + z * (1.0 - gate))
    assert round_array(FP16, found)[place] == got
