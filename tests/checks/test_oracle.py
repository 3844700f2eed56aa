"""One case against truth and budget: what is judged, excused, and never hidden."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.case import make_case
from scancheck.checks import oracle
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import parse_contract
from scancheck.formats import format_named, round_array
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.chunk_catalog import chunk_model
from scancheck.oracles.ladder import Truth
from scancheck.recipes.build import build
from scancheck.verdict import RED, Verdict

INF, NAN = np.inf, np.nan


def verdicts(report: CaseReport) -> dict[tuple[str, str | None], str]:
    """Verdict of each check and tensor."""
    return {(c.check, c.tensor): str(c.verdict) for c in report.checks}


def random(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Values that fp32 holds."""
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(np.float32).astype(float)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("bars", ["dense", "final_state", "one_token"])
def test_a_right_kernel_passes_in_every_check(
    bench: Any, dtype: str, bars: str
) -> None:
    """Outputs and all gradients are judged, each by its own check."""
    case = bench.case(dtype=dtype, initial_state=True)
    report = bench.report(bench.scan, case, bars=bars)
    assert report.verdict is Verdict.PASS
    assert verdicts(report) == {
        ("oracle", "h"): "PASS",
        ("oracle", "final_state"): "PASS",
        ("gradient", "a"): "PASS",
        ("gradient", "b"): "PASS",
        ("gradient", "initial_state"): "PASS",
    }
    assert set(report.metrics) == {"h", "final_state"}
    assert set(report.gradient_metrics) == {"a", "b", "initial_state"}


def test_gradients_need_a_request_and_a_cotangent(bench: Any) -> None:
    """Neither the flag alone nor the kind alone judges gradients."""
    kernel, case = bench.kernel(bench.scan), bench.case()
    for request, kind in (
        (bench.request(), "dense"),
        (bench.request(gradients=True), None),
    ):
        report = check_case(kernel, case, request, cotangent_kind=kind)
        assert report.gradient_metrics == {}
        assert report.cotangents is None


def test_outputs_that_are_not_judged_have_no_cotangent(bench: Any) -> None:
    """A kernel without a final state owes no gradient through it."""
    request = bench.request(gradients=True, not_judged=frozenset({"final_state"}))
    kernel = bench.kernel(lambda a, b: bench.scan(a, b)[0])
    report = check_case(kernel, bench.case(), request, cotangent_kind="dense")
    assert report.cotangents is not None
    assert set(report.cotangents) == {"h"}
    assert report.verdict is Verdict.PASS


@pytest.mark.parametrize("T", [0, 1])
@pytest.mark.parametrize("B", [0, 1])
def test_the_smallest_sizes_are_judged(bench: Any, B: int, T: int) -> None:
    """No token, no batch row, or one of each: judged like any other case."""
    case = bench.case("unit_decay", B=B, T=T, D=3, initial_state=True)
    assert bench.report(bench.scan, case, bars="dense").verdict is Verdict.PASS


def test_a_gradient_of_none_is_right_where_zero_is(bench: Any) -> None:
    """At T = 1 from a zero state the gate has no influence, and may be left out."""
    case = bench.case(T=1)
    unused = bench.report(lambda a, b: (b.clone(), b[:, 0].clone()), case, bars="dense")
    assert unused.outcome.missing_gradients == ("a",)
    assert unused.verdict is Verdict.PASS


@pytest.mark.parametrize("T", [7, 64, 65])
def test_exact_cases_have_no_allowance(bench: Any, T: int) -> None:
    """On exact_dyadic a single last bit is a failure, and nothing else is."""
    case = bench.case("exact_dyadic", T=T, initial_state=True)
    assert bench.report(bench.scan, case).verdict is Verdict.PASS

    def last_bit(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        h[-1, -1, -1] = torch.nextafter(h[-1, -1, -1], torch.tensor(INF))
        return h, state

    report = bench.report(last_bit, case)
    assert verdicts(report)[("oracle", "h")] == "FAIL"
    assert report.checks[0].index == (1, T - 1, 7)


def test_exact_cases_keep_their_allowance_under_a_log_form(bench: Any) -> None:
    """No contract that takes logarithms can promise an exact result."""
    case = bench.case("exact_dyadic", form="g")
    inputs = build(case)
    assert not oracle.is_exact(case, inputs, parse_contract(""))
    plain = bench.case("exact_dyadic")
    assert oracle.is_exact(plain, build(plain), parse_contract(""))
    assert not oracle.is_exact(plain, build(plain), parse_contract("log=diff"))
    assert not oracle.is_exact(bench.case(), build(bench.case()), parse_contract(""))


def test_neumann_doublings_are_not_exact() -> None:
    """One key of two, again and again: powers of L pass 2**24 where L^-1 is small."""
    sizes = {"B": 1, "H": 1, "HV": 1, "K": 1, "V": 1, "T": 64}
    case = make_case("delta_rule", sizes, recipe="orthogonal_keys_wrap", seed=1)
    inputs = build(case)
    assert oracle.is_exact(case, inputs, parse_contract("structure=chunk(64)"))
    assert oracle.is_exact(
        case, inputs, parse_contract("structure=chunk(64),inverse=block")
    )
    contract = parse_contract("structure=chunk(64),inverse=neumann")
    assert not oracle.is_exact(case, inputs, contract)
    for inverse in ("substitution", "block", "neumann"):
        kernel = chunk_model("delta_rule", "plain", inverse=inverse)
        assert kernel.contract is not None
        report = check_case(kernel, case, Request(contract=kernel.contract))
        assert report.verdict is Verdict.PASS


def test_operands_of_eight_bits_are_not_exact(bench: Any) -> None:
    """Partial results of exact recipes have up to eight significant bits."""
    contract = parse_contract("operands=storage")
    for dtype, exact in (("bf16", True), ("fp8_e4m3", False), ("fp8_e5m2", False)):
        case = bench.case("exact_dyadic", dtype=dtype)
        assert oracle.is_exact(case, build(case), contract) is exact
        assert oracle.is_exact(case, build(case), parse_contract(""))


DECAYS = {
    "zero": 0.0,
    "negative": -0.9,
    "minus_one": -1.0,
    "above_one": 1.5,
    "tiny": 1e-38,
    "subnormal": 1e-44,
    "huge": 1e30,
    "infinite": INF,
    "minus_infinite": -INF,
    "nan": NAN,
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_no_decay_makes_a_right_kernel_red(
    bench: Any, decay: float, dtype: str
) -> None:
    """Zero, negative, growing, infinite or no number: judged or excused, never red."""
    a = np.full((2, 40, 3), 0.5)
    a[:, ::3, 0] = decay
    a[:, 20:, 1] = decay
    a = round_array(format_named(dtype), a)
    b = round_array(format_named(dtype), random((2, 40, 3)))
    report = bench.given(bench.scan, dtype=dtype, a=a, b=b)
    assert report.verdict not in RED
    if np.isfinite(decay) and abs(decay) < 2:
        assert report.verdict is Verdict.PASS


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_no_decay_hides_a_fault_elsewhere(bench: Any, decay: float) -> None:
    """What one lane holds excuses nothing in another."""
    a, b = np.full((2, 40, 3), 0.5), random((2, 40, 3))
    a[:, 20:, 0] = np.float32(decay)

    def faulty(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        h[1, 30, 2] *= 1.001
        return h, state

    report = bench.given(faulty, a=a, b=b)
    assert report.verdict is Verdict.FAIL
    assert report.checks[0].index == (1, 30, 2)


@pytest.mark.parametrize(
    ("decay", "change"),
    [
        (0.0, lambda a: a + 1e-3),
        (-0.9, torch.abs),
        (1.5, lambda a: a.clamp(max=1.0)),
        (1e-38, lambda a: torch.where(a.abs() < 1e-30, 1e-6, a)),
    ],
    ids=["zero", "negative", "above_one", "tiny"],
)
def test_decays_that_are_mistreated_are_red(
    bench: Any, decay: float, change: Any
) -> None:
    """Clamping, taking magnitudes or offsets is seen on the decays it changes."""
    a, b = np.full((1, 40, 2), 0.5), random((1, 40, 2))
    a[:, ::4] = np.float32(decay)
    report = bench.given(lambda a, b: bench.scan(change(a), b), a=a, b=b)
    assert report.verdict is Verdict.FAIL


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("place", ["b", "initial_state"])
def test_inputs_that_are_no_numbers_are_not_red(
    bench: Any, place: str, value: float
) -> None:
    """An infinite or missing drive leaves the tokens before and other lanes judged."""
    tensors = {
        "a": np.full((1, 9, 2), 0.5),
        "b": random((1, 9, 2)),
        "initial_state": random((1, 2)),
    }
    tensors[place][(0, 4, 0) if place == "b" else (0, 0)] = value
    report = bench.given(bench.scan, **tensors)
    assert report.verdict not in RED
    assert not report.metrics["h"].uncertified[0, :, 1].any()

    def faulty(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return h * torch.tensor([1.0, 1.001]), state

    assert bench.given(faulty, **tensors).verdict is Verdict.FAIL


def test_overflow_that_is_right_passes(bench: Any) -> None:
    """A sum beyond the largest value is infinite; one of the wrong sign is wrong."""
    a = np.ones((1, 4, 1))
    b = np.full((1, 4, 1), np.float32(3e38)).astype(float)
    assert bench.given(bench.scan, a=a, b=b).verdict not in RED

    def upside_down(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        return torch.where(h.isinf(), h, -h), state

    assert bench.given(upside_down, a=a, b=b).verdict is Verdict.FAIL


def test_lost_products_are_range_not_pass(bench: Any) -> None:
    """What underflows and grows back is excused and counted apart, not passed."""
    a = np.full((1, 80, 1), 2.0**-8)
    a[:, 40:] = 2.0**8
    tensors = {"a": a, "b": np.zeros((1, 80, 1)), "initial_state": np.ones((1, 1))}
    report = bench.given(bench.scan, **tensors)
    assert report.truth.outputs["final_state"].hi == 1.0
    assert report.outcome.outputs["final_state"] == 0.0
    assert verdicts(report) == {
        ("oracle", "h"): "RANGE",
        ("oracle", "final_state"): "RANGE",
    }
    assert "underflow" in report.checks[0].reason

    def zeros(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        return 0 * a, 0 * initial_state

    assert bench.given(zeros, **tensors).verdict is Verdict.FAIL


class Truncated:
    """A scan in fp32 that rounds every operation towards zero."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench

    def __call__(
        self, a: Tensor, b: Tensor, initial_state: Tensor | None = None
    ) -> Any:
        wide_a, wide_b = a.double(), b.double()
        state = torch.zeros(b.shape[0], b.shape[2], dtype=torch.float64)
        if initial_state is not None:
            state = initial_state.double()
        rows = []
        for decay, drive in zip(wide_a.unbind(1), wide_b.unbind(1), strict=True):
            state = self.cut(self.cut(decay * state) + drive)
            rows.append(state)
        return torch.stack(rows, 1).float(), state.float()

    def cut(self, x: Tensor) -> Tensor:
        """The next fp32 value towards zero."""
        near = x.float()
        beyond = near.double().abs() > x.abs()
        return torch.where(beyond, torch.nextafter(near, 0 * near), near).double()


def test_truncation_is_suspect(bench: Any) -> None:
    """Roundings in one direction stay within the sound budget, not the probable one."""
    case = bench.case("gaussian_slow", B=1, T=1025, D=16)
    assert bench.report(bench.scan, case).verdict is Verdict.PASS
    report = bench.report(Truncated(bench), case)
    assert report.verdict is Verdict.SUSPECT
    assert max(c.rho or 0.0 for c in report.checks) > 2.0


@pytest.mark.parametrize(
    ("recipe", "D", "judged"),
    [
        ("gaussian_slow", 16, True),
        ("mixed_time_scales", 16, True),
        ("gaussian_slow", 15, False),
        ("unit_decay", 16, False),
        ("decay_near_one", 32, False),
    ],
)
def test_rho_judges_marked_recipes_with_enough_chains(
    bench: Any, recipe: str, D: int, judged: bool
) -> None:
    """rho is computed only where its premises hold."""
    report = bench.report(bench.scan, bench.case(recipe, B=1, T=65, D=D))
    assert all((check.rho is not None) is judged for check in report.checks)
    assert report.verdict is Verdict.PASS


def test_what_cannot_be_certified_is_said(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that is not known closely enough passes and fails nothing."""
    exactly = oracle.certify

    def vaguely(*arguments: Any, **options: Any) -> Truth:
        truth = exactly(*arguments, **options)
        allowance = arguments[4]
        return Truth(
            outputs={
                name: replace(r, radius=r.radius + 0.01 * allowance[name])
                for name, r in truth.outputs.items()
            },
            gradients={},
        )

    monkeypatch.setattr(oracle, "certify", vaguely)
    assert bench.report(bench.scan, bench.case()).verdict is Verdict.UNCERTIFIED
    wrong = bench.report(lambda a, b: bench.scan(1.01 * a, b), bench.case())
    assert wrong.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("contract", "verdict"),
    [
        ("", "FAIL"),
        ("compute=tf32", "FAIL"),
        ("state=bf16,state_every=64", "FAIL"),
        ("compute=bf16", "PASS"),
        ("compute=storage", "FAIL"),
    ],
)
def test_the_contract_decides(bench: Any, contract: str, verdict: str) -> None:
    """A scan in bf16 on fp32 tensors passes under the contract that says so."""
    kernel = model("linear_scan", "sequential", "plain", compute="bf16")
    case = bench.case("decay_near_zero", T=33)

    def on_fp32(a: Tensor, b: Tensor) -> Any:
        h, state = kernel.call(a=a.bfloat16(), b=b.bfloat16())
        return h.float(), state

    assert bench.report(on_fp32, case, contract).verdict == verdict


def test_first_wrong_index_is_that_of_the_earliest_token(bench: Any) -> None:
    """The index of a check points at the first wrong token, not the worst."""

    def faulty(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        h[0, 100, 3] *= 3
        h[1, 50, 5] *= 1.001
        return h, state

    check = bench.report(faulty, bench.case()).checks[0]
    assert (check.tensor, check.index) == ("h", (1, 50, 5))


def test_a_kernel_that_raises_has_a_report(bench: Any) -> None:
    """No output, but the truth and the budget are there for the finding."""

    def raises(a: Tensor, b: Tensor) -> Any:
        raise RuntimeError("no such shape")

    report = bench.report(raises, bench.case(), bars="dense")
    assert report.verdict is Verdict.ERROR
    assert [c.check for c in report.checks] == ["call"]
    assert report.metrics == report.gradient_metrics == {}
    assert set(report.truth.outputs) == {"h", "final_state"}


def test_one_run_compares_nothing(bench: Any) -> None:
    """With one call there is no repetition to differ from."""
    calls = []

    def counting(a: Tensor, b: Tensor) -> Any:
        calls.append(1)
        return bench.scan(a * (1 + 1e-6 * len(calls)), b)

    kernel: Kernel = bench.kernel(counting)
    report = check_case(kernel, bench.case(), bench.request(runs=1))
    assert len(calls) == 1
    assert "repeat" not in {c.check for c in report.checks}
    report = check_case(kernel, bench.case(), bench.request())
    assert len(calls) == 4
    assert "repeat" in {c.check for c in report.checks}
