"""A red check becomes a likely cause, a place, and what the kernel would pass as."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.checks.experiments import (
    WIDER,
    Diagnosis,
    diagnose,
    likely_cause,
    passing_contracts,
    red_checks,
)
from scancheck.checks.oracle import CaseReport, check_case
from scancheck.contract import Contract, parse_contract
from scancheck.diagnosis import CAUSES, Place
from scancheck.verdict import Verdict


def rounded(name: str) -> Any:
    """Rounding of a tensor to a shorter format, in its own."""
    fmt = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    return lambda x: x.to(fmt).to(x.dtype)


def computing_in(name: str) -> Any:
    """A scan whose every operation is rounded to the format, inputs too."""
    short = rounded(name)

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        state = b.new_zeros(b.shape[0], b.shape[2])
        if initial_state is not None:
            state = short(initial_state)
        rows = []
        for decay, drive in zip(a.unbind(1), b.unbind(1), strict=True):
            state = short(short(short(decay) * state) + short(drive))
            rows.append(state)
        return torch.stack(rows, 1), state.clone()

    return call


def keeping_state_in(name: str, every: int = 1) -> Any:
    """A scan in the tensors' format whose state is stored in a shorter one."""
    short = rounded(name)

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        state = b.new_zeros(b.shape[0], b.shape[2])
        if initial_state is not None:
            state = initial_state
        rows = []
        for t, (decay, drive) in enumerate(zip(a.unbind(1), b.unbind(1), strict=True)):
            kept = short(state) if t % every == 0 else state
            state = decay * kept + drive
            rows.append(state)
        return torch.stack(rows, 1), state.clone()

    return call


def told(report: CaseReport, contract: str = "") -> list[str]:
    """The wider contracts that would pass and mean something."""
    found = passing_contracts(report, parse_contract(contract))
    return [text for text, informed in found.items() if informed]


def diagnosis(
    bench: Any,
    call: Any,
    case: Any,
    tensor: str | None = None,
    *,
    bars: str | None = None,
    **facts: Any,
) -> Diagnosis:
    """The diagnosis of the first red check, or that of one tensor."""
    kernel = bench.kernel(call, **facts)
    request = bench.request(gradients=bars is not None)
    report = check_case(kernel, case, request, cotangent_kind=bars)
    check = next(c for c in red_checks(report) if tensor in (None, c.tensor))
    return diagnose(kernel, report, check, request, None)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_short_computation_is_told(bench: Any, name: str, seed: int) -> None:
    """A scan that computes in a shorter format would pass as exactly that."""
    case = bench.case("unit_decay", T=33, seed=seed)
    report = bench.report(computing_in(name), case)
    assert report.verdict is Verdict.FAIL
    assert f"compute={name}" in told(report)
    assert "state=fp16" not in told(report) or name == "fp16"


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_short_state_is_told(bench: Any, name: str) -> None:
    """A scan that keeps its state in a shorter format would pass as exactly that."""
    case = bench.case("decay_near_one", T=33, initial_state=True)
    report = bench.report(keeping_state_in(name), case)
    assert report.verdict is Verdict.FAIL
    assert f"state={name}" in told(report)
    if name == "bf16":
        assert "state=fp16" not in told(report)


def test_narrowest_comes_first() -> None:
    """State formats are tried before computation, and finer ones before coarser."""
    assert WIDER.index("state=bf16") < WIDER.index("compute=bf16")
    assert WIDER.index("compute=tf32") < WIDER.index("compute=bf16")
    full = parse_contract("comp=full,structure=sequential")
    for text in WIDER:
        claim = full if text == "comp=none" else Contract()
        assert parse_contract(text).comp == "none" != claim.comp or (
            parse_contract(text) != claim
        )


def test_a_bug_would_pass_under_nothing(bench: Any) -> None:
    """What is beyond every rounding has no contract that excuses it."""
    report = bench.report(lambda a, b: bench.scan(a.roll(1, 1), b), bench.case(T=33))
    assert passing_contracts(report, Contract()) == {}


def test_a_pass_that_says_nothing_is_marked(bench: Any) -> None:
    """Over long unit decay the budget of bf16 holds anything up to the sum itself."""
    report = bench.report(computing_in("bf16"), bench.case("unit_decay", T=1500, D=1))
    found = passing_contracts(report, Contract())
    assert found["compute=bf16"] is False


def test_the_claim_itself_is_not_tried(bench: Any) -> None:
    """Only contracts that differ from the claim, and fit beside it, are tried."""
    report = bench.report(lambda a, b: bench.scan(1.001 * a, b), bench.case(T=33))
    assert "compute=bf16" not in passing_contracts(
        report, parse_contract("compute=bf16")
    )
    kahan = parse_contract("comp=kahan")
    assert "log=diff" not in passing_contracts(report, kahan)


def test_a_gate_form_may_be_told_of_a_log_form(bench: Any) -> None:
    """Differences of cumulative gates would pass as log=diff, where gates are given."""

    def call(g: Tensor, b: Tensor) -> Any:
        c = torch.cumsum(g.double(), 1).float()
        steps = torch.arange(g.shape[1])
        seen = (steps[:, None] >= steps)[None, :, :, None]
        gap = (c[:, :, None] - c[:, None]).masked_fill(~seen, -torch.inf)
        h = (gap.exp() * b[:, None]).sum(2)
        return h, h[:, -1].clone()

    case = bench.case("mixed_time_scales", T=120, form="g", seed=4)
    report = bench.report(call, case)
    if report.verdict is Verdict.FAIL:
        assert "log=diff" in passing_contracts(report, Contract())
    plain = bench.report(lambda a, b: bench.scan(1.1 * a, b), bench.case(T=33))
    assert "log=diff" not in passing_contracts(plain, Contract())


def test_shrinking_with_a_wider_format(bench: Any) -> None:
    """Rounding shrinks in fp64, a bug does not, and a kernel may not take fp64."""
    case = bench.case(dtype="bf16", T=65)

    def in_storage(a: Tensor, b: Tensor) -> Any:
        state = b.new_zeros(b.shape[0], b.shape[2])
        rows = []
        for decay, drive in zip(a.unbind(1), b.unbind(1), strict=True):
            state = decay * state + drive
            rows.append(state)
        h = torch.stack(rows, 1)
        return h, state.to(torch.promote_types(h.dtype, torch.float32))

    def no_double(a: Tensor, b: Tensor) -> Any:
        assert a.dtype != torch.float64
        return in_storage(a, b)

    assert diagnosis(bench, in_storage, case).shrinks is True
    assert diagnosis(bench, lambda a, b: bench.scan(0.9 * a, b), case).shrinks is False
    assert diagnosis(bench, no_double, case).shrinks is None
    wide = bench.case(dtype="fp64", T=65)
    assert diagnosis(bench, lambda a, b: bench.scan(0.9 * a, b), wide).shrinks is None


def test_an_error_that_follows_the_format_is_rounding(bench: Any) -> None:
    """Rounding beyond the budget in every format is told from a fault of fixed size."""
    case = bench.case("mixed_time_scales", T=120, form="g", seed=4)

    def amplified(g: Tensor, b: Tensor) -> Any:
        c = torch.cumsum(g - 300, 1) + 300 * torch.arange(1, 1 + g.shape[1])[:, None]
        before = torch.cat([torch.zeros_like(g[:, :1]), c[:, :-1]], 1)
        return bench.scan((c - before).exp(), b)

    found = diagnosis(bench, amplified, case)
    assert found.shrinks is True
    fault = diagnosis(bench, lambda g, b: bench.scan(0.999 * g.exp(), b), case)
    assert fault.shrinks is False


def test_a_contract_turns_a_vague_cause_into_rounding(bench: Any) -> None:
    """Where a wider contract passes the whole run, the cause is the shorter format."""
    kernel, request = bench.kernel(computing_in("bf16")), bench.request()
    report = check_case(kernel, bench.case("unit_decay", T=33), request)
    check = next(iter(red_checks(report)))
    vague = diagnose(kernel, report, check, request, None)
    # A scan in bf16 hands out a state with the digits of bf16, and more is not seen.
    assert (vague.cause, vague.would_pass) == ("short_state", None)
    sure = diagnose(kernel, report, check, request, "compute=bf16")
    assert (sure.cause, sure.would_pass) == ("short_compute", "compute=bf16")
    assert "compute=bf16" in sure.reason
    state = diagnose(kernel, report, check, request, "state=bf16")
    assert (state.cause, state.would_pass) == ("short_state", "state=bf16")


def spoil(bench: Any, change: Any) -> Any:
    """A scan whose sequence output is changed."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, state = bench.scan(a, b, initial_state)
        return change(h.clone()), state

    return call


def put(value: float, *index: Any) -> Any:
    """Writes a value at an index."""

    def change(h: Tensor) -> Tensor:
        h[index] = value
        return h

    return change


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda h: h * (1 + 1e-6 * torch.rand(h.shape)), "nondeterministic"),
        (lambda h: never_written(h), "unwritten"),
        (put(torch.nan, 0, 70), "overflow"),
        (put(torch.inf, 0, 70), "overflow"),
        (lambda h: h + 0.5, "unknown"),
        (put(3.0, slice(None), slice(70, 90)), "local"),
        (put(3.0, slice(None), slice(64, None)), "carry"),
        (lambda h: torch.where(in_place_mask(h), h + 0.5, h), "in_place_scan"),
    ],
    ids=[
        "random",
        "unwritten",
        "nan",
        "infinity",
        "offset",
        "local",
        "edge",
        "healing",
    ],
)
def test_patterns_of_outputs(bench: Any, change: Any, cause: str) -> None:
    """What the wrong elements look like decides where no known fault fits."""
    found = diagnosis(bench, spoil(bench, change), bench.case(T=200), "h", chunk=64)
    assert found.cause == cause
    assert CAUSES[cause].text in found.reason
    assert found.advice == CAUSES[cause].advice


def in_place_mask(h: Tensor) -> Tensor:
    """Positions 33 to 36 of every chunk of 64."""
    position = torch.arange(h.shape[1]) % 64
    return ((position > 32) & (position < 37))[None, :, None]


def never_written(h: Tensor) -> Tensor:
    """The tail is what the memory held."""
    return torch.cat([h[:, :150], torch.empty_like(h[:, 150:])], 1)


@pytest.mark.parametrize("chunk", [None, 64])
def test_place_is_that_of_the_first_wrong_token(bench: Any, chunk: int | None) -> None:
    """The diagnosis points at token, chunk and position, found or declared."""
    call = spoil(bench, put(3.0, slice(None), slice(128, None)))
    found = diagnosis(bench, call, bench.case(T=200), "h", chunk=chunk)
    size = chunk or 128
    assert found.place == Place(token=128, chunk=128 // size, position=0, where="carry")


def test_a_final_state_has_no_place_in_time(bench: Any) -> None:
    """A tensor without a time axis has a cause, but no token."""

    def call(a: Tensor, b: Tensor) -> Any:
        h, state = bench.scan(a, b)
        return h, 1.1 * state

    assert diagnosis(bench, call, bench.case(T=33), "final_state").place is None


class Skewed(torch.autograd.Function):
    """The identity with a gradient that is off by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        """A copy."""
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Any:
        """The gradient times the factor."""
        return ctx.factor * bars[0], None


def skew(x: Tensor | None, factor: float = 1.1) -> Any:
    """The tensor, its gradient too large."""
    return None if x is None else Skewed.apply(x, factor)


@pytest.mark.parametrize(
    ("change", "tensor", "cause", "bars"),
    [
        (lambda s, a, b, i: s(skew(a), b, i), "a", "gate_gradient", "dense"),
        (lambda s, a, b, i: s(a, skew(b), i), "b", "gradient", "dense"),
        (
            lambda s, a, b, i: s(a, b, skew(i)),
            "initial_state",
            "initial_state_gradient",
            "dense",
        ),
        (
            lambda s, a, b, i: (s(a, b, i)[0], s(a, b, i)[1].detach()),
            "b",
            "state_gradient_dropped",
            "dense",
        ),
        (
            lambda s, a, b, i: (s(a, b, i)[0], s(a, b, i)[1].detach()),
            "b",
            "state_gradient_dropped",
            "final_state",
        ),
        (lambda s, a, b, i: s(0.9 * a, b, i), "b", "gradient_follows", "dense"),
        (lambda s, a, b, i: s(skew(a), skew(b), i), "a", "gradient", "one_token"),
    ],
    ids=["gate", "drive", "state", "dropped", "dropped-alone", "follows", "both"],
)
def test_causes_of_wrong_gradients(
    bench: Any, change: Any, tensor: str, cause: str, bars: str
) -> None:
    """Which gradients are wrong together, under which cotangent, tells the cause."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        return change(bench.scan, a, b, initial_state)

    kernel, request = bench.kernel(call), bench.request(gradients=True)
    case = bench.case(T=65, initial_state=True)
    report = check_case(kernel, case, request, cotangent_kind=bars)
    check = next(
        c for c in red_checks(report) if (c.check, c.tensor) == ("gradient", tensor)
    )
    assert likely_cause(kernel, report, check)[0] == cause


def raises(a: Tensor, b: Tensor) -> Any:
    """Raises."""
    raise RuntimeError("no such shape")


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (raises, "call"),
        (lambda a, b: b.double(), "call"),
        (lambda a, b: b.mul_(2.0).clone(), "input_changed"),
        (lambda a, b: b, "input_changed"),
    ],
    ids=["raises", "dtype", "in-place", "view"],
)
def test_causes_of_bad_calls(bench: Any, call: Any, cause: str) -> None:
    """What went wrong about the call itself is told apart from the numbers."""
    found = diagnosis(bench, call, bench.case(T=33))
    assert (found.cause, found.place, found.would_pass) == (cause, None, None)
