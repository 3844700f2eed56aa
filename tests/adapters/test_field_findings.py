"""What reports/field publishes as wrong, checked against loops of float64.

The tool says of a value what it got, what it wanted and how far apart they may be. The
loop knows neither: where it agrees with what was wanted, far within that budget, the
kernel is wrong and not the tool.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_loops import OUTPUTS, loop

from scancheck.case import Case, case_from_json
from scancheck.recipes.build import build
from scancheck.recipes.inputs import COTANGENT_KINDS, cotangents

REPORTS = Path(__file__).parents[2] / "reports" / "field"
TOLD = ("got", "want", "budget")
# Of a budget: what a loop in float64 may be off by. fp32's own is 2**29 times that of
# float64, and the shortest ones hold but a few roundings.
MARGIN = 1e-3


def findings() -> list[Any]:
    """All findings about one tensor of a case, with the value that is worst or first.

    Relations compare calls with each other; their cases pass or are here themselves.
    """
    found = []
    for path in sorted(REPORTS.glob("*/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for at, finding in enumerate(record["findings"]):
            if finding["check"] in ("oracle", "gradient") and finding["values"]:
                name = f"{path.parent.name}-{path.stem}-{at}-{finding['tensor']}"
                found.append(pytest.param(finding, id=name))
    return found


def told(finding: dict[str, Any]) -> tuple[float, float, float]:
    """Got, wanted and budget."""
    values = dict(text.split("=", 1) for text in finding["values"])
    got, want, budget = (_number(values[name]) for name in TOLD)
    return got, want, budget


def _number(text: str) -> float:
    first = text.split(" ")[0]
    return float.fromhex(first) if "0x" in first else float(first)


def by_loop(case: Case, tensor: str, gradient: bool) -> list[torch.Tensor]:
    """The tensor by the loop; a gradient for every kind of cotangents."""
    inputs = build(case)
    given = {
        name: torch.from_numpy(np.array(x)).requires_grad_(gradient)
        for name, x in inputs.tensors.items()
    }
    outputs = loop(case.op, given, dict(inputs.switches))
    if not gradient:
        return [outputs[tensor]]
    found = []
    for kind in COTANGENT_KINDS:
        bars = cotangents(case, kind, case.seed)
        total = sum(
            (outputs[n] * torch.from_numpy(np.array(b))).sum() for n, b in bars.items()
        )
        assert isinstance(total, torch.Tensor)
        (slope,) = torch.autograd.grad(
            total, given[tensor], retain_graph=True, allow_unused=True
        )
        found.append(torch.zeros_like(given[tensor]) if slope is None else slope)
    return found


@pytest.mark.parametrize("finding", findings())
def test_a_published_finding_is_one_against_a_plain_loop(
    finding: dict[str, Any],
) -> None:
    """The loop has what was wanted, and what the kernel returned is beyond the budget.

    Of a gradient the finding does not say under which kind of cotangents; one of them
    must give what was wanted.
    """
    got, want, budget = told(finding)
    case = case_from_json(finding["case"])
    gradient = finding["check"] == "gradient"
    place = tuple(finding["first_wrong_index"])
    exact = [float(x[place]) for x in by_loop(case, finding["tensor"], gradient)]
    nearest = min(exact, key=lambda value: abs(value - want))
    assert abs(nearest - want) <= MARGIN * budget + 1e-13 * abs(want)
    if finding["verdict"] == "NONFINITE":
        assert not np.isfinite(got)
    else:
        assert not abs(got - nearest) <= budget


def test_the_loop_does_not_agree_with_anything() -> None:
    """Of another token it has another value, so that agreeing says something."""
    (finding,) = findings()[0].values
    case = case_from_json(finding["case"])
    (outputs,) = by_loop(case, OUTPUTS[case.op][0], gradient=False)
    assert len(outputs.unique()) > outputs.numel() // 2


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_last_state_of_constant_keys_lacks_them(dtype: str) -> None:
    """mamba_ssm 2.3.2.post1 scans without B where B and C are constant.

    It multiplies the output by both afterwards, and hands the state on as it is.
    """
    path = REPORTS / "h200" / f"mamba_ssm.selective_scan_fn-{dtype}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    (finding,) = (
        one
        for one in record["findings"]
        if (one["tensor"], one["check"]) == ("last_state", "oracle")
    )
    got, _, budget = told(finding)
    case = case_from_json(finding["case"])
    assert dict(case.options)["keys"] == "constant"
    inputs = build(case)
    tensors = {
        name: torch.from_numpy(np.array(x)) for name, x in inputs.tensors.items()
    }
    tensors["B"] = torch.ones_like(tensors["B"])
    state = loop(case.op, tensors, dict(inputs.switches))["last_state"]
    assert abs(float(state[tuple(finding["first_wrong_index"])]) - got) <= budget


def test_a_normaliser_beyond_256_has_no_gradient_in_fp16() -> None:
    """fla-core 0.6.0 divides by its square, which is infinite in fp16 from there on.

    What is left of dq is what comes through the numerator.
    """
    name = "fla.fused_recurrent_linear_attn.normalize-fp16.json"
    record = json.loads((REPORTS / "h200" / name).read_text(encoding="utf-8"))
    (finding,) = (one for one in record["findings"] if one["tensor"] == "q")
    got, want, _ = told(finding)
    case = case_from_json(finding["case"])
    batch, token, head, key = finding["first_wrong_index"]
    inputs = build(case).tensors
    k, v = (inputs[name][batch, : token + 1, head] for name in ("k", "v"))
    scale = inputs["q"].shape[3] ** -0.5
    normaliser = scale * k.sum(0) @ inputs["q"][batch, token, head]
    assert normaliser**2 > np.finfo(np.float16).max
    bar = cotangents(case, "cancelling_pairs", case.seed)["o"][batch, token, head]
    numerator = scale * (k.T @ v)[key] @ bar / normaliser
    assert abs(got - numerator) < 1e-3 < abs(got - want)
