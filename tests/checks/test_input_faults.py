"""Faults in what is computed with are told by what they make of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.case import make_case
from scancheck.checks.hypotheses import explain
from scancheck.checks.oracle import CaseReport, Request, check_inputs
from scancheck.contract import parse_contract
from scancheck.formats import FP32, round_array
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.short_formats import rounded, rounded_to_tf32
from scancheck.kernels.models.by_sequence import taking_sequences
from scancheck.recipes.build import build
from scancheck.recipes.inputs import Inputs

Fault = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def shifted(a: Tensor) -> Tensor:
    """Each decay at the token after its own."""
    return torch.cat([torch.ones_like(a[:, :1]), a[:, :-1]], 1)


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "bf16 decay": (
        lambda a, b, s: (rounded(a, torch.bfloat16), b, s),
        "short_decay",
        "bf16",
    ),
    "tf32 decay": (lambda a, b, s: (rounded_to_tf32(a), b, s), "short_decay", "fp16"),
    "bf16 drive": (
        lambda a, b, s: (a, rounded(b, torch.bfloat16), s),
        "short_input",
        "b is rounded from fp32 to bf16",
    ),
    "fp16 state": (
        lambda a, b, s: (a, b, rounded(s, torch.float16)),
        "short_input",
        "initial_state",
    ),
    "gate before": (lambda a, b, s: (shifted(a), b, s), "gate_shift", "token before"),
    "first row": (
        lambda a, b, s: (a[:1].expand_as(a), b, s),
        "batch_rows",
        "a of the first",
    ),
    "next row": (
        lambda a, b, s: (a, b.roll(-1, 0), s),
        "batch_rows",
        "b of the next",
    ),
    "no state": (lambda a, b, s: (a, b, 0 * s), "initial_state", "zero initial state"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_wrong_inputs_are_told_apart(bench: Any, name: str, seed: int) -> None:
    """The tensor and what was done to it are named, on ordinary data."""
    fault, cause, words = FAULTS[name]

    def call(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        return bench.scan(*fault(a, b, initial_state))

    case = bench.case(B=3, T=131, seed=seed, initial_state=True)
    found = explain(bench.report(call, case), [16])
    assert found is not None
    assert (found.cause, found.chunk) == (cause, None)
    assert words in found.detail


@pytest.mark.parametrize(
    ("recipe", "change", "cause"),
    [
        ("negative_decay", lambda a: a.abs(), "decay_sign"),
        ("growth", lambda a: a.clamp(max=1.0), "decay_clamped"),
    ],
)
def test_decays_of_another_range(
    bench: Any, recipe: str, change: Callable[[Tensor], Tensor], cause: str
) -> None:
    """A lost sign and a clamp are told where decays are negative, or above 1."""
    case = bench.case(recipe, T=131, initial_state=True)
    call = lambda a, b, initial_state: bench.scan(change(a), b, initial_state)  # noqa: E731
    found = explain(bench.report(call, case), [16])
    assert found is not None
    assert found.cause == cause


def test_a_final_state_without_the_last_token(bench: Any) -> None:
    """A right sequence beside the state before the last token says what is missing."""

    def call(a: Tensor, b: Tensor) -> Any:
        return bench.scan(a, b)[0], bench.scan(a[:, :-1], b[:, :-1])[1]

    found = explain(bench.report(call, bench.case(T=69)), [16])
    assert found is not None
    assert found.cause == "last_token"


@pytest.mark.parametrize(
    "options",
    [
        {"cu_seqlens": (0, 7, 7, 8, 69)},
        {"cu_seqlens": (0, 7, 7, 8, 69), "reverse": True},
        {"lengths": (69, 0)},
        {"lengths": (69, 12), "pad_left": True},
        {"lengths": (12, 69), "reverse": True},
    ],
)
def test_sequences_of_a_call_lose_their_own_last_tokens(
    bench: Any, options: dict[str, Any]
) -> None:
    """Each in its own place, also where it fills its row, or where there is none."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        h, _ = bench.scan(a, b, initial_state)
        return h, bench.scan(a[:, :-1], b[:, :-1], initial_state)[1]

    case = bench.case(T=69, B=2 if "lengths" in options else 1, **options)
    several = taking_sequences("linear_scan", call)
    found = explain(bench.report(several, case), [16])
    assert found is not None
    assert found.cause == "last_token"


@pytest.mark.parametrize("T", [5, 69])
@pytest.mark.parametrize("cause", ["padding", "row_overrun"])
def test_rows_behind_the_last_chunk(bench: Any, cause: str, T: int) -> None:
    """Zeros, or the next row, taken for tokens: told apart, and from a lost token."""
    missing = -T % 16

    def behind(x: Tensor) -> Tensor:
        tail = x.roll(-1, 0) if cause == "row_overrun" else torch.zeros_like(x)
        return torch.cat([x, tail[:, :missing]], 1)

    def call(a: Tensor, b: Tensor) -> Any:
        return bench.scan(a, b)[0], bench.scan(behind(a), behind(b))[1]

    found = explain(bench.report(call, bench.case(T=T)), [16])
    assert found is not None
    assert found.cause == cause


def mlstm(log_gate: Callable[[Tensor], Tensor], **x: Tensor) -> tuple[Tensor, ...]:
    """The matrix LSTM token by token in fp32, from zero, with a log gate of f."""
    batch, steps, heads, width = x["q"].shape
    memory = x["v"].new_zeros(batch, heads, width, x["v"].shape[3])
    normalizer, m = memory[..., 0], x["f"].new_zeros(batch, heads)
    outputs = []
    for t in range(steps):
        q, k, v, i, f = (x[name][:, t] for name in "qkvif")
        kept = log_gate(f) + m
        m = torch.maximum(kept, i)
        decay, gain = (kept - m).exp()[..., None], (i - m).exp()[..., None]
        outer = (gain * k)[..., None] * v[..., None, :]
        memory, normalizer = (
            decay[..., None] * memory + outer,
            decay * normalizer + gain * k,
        )
        q = q * width**-0.5
        read = torch.maximum((normalizer * q).sum(-1).abs(), (-m).exp()) + 1e-6
        outputs.append((memory * q[..., None]).sum(-2) / read[..., None])
    return torch.stack(outputs, 1), memory, normalizer, m


def test_a_log_of_a_sigmoid() -> None:
    """Gates near one decide the maximum: what their logs lose is told by its name."""
    sizes = {"B": 2, "T": 40, "H": 3, "K": 4, "V": 5}
    case = make_case("mlstm", sizes, dtype="fp32", recipe="gaussian_slow", seed=1)
    tensors = dict(build(case).tensors)
    for gate, by in (("f", 6.0), ("i", -30.0)):
        tensors[gate] = round_array(FP32, tensors[gate] + by)
    inputs = Inputs(tensors=tensors, switches={})
    request = Request(contract=parse_contract("structure=sequential"))

    def report_of(log_gate: Callable[[Tensor], Tensor]) -> CaseReport:
        def call(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
            return mlstm(log_gate, q=q, k=k, v=v, i=i, f=f)

        kernel = Kernel(name="tried", op="mlstm", call=call)
        return check_inputs(kernel, case, inputs, request)

    right = report_of(torch.nn.functional.logsigmoid)
    assert not any(m.wrong.any() for m in right.metrics.values())
    found = explain(report_of(lambda f: f.sigmoid().log()), [16])
    assert found is not None
    assert found.cause == "log_of_sigmoid"
