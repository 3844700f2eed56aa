"""Faults in what is computed with are told by what they make of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.checks.hypotheses import explain
from scancheck.kernels.faulty.short_formats import rounded, rounded_to_tf32

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
