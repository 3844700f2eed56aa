"""BLIND: a part is seen exactly where taking it away moves a judged element."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from scancheck.checks.influence import CARRY, TOKENS, parts_of, seen_parts
from scancheck.checks.oracle import CaseReport
from scancheck.contract import parse_contract
from scancheck.ops import OPS

LINEAR = OPS["linear_scan"]
FORWARD = (
    CARRY,
    *TOKENS,
    "input a",
    "input b",
    "input initial_state",
    "output h",
    "output final_state",
)


def values(seed: int = 0, *shape: int) -> Any:
    """Normal values that fp32 holds."""
    drawn = np.random.default_rng(seed).normal(size=shape)
    return drawn.astype(np.float32).astype(float)


def ordinary(T: int = 130, decay: float = 0.99) -> dict[str, Any]:
    """Tensors on which every part shows."""
    return {
        "a": np.full((1, T, 2), np.float32(decay)).astype(float),
        "b": values(1, 1, T, 2),
        "initial_state": 8 * values(2, 1, 2),
    }


def seen(
    bench: Any, tensors: dict[str, Any], call: Any = None, **facts: Any
) -> set[str]:
    """The parts that a correct kernel's report on these tensors shows."""
    report: CaseReport = bench.given(call or bench.scan, **facts, **tensors)
    return seen_parts(report, FORWARD)


def test_parts_of_a_kernel_are_what_it_takes_and_returns() -> None:
    """Nothing is demanded of a run that the kernel cannot show."""
    assert parts_of(LINEAR, {"a", "b"}, ["h"], False) == (
        "carry across a chunk edge",
        "first token",
        "last token",
        "input a",
        "input b",
        "output h",
    )
    everything = parts_of(
        LINEAR, {"a", "b", "initial_state"}, ["h", "final_state"], True
    )
    assert set(FORWARD) < set(everything)
    assert set(everything) - set(FORWARD) == {
        "gradient a",
        "gradient b",
        "gradient initial_state",
    }


def test_ordinary_data_show_every_part(bench: Any) -> None:
    """Slow decay over two chunks, with a first state: nothing is unseen."""
    assert seen(bench, ordinary()) == set(FORWARD)


def test_only_wanted_parts_are_looked_at(bench: Any) -> None:
    """Parts that were seen before cost nothing again."""
    report = bench.given(bench.scan, **ordinary())
    assert seen_parts(report, ["input a"]) == {"input a"}
    assert seen_parts(report, []) == set()


def test_strong_decay_does_not_show_the_carry(bench: Any) -> None:
    """A state that is forgotten within a token cannot show what crosses an edge."""
    unseen = set(FORWARD) - seen(bench, ordinary(decay=1e-9))
    assert unseen == {CARRY, "input a", "input initial_state"}


def test_short_sequences_do_not_show_the_carry(bench: Any) -> None:
    """Within one chunk there is no edge."""
    assert CARRY not in seen(bench, ordinary(T=64))
    assert CARRY in seen(bench, ordinary(T=65))


def test_zero_decay_shows_neither_gate_nor_state(bench: Any) -> None:
    """Where nothing is kept, neither decay nor first state nor carry matters."""
    unseen = set(FORWARD) - seen(bench, ordinary(decay=0.0))
    assert unseen == {CARRY, "input a", "input initial_state"}


@pytest.mark.parametrize(
    ("change", "unseen"),
    [
        ({"b": np.zeros((1, 130, 2))}, {"first token", "last token", "input b"}),
        ({"initial_state": np.zeros((1, 2))}, {"input initial_state"}),
        ({"initial_state": np.full((1, 2), 1e-9)}, {"input initial_state"}),
    ],
    ids=["no-drive", "zero-state", "tiny-state"],
)
def test_what_is_absent_or_small_is_unseen(
    bench: Any, change: dict[str, Any], unseen: set[str]
) -> None:
    """A tensor of zeros, or far below the budget, shows no fault in its part."""
    tensors = ordinary() | {n: np.float32(v).astype(float) for n, v in change.items()}
    assert set(FORWARD) - seen(bench, tensors) == unseen


@pytest.mark.parametrize(("token", "name"), [(0, TOKENS[0]), (129, TOKENS[1])])
def test_a_token_that_writes_nothing_is_unseen(
    bench: Any, token: int, name: str
) -> None:
    """The first and the last token are parts of their own."""
    tensors = ordinary()
    tensors["b"][:, token] = 0.0
    assert set(FORWARD) - seen(bench, tensors) == {name}


def test_an_output_of_zeros_is_unseen(bench: Any) -> None:
    """A final state that is zero would look right if it were never written."""
    tensors = ordinary()
    tensors["a"][:, -1] = 0.0
    tensors["b"][:, -1] = 0.0
    unseen = set(FORWARD) - seen(bench, tensors)
    assert unseen == {"last token", "output final_state"}


def test_zero_beside_what_drowns_in_its_budget_is_unseen(bench: Any) -> None:
    """An exact zero in one lane is no sign that another lane stands out."""
    tensors = ordinary()
    tensors["a"][..., 0] = 1.0
    tensors["b"][..., 0] = 0.0
    tensors["initial_state"][..., 0] = 0.0
    tensors["b"][:, ::2, 1], tensors["b"][:, 1::2, 1] = 2.0**40, -(2.0**40)
    tensors["a"][..., 1] = 1.0
    tensors["initial_state"][..., 1] = 1.0
    contract = parse_contract("compute=bf16")
    unseen = set(FORWARD) - seen(bench, tensors, contract=contract)
    assert "output final_state" in unseen


def test_a_wide_budget_sees_less(bench: Any) -> None:
    """Influence is counted in budgets, so it depends on contract and format."""
    tensors = ordinary(T=1000)
    assert seen(bench, tensors) == set(FORWARD)
    narrow = seen(bench, tensors, contract=parse_contract("compute=bf16"))
    assert narrow < set(FORWARD)


def test_outputs_that_are_not_returned_show_nothing(bench: Any) -> None:
    """Only what is judged can show a fault."""

    def lone(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        return bench.scan(a, b, initial_state)[0]

    tensors = ordinary()
    assert set(FORWARD) - seen(bench, tensors, lone) == {"output final_state"}


@pytest.mark.parametrize("T", [0, 1])
def test_short_and_empty_sequences_are_no_trouble(bench: Any, T: int) -> None:
    """Without a token, or with one that is first and last, parts are still counted."""
    found = seen(bench, ordinary(T=T))
    expected = {"output final_state", "input initial_state"}
    if T:
        expected |= {"first token", "last token", "input a", "input b", "output h"}
    assert found == expected


@pytest.mark.parametrize(
    ("bars", "unseen"),
    [("dense", set()), ("final_state", set()), ("one_token", set())],
)
def test_gradients_are_parts(bench: Any, bars: str, unseen: set[str]) -> None:
    """A gradient is seen where it is larger than ten budgets, in any cotangent."""
    case = bench.case(T=131, initial_state=True)
    report = bench.report(bench.scan, case, bars=bars)
    wanted = {"gradient a", "gradient b", "gradient initial_state"}
    assert wanted - seen_parts(report, wanted) == unseen
    bare = bench.report(bench.scan, case)
    assert seen_parts(bare, wanted) == set()


def test_chunk_of_the_case_decides_where_edges_are(bench: Any) -> None:
    """The carry is looked for at the edges that the case aims at."""
    assert seen_parts(bench.report(bench.scan, bench.case(T=33, chunk=32)), [CARRY])
    assert not seen_parts(bench.report(bench.scan, bench.case(T=33, chunk=33)), [CARRY])
