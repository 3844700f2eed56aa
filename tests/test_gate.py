"""`verify` from end to end, on small kernels of every behaviour that has a rule."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.errors import CaseInvalid, DeviceLost, KernelUnavailable
from scancheck.gate import Result, verify
from scancheck.kernel import Kernel
from scancheck.record import to_json
from scancheck.runner import execute

Outputs = tuple[Tensor, Tensor]


def scanned(a: Tensor, b: Tensor, state: Tensor | None) -> Outputs:
    """The scan in the tensors' own format, or fp32 for shorter ones."""
    wide = torch.promote_types(a.dtype, torch.float32)
    decays, drives = a.to(wide), b.to(wide)
    if state is None:
        state = decays.new_zeros(b.shape[0], b.shape[2])
    rows = [b.to(wide)[:, :0]]
    for decay, drive in zip(decays.unbind(1), drives.unbind(1), strict=True):
        state = decay * state + drive
        rows.append(state[:, None])
    return torch.cat(rows, 1).to(b.dtype), state.clone()


def right(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Outputs:
    """A correct kernel."""
    return scanned(a, b, initial_state)


def judged(call: Callable[..., Any], **options: Any) -> Result:
    """The result of the quick profile."""
    return verify(call, op="linear_scan", **options)


def from_cuda(a: Tensor, b: Tensor) -> Tensor:
    """A kernel of a GPU alone, as it complains of tensors on the CPU."""
    raise RuntimeError("Expected u.is_cuda() to be true, but got false.")


def causes(result: Result) -> set[str]:
    """The likely causes that a run named."""
    return {finding.cause for finding in result.record.findings}


def at_most(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Keeps the cases of at most so many tokens."""
    from scancheck.gate import loop

    every = loop.case_list
    monkeypatch.setattr(
        loop,
        "case_list",
        lambda *a, **k: [c for c in every(*a, **k) if dict(c.sizes)["T"] <= steps],
    )


@pytest.fixture
def short_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps short cases, where what a test is about needs no long one."""
    at_most(monkeypatch, 65)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
def test_a_right_kernel_passes(dtype: str) -> None:
    """Verdict PASS and exit code 0, gradients included, with every part seen."""
    result = judged(right, dtypes=[dtype], gradients=True)
    record = result.record
    assert (result.verdict, result.exit_code, bool(result)) == ("PASS", 0, True)
    assert record.findings == ()
    assert record.unseen == ()
    assert record.not_judged == ()
    assert {"da", "db", "dinitial_state", "h", "final_state"} == set(record.worst_ratio)
    assert sum(record.counts.values()) > 30
    assert set(record.counts) <= {"PASS", "RANGE"}
    assert (record.contract, record.contract_declared) == ("default", False)
    assert "PASS" in result.explain()


@pytest.mark.usefixtures("short_cases")
def test_several_dtypes_are_one_run() -> None:
    """Each dtype adds its cases; one verdict is given for all."""
    one = judged(right, dtypes=["fp32"]).record
    two = judged(right, dtypes=["fp32", "bf16"]).record
    assert two.dtype == "fp32,bf16"
    assert sum(two.counts.values()) > 1.5 * sum(one.counts.values())


def test_a_lone_tensor_is_the_first_output() -> None:
    """What is not returned is listed and not judged, the rest is."""
    result = judged(lambda a, b, initial_state=None: right(a, b, initial_state)[0])
    assert result.verdict == "PASS"
    assert result.record.not_judged == (
        "output final_state: not returned by the kernel",
    )
    assert set(result.record.worst_ratio) == {"h"}
    assert "output final_state" not in result.record.seen


def test_none_stands_for_an_output_that_is_not_returned() -> None:
    """A tuple may leave an output out with None."""
    result = judged(lambda a, b: (None, right(a, b)[1]))
    assert result.verdict == "PASS"
    assert "output h: not returned by the kernel" in result.record.not_judged


def test_a_parameter_that_is_lacking_is_listed() -> None:
    """A kernel without an initial state passes, and the record says so."""
    result = judged(lambda a, b: right(a, b))
    assert result.verdict == "PASS"
    assert result.record.not_judged == (
        "input initial_state: not a parameter of the kernel",
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        pytest.param(lambda a, b: right(a, b), "initial_state", id="input"),
        pytest.param(lambda a, b: right(a, b), "g", id="form"),
        pytest.param(lambda a, b: right(a, b)[0], "final_state", id="output"),
    ],
)
def test_what_is_required_and_lacking_is_red(
    call: Callable[..., Any], name: str
) -> None:
    """`require` makes an input or output that is not judged an error with a finding."""
    assert judged(call).exit_code == 0
    result = judged(call, require=[name])
    assert (result.verdict, result.exit_code) == ("ERROR", 1)
    (finding,) = result.record.findings
    assert (finding.check, finding.verdict) == ("require", "ERROR")
    assert name in finding.reason
    assert name in result.explain()


def test_what_is_required_and_there_changes_nothing() -> None:
    """Demands that the kernel meets leave the verdict as it is."""
    names = ["a", "b", "initial_state", "h", "final_state", "empty"]
    assert judged(right, require=names).verdict == "PASS"


def test_cases_too_long_for_a_slow_kernel_are_listed() -> None:
    """They are not given to it, and their number is told."""
    longest = []

    def slow(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Outputs:
        longest.append(a.shape[1])
        return right(a, b, initial_state)

    kernel = Kernel(name="slow", op="linear_scan", call=slow, longest=100)
    result = verify(kernel)
    assert result.verdict == "PASS"
    assert 50 < max(longest) <= 100
    (note,) = (n for n in result.record.not_judged if "longer than" in n)
    assert re.fullmatch(r"\d+ of \d+ fp32 cases: longer than 100 tokens", note)


def test_kwargs_take_everything() -> None:
    """A kernel with **kwargs is given every input, and judged in both forms."""
    given: set[str] = set()

    def scan(**tensors: Tensor) -> Outputs:
        given.update(tensors)
        a = torch.exp(tensors["g"]) if "g" in tensors else tensors["a"]
        return right(a, tensors["b"], tensors.get("initial_state"))

    result = judged(scan)
    assert result.verdict == "PASS"
    assert given == {"a", "g", "b", "initial_state"}
    assert result.record.not_judged == ()
    assert {"input a", "input g"} <= set(result.record.seen)


def test_both_forms_are_judged_where_both_are_taken() -> None:
    """A fault in one form alone is found."""

    def scan(b: Tensor, a: Tensor | None = None, g: Tensor | None = None) -> Outputs:
        return right(torch.exp(0.999 * g) if g is not None else a, b)  # type: ignore[arg-type]

    result = judged(scan)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    failing = {dict(f.case["options"])["form"] for f in result.record.findings}
    assert failing == {"g"}


def stops_without_tokens(a: Tensor, b: Tensor) -> Outputs:
    """Right, but raises for empty sequences and batches."""
    if not b.numel():
        raise ValueError("nothing to scan")
    return right(a, b)


def test_empty_sizes_are_listed_where_the_kernel_raises() -> None:
    """T = 0 and B = 0 are no demand on a stranger's kernel."""
    result = judged(stops_without_tokens, gradients=True)
    assert result.verdict == "PASS"
    empty = [note for note in result.record.not_judged if "empty" in note]
    assert len(empty) == 2
    assert all("the kernel raises" in note for note in empty)


@pytest.mark.usefixtures("short_cases")
def test_empty_sizes_are_red_where_they_are_required() -> None:
    """`require=["empty"]` makes the same kernel an error."""
    result = judged(stops_without_tokens, require=["empty"])
    assert (result.verdict, result.exit_code) == ("ERROR", 1)
    assert "nothing to scan" in result.record.findings[0].reason


@pytest.mark.usefixtures("short_cases")
def test_empty_sizes_are_red_where_they_are_promised() -> None:
    """A kernel that promises them is held to it."""
    kernel = Kernel(
        name="promised", op="linear_scan", call=stops_without_tokens, edge_sizes=True
    )
    assert verify(kernel).verdict == "ERROR"


@pytest.mark.usefixtures("short_cases")
def test_empty_sizes_are_judged_where_the_kernel_does_not_raise() -> None:
    """A wrong shape for T = 0 is an error, as for any other size."""

    def scan(a: Tensor, b: Tensor) -> Outputs:
        h, state = right(a, b)
        return (b.new_zeros(1, 1, 1) if not b.numel() else h), state

    result = judged(scan)
    assert (result.verdict, result.exit_code) == ("ERROR", 1)
    assert "shape" in result.record.findings[0].reason


def test_not_differentiable_fails_under_gradients_alone() -> None:
    """Gradients are a demand, but only where they are asked for."""

    def scan(a: Tensor, b: Tensor) -> Outputs:
        with torch.no_grad():
            return right(a, b)

    assert judged(scan).verdict == "PASS"
    result = judged(scan, gradients=True)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert "grad_fn" in result.record.findings[0].reason


class BackwardRaises(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> Tensor:
        """Not written yet."""
        raise NotImplementedError("no backward yet")


@pytest.mark.usefixtures("short_cases")
def test_a_backward_that_raises_fails() -> None:
    """The message of the exception is the reason."""
    result = judged(
        lambda a, b: tuple(BackwardRaises.apply(x) for x in right(a, b)), gradients=True
    )
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert "no backward yet" in result.record.findings[0].reason


def test_a_gradient_of_none_counts_as_zero() -> None:
    """An input that the graph does not reach has a wrong gradient, not an error."""
    result = judged(lambda a, b: right(a.detach(), b), gradients=True)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert {f.tensor for f in result.record.findings} == {"a"}
    assert causes(result) == {"gradient_missing"}


def test_a_detached_final_state_is_caught() -> None:
    """An output without a graph contributes zero, which the final state's must not."""

    def scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Outputs:
        h, state = right(a, b, initial_state)
        return h, state.detach()

    assert judged(scan).verdict == "PASS"
    result = judged(scan, gradients=True)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert causes(result) == {"state_gradient_dropped"}


def test_a_wrong_gradient_alone_is_red() -> None:
    """Right outputs do not excuse a gradient that is two per cent off."""

    class Skewed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *bars: Tensor) -> Tensor:
            return 1.02 * bars[0]

    result = judged(lambda a, b: right(a, Skewed.apply(b)), gradients=True)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert {f.tensor for f in result.record.findings} == {"b"}
    assert {f.check for f in result.record.findings} == {"gradient"}


def fails(*_: Tensor) -> Outputs:
    """Raises."""
    raise RuntimeError("no such shape")


def stops(*_: Tensor) -> Outputs:
    """Leaves the process."""
    raise SystemExit(3)


@pytest.mark.usefixtures("short_cases")
@pytest.mark.parametrize(
    ("call", "verdict", "words"),
    [
        (lambda a, b: fails(a, b), "ERROR", "RuntimeError: no such shape"),
        (lambda a, b: stops(a, b), "ERROR", "SystemExit"),
        (lambda a, b: right(a, b)[0][:, :-1], "ERROR", "expected shape"),
        (lambda a, b: right(a, b)[0].mT, "ERROR", "expected shape"),
        (lambda a, b: right(a, b)[0].double(), "ERROR", "dtype torch.float32.*float64"),
        (lambda a, b: right(a, b)[0].numpy(), "ERROR", "torch.Tensor; got numpy"),
        (lambda a, b: 1.0, "ERROR", "torch.Tensor; got builtins.float"),
        (lambda a, b: None, "ERROR", "no output"),
        (lambda a, b: right(a, b)[0].to("meta"), "ERROR", "expected it on cpu.*meta"),
        (lambda a, b: (right(a, b)[0], right(a, b)[1].half()), "ERROR", "final_state"),
        (lambda a, b: right(a, b)[0] * torch.nan, "NONFINITE", "NaN"),
        (lambda a, b: right(a, b)[0] + torch.inf, "NONFINITE", "infinite"),
        (lambda a, b: right(a, b)[0] * (1 + 2e-6), "FAIL", "beyond the budget"),
        (lambda a, b: right(a.mul_(1.0), b.mul_(0.5)), "FAIL", "changed b in place"),
        (lambda a, b: b.view_as(b), "FAIL", "view of b"),
    ],
    ids=[
        "raises",
        "exits",
        "short",
        "transposed",
        "fp64",
        "numpy",
        "float",
        "none",
        "device",
        "state-dtype",
        "nan",
        "infinity",
        "off-by-a-little",
        "in-place",
        "view",
    ],
)
def test_misbehaviour_is_a_verdict(
    call: Callable[..., Any], verdict: str, words: str
) -> None:
    """Whatever a kernel does wrong is red with a reason, never a traceback."""
    result = judged(call)
    assert result.exit_code == 1
    found = [f for f in result.record.findings if f.verdict == verdict]
    assert any(re.search(words, f.reason) for f in found)
    assert "Traceback" not in result.explain()


def test_chance_is_caught_by_repeating() -> None:
    """A kernel whose roundings change from call to call is not deterministic."""

    def scan(a: Tensor, b: Tensor) -> Tensor:
        h = right(a, b)[0]
        return torch.where(torch.rand(h.shape) < 0.5, h, h * (1 + 2.0**-22))

    result = judged(scan)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert "nondeterministic" in causes(result)
    assert "repeat" in {f.check for f in result.record.findings}


def test_more_outputs_than_the_op_has_is_a_usage_error() -> None:
    """A third output cannot be matched to anything."""
    with pytest.raises(CaseInvalid, match=r"at most 2 outputs.*h, final_state.*got 3"):
        judged(lambda a, b: (*right(a, b), a))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"op": "scan"}, "op 'scan' is unknown.*linear_scan"),
        ({"op": None}, "--op is needed.*linear_scan"),
        ({"dtypes": ["fp8"]}, "dtype.*bf16.*fp8"),
        ({"profile": "fast"}, "profile.*quick.*fast"),
        ({"case_limit_s": 0}, "case limit: expected more than 0; got 0"),
        ({"contract": "speed=1"}, "speed.*unknown"),
        ({"contract": "comp=full"}, "contradicts itself"),
        ({"contract": "log=renorm"}, "log=renorm.*expected log gates"),
        ({"contract": "domain=x:0:1"}, "domain.*x.*initial_state"),
        ({"require": ["speed"]}, "--require speed.*initial_state.*empty or range"),
        ({"case_id": "linear_scan-1"}, "--case linear_scan-1: no such case"),
    ],
    ids=str,
)
def test_a_bad_request_is_a_usage_error(options: dict[str, Any], words: str) -> None:
    """One message names the argument, what may stand there, and what stood there."""
    with pytest.raises(CaseInvalid) as caught:
        verify(right, **({"op": "linear_scan"} | options))
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)


def test_an_unavailable_kernel_says_why() -> None:
    """A kernel that cannot run here is not judged."""
    kernel = Kernel(
        name="far", op="linear_scan", call=right, unavailable="needs a GPU of its own"
    )
    with pytest.raises(KernelUnavailable, match=r"far.*needs a GPU of its own"):
        verify(kernel)


@pytest.mark.parametrize("calls", [0, 1, 30])
def test_an_interruption_keeps_the_record(tmp_path: Path, calls: int) -> None:
    """Ctrl-C inside a kernel gives exit code 4 and a whole JSON file."""
    left = [calls]

    def scan(a: Tensor, b: Tensor) -> Outputs:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return right(a, b)

    path = tmp_path / "run.json"
    result = judged(scan, json_path=path)
    assert (result.verdict, result.exit_code, bool(result)) == ("INTERRUPTED", 4, False)
    data = json.loads(path.read_text())
    assert data == to_json(result.record)
    assert (data["verdict"], data["exit_code"]) == ("INTERRUPTED", 4)
    assert result.explain()


@pytest.mark.usefixtures("short_cases")
def test_an_interruption_of_the_diagnosis_keeps_the_record(tmp_path: Path) -> None:
    """Ctrl-C while a failure is looked into loses no more than the findings."""

    def scan(a: Tensor, b: Tensor) -> Outputs:
        if a.dtype == torch.float64:  # the diagnosis tries a wider format
            raise KeyboardInterrupt
        return right(0.99 * a, b)

    path = tmp_path / "run.json"
    result = judged(scan, json_path=path)
    assert (result.verdict, result.exit_code) == ("INTERRUPTED", 4)
    assert json.loads(path.read_text())["counts"]["FAIL"] > 5


@pytest.mark.usefixtures("short_cases")
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_json_holds_the_record(tmp_path: Path, factor: float) -> None:
    """Passed or failed, the file is the record and its numbers are finite or null."""
    path = tmp_path / "run.json"
    result = judged(lambda a, b: right(factor * a, b), json_path=path)
    text = path.read_text()
    assert json.loads(text) == to_json(result.record)
    assert not re.search(r"\b(NaN|Infinity)\b", text)
    assert bool(json.loads(text)["findings"]) == (factor != 1.0)


def test_a_finding_is_replayed_alone() -> None:
    """The case of a finding, judged by itself, gives the same finding again."""

    def scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Outputs:
        h, state = right(a, b, initial_state)
        h[:, 64:] = h[:, 64:] * 1.001
        return h, state

    whole = judged(scan, seed=5).record
    first = whole.findings[0]
    assert f"--case {first.case_id}" in first.replay
    assert "--seed 5" in first.replay
    alone = judged(scan, seed=5, case_id=first.case_id).record
    assert alone.exit_code == 1
    assert sum(alone.counts.values()) < sum(whole.counts.values())
    again = next(f for f in alone.findings if f.tensor == first.tensor)
    assert again.case_id == first.case_id
    assert again.first_wrong_index == first.first_wrong_index
    assert again.ratio == first.ratio
    assert again.values == first.values


@pytest.mark.usefixtures("short_cases")
def test_a_passing_case_that_is_replayed_is_not_called_blind() -> None:
    """One case cannot show every part, and is not asked to."""
    ids: list[str] = []
    judged(right, on_case=lambda done, total, report: ids.append(report.case.id))
    alone = judged(right, case_id=ids[0])
    assert (alone.verdict, alone.exit_code) == ("PASS", 0)


@pytest.mark.usefixtures("short_cases")
def test_progress_counts_every_case() -> None:
    """`on_case` hears of each case once, and of their number."""
    heard: list[tuple[int, int]] = []
    judged(right, on_case=lambda done, total, report: heard.append((done, total)))
    total = heard[0][1]
    assert heard == [(done, total) for done in range(1, total + 1)]


def test_a_run_that_could_not_see_the_carry_is_blind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one chunk a wrong carry passes: the run says so, with exit code 3."""

    def forgets(a: Tensor, b: Tensor) -> Tensor:
        # Padding adds tokens, but not so many that they reach an edge.
        chunks = zip(a.split(512, 1), b.split(512, 1), strict=True)
        return torch.cat([right(*x)[0] for x in chunks], 1)

    assert judged(forgets).verdict == "FAIL"
    at_most(monkeypatch, 64)
    result = judged(forgets)
    assert (result.verdict, result.exit_code) == ("BLIND", 3)
    assert result.record.unseen == ("carry across a chunk edge",)
    assert "carry across a chunk edge" in result.explain()
    assert result.record.findings == ()


def test_a_run_without_a_case_judges_nothing() -> None:
    """Where the contract's domain leaves no case, nothing passes."""
    result = judged(stops_without_tokens, contract="domain=b:100:200")
    assert (result.verdict, result.exit_code) == ("NOT_JUDGED", 3)
    assert any("domain" in note for note in result.record.not_judged)


def test_a_domain_leaves_other_cases_out() -> None:
    """A kernel that needs decays in (0, 1] passes where it says so."""

    def scan(a: Tensor, b: Tensor) -> Outputs:
        return right(a.abs(), b)

    assert judged(scan).verdict == "FAIL"
    result = judged(scan, contract="domain=a:0:1")
    assert result.verdict == "PASS"
    assert any("domain" in note for note in result.record.not_judged)


def test_range_is_excused_and_counted() -> None:
    """What the declared structure does to the range is amber, red where required."""
    kernel = "model.linear_scan.hillis_steele.plain"
    result = verify(kernel, dtypes=["fp32"])
    assert (result.verdict, result.exit_code) == ("PASS", 0)
    assert result.record.counts["RANGE"] == len(result.record.range_cases) > 0
    strict = verify(kernel, dtypes=["fp32"], require=["range"])
    assert (strict.verdict, strict.exit_code) == ("RANGE", 1)
    assert strict.record.range_cases == result.record.range_cases
    assert "RANGE" in strict.explain()


def test_a_declared_contract_is_used_and_can_be_replaced() -> None:
    """The kernel's own contract counts unless the request gives another."""
    own = "model.linear_scan.sequential.plain.compute_bf16"
    from scancheck.kernels.models.catalog import model

    kernel = model("linear_scan", "sequential", "plain", compute="bf16")
    assert kernel.name == own
    assert verify(kernel).exit_code == 0
    result = verify(kernel, contract="default", dtypes=["bf16"])
    assert (result.verdict, result.record.contract) == ("FAIL", "default")
    assert result.record.contract_declared
    assert "--contract default" in result.record.replay


def test_a_short_computation_is_told_what_it_would_pass_as() -> None:
    """A kernel that computes in bf16 fails, and reads the contract that it meets."""

    def scan(a: Tensor, b: Tensor) -> Outputs:
        def short(x: Tensor) -> Tensor:
            return x.to(torch.bfloat16).to(torch.float32)

        state = b.new_zeros(b.shape[0], b.shape[2])
        rows = [b[:, :0]]
        for decay, drive in zip(a.unbind(1), b.unbind(1), strict=True):
            state = short(short(short(decay) * state) + short(drive))
            rows.append(state[:, None])
        return torch.cat(rows, 1), state.clone()

    result = judged(scan)
    assert result.verdict == "FAIL"
    assert {f.would_pass for f in result.record.findings if f.check == "oracle"} == {
        "compute=bf16"
    }
    assert "compute=bf16" in result.explain()
    assert judged(scan, contract="compute=bf16").verdict == "PASS"


@pytest.mark.usefixtures("short_cases")
def test_seed_and_kernel_name_are_kept() -> None:
    """The record says what was asked, so that it can be asked again."""
    asked: dict[str, Any] = {"seed": 9, "gradients": True, "require": ["h"]}
    record = judged(right, **asked, case_limit_s=90.0).record
    assert record.seed == 9
    assert record.target.endswith(":right")
    for part in ("--seed 9", "--gradients", "--require h", "--op linear_scan"):
        assert part in record.replay
    assert "--case-time 90s" in record.replay
    assert "--case-time" not in judged(right, **asked).record.replay


def test_selective_scan_lists_what_a_kernel_lacks() -> None:
    """Optional inputs and switches of a larger op are listed one by one."""
    from scancheck.kernels.faulty.calling_form import Form, selective_scan

    def bare(u: Any, delta: Any, A: Any, B: Any, C: Any) -> Any:
        given = {"u": u, "delta": delta, "A": A, "B": B, "C": C}
        return selective_scan(Form(), given)[0]

    kernel = replace(Kernel(name="bare", op="selective_scan", call=bare), chunk=64)
    result = verify(kernel, require=["keys=grouped", "keys=constant"])
    assert result.verdict == "PASS"
    lacking = ("D", "delta_bias", "delta_softplus", "initial_state", "z")
    assert result.record.not_judged == (
        *(f"input {name}: not a parameter of the kernel" for name in lacking),
        "output last_state: not returned by the kernel",
    )


def test_a_kernel_of_a_gpu_is_sent_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises on the CPU leads to the option, not to a look at its code."""
    at_most(monkeypatch, 20)
    (finding,) = judged(from_cuda).record.findings
    assert "--device cuda" in finding.advice


def test_a_lost_device_ends_the_run_of_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was judged before is kept, the rest is told; the next run is refused."""
    lost: list[bool] = []
    monkeypatch.setitem(execute.__globals__, "is_lost", lambda device: bool(lost))

    def faults(a: Tensor, b: Tensor) -> Outputs:
        if b.shape[1] > 300:
            lost.append(True)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return right(a, b)

    result = judged(faults)
    record = result.record
    assert record.verdict == "ERROR"
    assert record.counts["PASS"] > 0
    assert record.counts["ERROR"] == 1
    (finding,) = record.findings
    assert finding.cause == "call"
    assert "an illegal memory access" in finding.reason
    assert any("cpu was lost" in note for note in record.not_judged)
    with pytest.raises(DeviceLost, match=r"faults: raised RuntimeError: CUDA error"):
        judged(right)


def test_the_record_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that was asked for, or the kernel's own, and none beside the CPU."""
    at_most(monkeypatch, 20)
    assert judged(right).record.device == "cpu"
    asked = judged(right, device="cpu").record
    assert (asked.device, asked.device_asked) == ("cpu", True)
    assert "--device" not in asked.replay


@pytest.mark.parametrize("when", ["forward", "with gradients", "backward"])
def test_a_device_that_fails_is_an_error_in_every_call(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is not taken for a kernel without gradients, nor for a wrong one."""
    at_most(monkeypatch, 20)

    def no_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB.")

    def call(a: Tensor, b: Tensor) -> Outputs:
        if when == "forward" or (when == "with gradients" and a.requires_grad):
            no_memory()
        outputs = right(a, b)
        if when == "backward" and a.requires_grad:
            outputs[0].register_hook(no_memory)
        return outputs

    record = judged(call, gradients=True).record
    assert record.verdict == "ERROR"
    assert {f.verdict for f in record.findings if f.check == "call"} == {"ERROR"}
    assert all("CUDA out of memory" in f.reason for f in record.findings)
