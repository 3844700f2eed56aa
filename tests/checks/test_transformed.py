"""Steps, padding, scaling and similarity: each finds a fault the case does not have."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.case import Case, make_case
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.checks.relations import relation_reports
from scancheck.contract import parse_contract
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.kernels.faulty import calling_form
from scancheck.ops import OPS
from scancheck.registry import resolve_target
from scancheck.runner import accepted_parameters
from scancheck.verdict import Verdict

Scan = Callable[..., Any]


def red(bench: Any, call: Scan, case: Case, contract: str = "") -> list[str]:
    """The relations that are red, after making sure that the case itself is not."""
    kernel, request = bench.kernel(call), bench.request(contract)
    assert check_case(kernel, case, request).verdict is Verdict.PASS
    return [name(report) for report in related(kernel, case, request) if is_red(report)]


def related(kernel: Kernel, case: Case, request: Request) -> list[CaseReport]:
    """All relation reports of a kernel on one case."""
    op = OPS[kernel.op]
    accepted = accepted_parameters(kernel, op)
    returned = tuple(spec.name for spec in op.outputs)
    return list(relation_reports(kernel, op, [case], request, accepted, returned))


def name(report: CaseReport) -> str:
    """The relation of a report."""
    return report.checks[0].check.removeprefix("relation:")


def is_red(report: CaseReport) -> bool:
    """Whether the report is anything but a pass."""
    return report.verdict is not Verdict.PASS


def test_a_wrong_step_is_found(bench: Any) -> None:
    """Wrong when called with one token and a state: both relations of steps are red."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        wrong = b.shape[1] == 1 and initial_state is not None
        return h, (1.01 * state if wrong else state)

    assert red(bench, call, bench.case()) == ["prefill_and_step", "streaming"]


def test_a_wrong_first_token_is_found(bench: Any) -> None:
    """Wrong for one token without a state: streaming from the start alone is red."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        wrong = b.shape[1] == 1 and initial_state is None
        return (h + 1.0 if wrong else h), state

    assert red(bench, call, bench.case()) == ["streaming"]


def test_a_wrong_prefill_is_found(bench: Any) -> None:
    """Wrong for one token less than whole chunks: the prefill of that length is red."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return h, (0.5 * state if b.shape[1] == 127 else state)

    assert red(bench, call, bench.case(T=131)) == ["prefill_and_step"]


def test_padding_that_is_no_identity_is_found(bench: Any) -> None:
    """A kernel that takes a token without drive for a reset fails on padding alone."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        reset = (a == 1.0) & (b == 0.0)
        return bench.scan(torch.where(reset, 0.0, a), b, initial_state)

    case = bench.case("mixed_time_scales")
    assert red(bench, call, case) == ["padding"]


def test_steps_with_a_floor_are_found_by_padding() -> None:
    """selective_scan with steps clamped from below forgets over its padding."""

    def call(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, delta_softplus: bool
    ) -> Any:
        if delta_softplus:
            delta = torch.nn.functional.softplus(delta, threshold=40.0).clamp(min=1e-3)
        given = {"u": u, "delta": delta, "A": A, "B": B, "C": C}
        return calling_form.selective_scan(calling_form.Form(), given)

    case = make_case(
        "selective_scan",
        {"B": 1, "D": 4, "L": 70, "N": 3},
        recipe="gaussian_slow",
        seed=3,
        options={"delta_bias": False, "D": False, "z": False},
    )
    kernel = Kernel(name="tried", op="selective_scan", call=call)
    request = Request(contract=parse_contract(""))
    assert check_case(kernel, case, request).verdict is Verdict.PASS
    found = [name(r) for r in related(kernel, case, request) if is_red(r)]
    assert found == ["padding"]


def test_no_padding_where_the_format_lacks_an_identity() -> None:
    """fp8_e4m3 ends at 448, above which mlstm's input gates write nothing."""
    (kernel,) = resolve_target("model.mlstm.sequential.plain", None)
    sizes = {"B": 1, "T": 20, "H": 1, "K": 2, "V": 2}
    assert kernel.contract is not None
    request = Request(contract=kernel.contract, runs=1)
    for dtype, told in (("fp8_e4m3", False), ("fp8_e5m2", True)):
        case = make_case("mlstm", sizes, dtype=dtype, recipe="gaussian_slow", seed=3)
        found = [name(r) for r in related(kernel, case, request)]
        assert ("padding" in found) is told
        assert not [r for r in related(kernel, case, request) if is_red(r)]


def in_fp64(bench: Any, decay_offset: float, offset: float) -> Scan:
    """A scan in fp64 with tiny constants added to its decays and its outputs."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        state = None if initial_state is None else initial_state.double()
        h, state = bench.scan(a.double() + decay_offset, b.double(), state)
        return (h + offset).to(b.dtype), state.to(torch.float32)

    return call


def with_offset(bench: Any) -> Scan:
    """A constant far below any budget is added to every output."""
    return in_fp64(bench, 0.0, 2.0**-31)


def with_offset_of_decays(bench: Any) -> Scan:
    """A constant far below an ulp is added to every decay."""
    return in_fp64(bench, 2.0**-30, 0.0)


def test_an_offset_is_found_by_scaling(bench: Any) -> None:
    """What the budget allows and no sum or product makes is told by its bits."""
    case = bench.case("gaussian_slow")
    assert "scaling" in red(bench, with_offset(bench), case, "structure=sequential")


def test_an_offset_of_decays_is_found_by_similarity(bench: Any) -> None:
    """A decay that is not used as given is told by its bits, by no other relation."""
    case = bench.case("gaussian_slow")
    found = red(bench, with_offset_of_decays(bench), case, "structure=sequential")
    assert found == ["time_similarity"]


@pytest.mark.parametrize("planted", [with_offset, with_offset_of_decays])
def test_no_bits_are_asked_of_an_undeclared_kernel(
    bench: Any, planted: Callable[[Any], Scan]
) -> None:
    """Who declares nothing may take logarithms, and is held to budgets alone."""
    assert red(bench, planted(bench), bench.case("gaussian_slow")) == []


def test_no_transformed_inputs_outside_the_domain(bench: Any) -> None:
    """Decays above one are not given to a kernel that documents not to take them."""
    kernel = bench.kernel(bench.scan)
    request = bench.request("structure=sequential,domain=a:0:1;b:-40:40")
    case = bench.case("mixed_time_scales")
    names = [name(report) for report in related(kernel, case, request)]
    assert "time_similarity" not in names
    assert "padding" in names


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("recipe", ["gaussian_slow", "decay_near_one"])
@pytest.mark.parametrize("contract", ["", "structure=sequential", "compute=storage"])
def test_a_right_kernel_passes_whatever_it_declares(
    bench: Any, dtype: str, recipe: str, contract: str
) -> None:
    """A loop over tokens holds to the bit where that is asked, in every format."""
    if contract == "compute=storage" and dtype in ("fp16", "bf16"):
        contract = "structure=sequential,compute=fp32"
    case = bench.case(recipe, dtype=dtype, initial_state=True)
    assert red(bench, bench.scan, case, contract) == []
