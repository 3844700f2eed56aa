"""The CPU models of CUDA kernels as kernels: named, judged and differentiable."""

import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.catalog import kernels
from scancheck.kernels.models.cuda_catalog import model_of, models

MODELS = {kernel.name: kernel for kernel in models()}
FORMS = {"linear_scan": {"form": "g"}, "selective_scan": {}}
SIZES = {
    # A second chunk, and a shape that each order of the backward pass takes.
    "linear_scan": ({"B": 2, "T": 520, "D": 3},),
    "selective_scan": (
        {"B": 1, "L": 80, "D": 16, "N": 16},
        {"B": 2, "L": 45, "D": 3, "N": 18},
    ),
}


def test_who_has_a_model() -> None:
    """Every kernel but the fast ones, whose model is that of another variant."""
    named = {k.name: k for k in kernels()}
    for name, model in MODELS.items():
        kernel = named[name.removeprefix("model.")]
        assert (model.contract, model.dtypes) == (kernel.contract, kernel.dtypes)
        assert model.devices == ("cpu",)
    missing = {name for name in named if f"model.{name}" not in MODELS}
    assert all("fast" in name or ".auto." in name for name in missing)
    for name in named:
        beside = model_of(name)
        assert (beside is None) == (".auto." in name)
        assert beside is None or beside in MODELS
    assert model_of("cuda.linear_scan.single_pass.fast_segsum") == (
        "model.cuda.linear_scan.single_pass.segsum"
    )
    assert model_of("cuda.linear_scan.single_pass.plain.state_bf16") in MODELS


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda kernel: kernel.name)
def test_models_keep_the_contract(model: Kernel) -> None:
    """Outputs and gradients are within the budget."""
    for sizes in SIZES[model.op]:
        case = make_case(
            model.op,
            sizes,
            dtype="bf16",
            recipe="gaussian_slow",
            seed=1,
            options={**FORMS[model.op], "initial_state": True},
        )
        request = Request(contract=model.contract or Contract(), gradients=True)
        report = check_case(model, case, request, cotangent_kind="dense")
        assert report.verdict == "PASS", report.checks
        assert report.gradient_metrics


def test_log_gates_alone_where_decays_are_summed() -> None:
    """A decay given to it would be taken for a logarithm."""
    accepted = MODELS["model.cuda.linear_scan.single_pass.segsum"].supports
    assert accepted == ("g", "b", "initial_state")


def test_gradients_without_options() -> None:
    """What is not given has no gradient, and the others are unaffected."""
    model = MODELS["model.cuda.selective_scan.sequential.reproducible"]
    draw = torch.Generator().manual_seed(0)
    shapes = {"u": (1, 3, 40), "delta": (1, 3, 40), "B": (1, 5, 40), "C": (1, 5, 40)}
    given = {n: torch.rand(s, generator=draw) for n, s in shapes.items()}
    given["A"] = -torch.rand((3, 5), generator=draw)
    zeros = {"D": torch.zeros(3), "initial_state": torch.zeros(1, 3, 5)}
    found = []
    for tensors in (given, given | zeros):
        leaves = {n: x.clone().requires_grad_() for n, x in tensors.items()}
        y, last = model.call(**leaves)
        (y.sum() + last.sum()).backward()
        found.append({name: leaves[name].grad for name in given})
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name
