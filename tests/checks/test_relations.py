"""Relations: each finds a fault that the case itself does not have."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.case import Case
from scancheck.checks.oracle import CaseReport, check_case
from scancheck.checks.relations import CASES, LONGEST, SHORTEST, relation_reports
from scancheck.ops import OPS
from scancheck.recipes.build import build
from scancheck.runner import accepted_parameters
from scancheck.verdict import Verdict

OUTPUTS = ("h", "final_state")
ON_EVERY_CASE = ["causality", "split", "batch_row"]
STEPS = ["prefill_and_step", "streaming"]
TRANSFORMED = ["padding", "scaling", "time_similarity"]


def reports(
    bench: Any,
    call: Callable[..., Any],
    cases: list[Case],
    returned: tuple[str, ...] = OUTPUTS,
    contract: str = "",
    only: str | None = None,
) -> list[CaseReport]:
    """The relation reports of a callable, of one relation where it is named."""
    kernel, op = bench.kernel(call), OPS["linear_scan"]
    accepted = accepted_parameters(kernel, op)
    request = bench.request(contract)
    found = list(relation_reports(kernel, op, cases, request, accepted, returned))
    return [report for report in found if only in (None, *names([report]))]


def names(found: list[CaseReport]) -> list[str]:
    """The relation of each report."""
    return [report.checks[0].check.removeprefix("relation:") for report in found]


def only_if(bench: Any, broken: Callable[[Tensor, Tensor], bool]) -> Callable[..., Any]:
    """A scan that is wrong by a tenth where `broken` says so of its arguments."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return (1.1 * h if broken(a, b) else h), state

    return call


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("state", [False, True])
def test_a_right_kernel_passes_all(bench: Any, dtype: str, state: bool) -> None:
    """Split and resume, causality and a row alone hold in every format."""
    case = bench.case(dtype=dtype, initial_state=state, B=3, T=77, D=3)
    found = reports(bench, bench.scan, [case])
    assert names(found) == [*ON_EVERY_CASE, *STEPS, *TRANSFORMED]
    assert {report.verdict for report in found} == {Verdict.PASS}
    assert [sorted(report.metrics) for report in found] == [
        ["h"],
        *[["final_state", "h"]] * 7,
    ]


@pytest.mark.parametrize(
    "contract", ["state=bf16,state_every=16", "structure=chunk(8)"]
)
def test_relations_hold_under_any_contract(bench: Any, contract: str) -> None:
    """A cut restarts chunks; no structure that the kernel declares makes that red."""
    found = reports(bench, bench.scan, [bench.case(T=77)], contract=contract)
    assert {report.verdict for report in found} == {Verdict.PASS}


def test_relations_need_what_they_use(bench: Any) -> None:
    """No resuming without a state in and out, no row alone in a batch of one."""
    one, two = bench.case(B=1), bench.case(B=2)
    lone = lambda a, b, initial_state=None: bench.scan(a, b, initial_state)[0]  # noqa: E731
    stateless = lambda a, b: bench.scan(a, b)  # noqa: E731
    resumed = ["causality", "split", *STEPS, *TRANSFORMED]
    alone = ["causality", "batch_row", *TRANSFORMED]
    assert names(reports(bench, bench.scan, [one])) == resumed
    assert names(reports(bench, lone, [two], ("h",))) == alone
    assert names(reports(bench, stateless, [two])) == alone
    assert names(reports(bench, stateless, [one])) == ["causality", *TRANSFORMED]


def test_relations_are_tried_on_a_few_fitting_cases(bench: Any) -> None:
    """Neither empty, very short or long cases, nor recipes at the edge of the range."""
    unfit = [
        bench.case(T=0),
        bench.case(B=0),
        bench.case(T=SHORTEST - 1),
        bench.case(T=LONGEST + 1),
        bench.case("subnormal_state"),
        bench.case("exact_dyadic"),
    ]
    assert reports(bench, bench.scan, unfit) == []
    fit = [bench.case(B=1, T=SHORTEST + n, D=1) for n in range(CASES + 2)]
    found = reports(bench, bench.scan, [*unfit, *fit])
    assert {report.case for report in found} == set(fit[:CASES])


def test_a_fault_of_resuming_is_found(bench: Any) -> None:
    """Wrong only in a sequence as short as a piece: the split is red, the case not."""
    case = bench.case(T=131)
    call = only_if(bench, lambda a, b: b.shape[1] < 100)
    found = reports(bench, call, [case])
    red = [report for report in found if report.verdict is not Verdict.PASS]
    assert names(red) == ["split", *STEPS]
    assert next((c.verdict, c.tensor, c.index) for c in red[0].checks) == (
        Verdict.FAIL,
        "h",
        (0, 0, 0),
    )
    assert check_case(bench.kernel(call), case, bench.request()).verdict == "PASS"


def test_a_state_that_is_dropped_on_resuming_is_found(bench: Any) -> None:
    """A kernel that forgets its initial state fails where the first piece ends."""
    case = bench.case(T=131)
    found = reports(bench, lambda a, b, initial_state=None: bench.scan(a, b), [case])
    all_red = [report for report in found if report.verdict is not Verdict.PASS]
    assert names(all_red) == ["split", *STEPS]
    red = all_red[0]
    assert red.checks[0].index is not None
    assert red.checks[0].index[1] == 43


def test_a_look_ahead_is_found(bench: Any) -> None:
    """Wrong only when later tokens change: causality is red, the case is not."""
    case = bench.case(B=1, T=131)
    own = torch.tensor(build(case).tensors["b"], dtype=torch.float32)
    call = only_if(bench, lambda a, b: b.shape == own.shape and not b.equal(own))
    (red,) = reports(bench, call, [case], only="causality")
    assert red.verdict is Verdict.FAIL


def test_tokens_that_were_changed_are_not_judged(bench: Any) -> None:
    """Causality says nothing of the tokens after the change."""
    case = bench.case(B=1, T=131)
    own = torch.tensor(build(case).tensors["b"], dtype=torch.float32)
    keep = 2 * 131 // 3

    def call(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        if not b.equal(own):
            h[:, keep:] = 1e9
        return h, state

    found = reports(bench, call, [case], only="causality")
    assert [report.verdict for report in found] == ["PASS"]


def test_a_mix_up_of_rows_is_found(bench: Any) -> None:
    """Wrong only in a batch of one: the row alone is red, the case is not."""
    found = reports(
        bench, only_if(bench, lambda a, b: b.shape[0] == 1), [bench.case(B=2)]
    )
    red = [report for report in found if report.verdict is not Verdict.PASS]
    assert names(red) == ["batch_row"]
    assert red[0].checks[0].index == (1, 0, 0)


@pytest.mark.parametrize(
    ("relation", "broken"),
    [
        ("split", lambda a, b: b.shape[1] < 60),
        ("split", lambda a, b: 60 < b.shape[1] < 100),
        ("batch_row", lambda a, b: b.shape[0] == 1),
    ],
    ids=["head", "tail", "row"],
)
def test_a_call_that_fails_in_a_relation_alone_is_red(
    bench: Any, relation: str, broken: Callable[[Tensor, Tensor], bool]
) -> None:
    """A kernel that raises for the piece or the row is an error of that relation."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        if broken(a, b):
            raise ValueError("unlucky shape")
        return bench.scan(a, b, initial_state)

    (red,) = reports(bench, call, [bench.case(T=131)], only=relation)
    assert red.verdict is Verdict.ERROR
    assert "unlucky shape" in red.checks[0].reason


def test_a_kernel_that_always_raises_is_not_told_again(bench: Any) -> None:
    """Relations add nothing where the case's own call fails."""

    def raises(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        raise ValueError("never")

    assert reports(bench, raises, [bench.case()]) == []


@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
def test_selective_scan_is_cut_in_every_layout(bench: Any, keys: str) -> None:
    """Tensors with and without time, groups or rows are cut along the right axes."""
    from scancheck.case import make_case
    from scancheck.kernels.faulty.catalog import controls

    (kernel,) = [k for k in controls() if k.op == "selective_scan"]
    op = OPS["selective_scan"]
    case = make_case(
        "selective_scan",
        {"B": 2, "D": 4, "L": 70, "N": 3} | ({"G": 2} if keys == "grouped" else {}),
        recipe="gaussian_slow",
        seed=3,
        options={"keys": keys, "initial_state": True},
    )
    accepted = accepted_parameters(kernel, op)
    returned = ("y", "last_state")
    found = list(
        relation_reports(kernel, op, [case], bench.request(), accepted, returned)
    )
    assert names(found) == [*ON_EVERY_CASE, *STEPS, "padding", "scaling"]
    assert {report.verdict for report in found} == {Verdict.PASS}
    assert all(np.isfinite(m.error).all() for r in found for m in r.metrics.values())
