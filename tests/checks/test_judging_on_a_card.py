"""Large cases of every op are judged on a device, and on the CPU where it cannot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scancheck.case import Case, make_case
from scancheck.checks import judging_device as judging
from scancheck.checks import oracle
from scancheck.checks.oracle import Request, check_case, device_for_case
from scancheck.contract import Contract
from scancheck.gate import loop
from scancheck.gate.loop import Judging
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import models
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Op
from scancheck.recipes.inputs import Inputs
from scancheck.recipes.op_rules import rules_of
from scancheck.runner import Outcome, execute

ON_CARD = Request(contract=Contract(), device="cuda")


@pytest.fixture
def _a_usable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with CuPy and a CUDA device, for which no case is too small."""
    monkeypatch.setattr(judging, "unavailable", lambda: None)
    monkeypatch.setattr(judging, "is_lost", lambda device: False)
    monkeypatch.setattr(oracle, "CARD_ENTRIES", 0)


def case_of(name: str, steps: int, **options: Any) -> Case:
    """A case with the op's first sizes."""
    op, rules = op_named(name), rules_of(name)
    sizes = dict(rules.roster[0]) | {op.time_axis: steps}
    if op.forms:
        options["form"] = "g"
    return make_case(name, sizes, recipe="gaussian_slow", seed=3, options=options)


def on_cuda(kernel: Kernel) -> Kernel:
    """A kernel of CUDA as the judging process sees it; it is executed here."""

    def elsewhere(
        op: Op,
        inputs: Inputs,
        dtype: str,
        *,
        cotangents: Mapping[str, Any] | None,
        runs: int,
    ) -> Outcome:
        return execute(kernel, op, inputs, dtype, cotangents=cotangents, runs=runs)

    return replace(kernel, devices=("cuda",), elsewhere=elsewhere)


def model_of(name: str) -> Kernel:
    """The model of an op that takes one step after the other."""
    return next(k for k in models() if k.name == f"model.{name}.sequential.plain")


@pytest.mark.parametrize("name", OPS)
def test_large_cases_are_judged_where_the_kernel_runs(name: str) -> None:
    """Small ones are not, nor sequences of one call, nor ops of a user's own."""
    op, large = OPS[name], case_of(name, 2**20)
    assert device_for_case(op, large, ON_CARD) == "cuda"
    assert device_for_case(op, large, replace(ON_CARD, device="cpu")) == "cpu"
    assert device_for_case(op, case_of(name, 2), ON_CARD) == "cpu"
    assert device_for_case(replace(op, name="mine"), large, ON_CARD) == "cpu"
    packed = case_of(name, 2**20, reverse=True)
    assert device_for_case(op_of(packed), packed, ON_CARD) == "cpu"


@pytest.mark.usefixtures("_a_usable_device")
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("name", OPS)
def test_every_op_is_judged_alike_on_both(
    name: str, wrong: bool, card: str, judged_alike: Any
) -> None:
    """Verdicts, places and causes are the same, ratios within the certificates."""
    model, case = model_of(name), case_of(name, 19)

    def call(**tensors: Any) -> Any:
        first, *others = model.call(**tensors)
        if wrong:
            first = first * 1.01
        return (first, *others)

    kernel = replace(model, call=call) if wrong else model
    request = Request(
        contract=model.contract or Contract(), gradients=model.gradients and not wrong
    )
    here, there = (
        check_case(
            on_cuda(kernel), case, replace(request, device=d), cotangent_kind="dense"
        )
        for d in ("cpu", "cuda")
    )
    assert there.why_on_cpu is None
    assert (here.verdict != "PASS") is wrong
    judged_alike(here, there)


@pytest.mark.usefixtures("_a_usable_device")
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if not op.diagonal])
def test_more_keys_than_kernels_take_are_judged_on_the_cpu(
    name: str, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same verdict, and the record says why."""
    sizes = dict(rules_of(name).roster[0]) | {"T": 3, "K": 257, "V": 2}
    case = make_case(name, sizes, recipe="gaussian_slow", seed=3)
    monkeypatch.setattr(loop, "case_list", lambda *_, **__: [case])
    records = []
    for kernel in (model_of(name), on_cuda(model_of(name))):
        run = Judging(
            kernel=kernel,
            contract=kernel.contract or Contract(),
            declared=True,
            profile="quick",
            gradients=False,
            require=frozenset(),
            seed=0,
            dtypes=("fp32",),
        )
        run.judge(None, None)
        records.append(run.record(1.0, interrupted=False))
    here, there = records
    assert here.judged_on_cpu == ()
    assert there.judged_on_cpu == (
        "cuda: size K: expected at most 256 keys of a rank-one transition on a device; "
        "got 257",
    )
    assert (here.counts, here.worst_ratio) == (there.counts, there.worst_ratio)
