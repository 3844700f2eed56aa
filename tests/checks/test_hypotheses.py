"""Known faults are recognised by what they return, for any chunk, op and format."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.case import make_case
from scancheck.checks.hypotheses import Explanation, explain
from scancheck.checks.oracle import CaseReport, check_case
from scancheck.diagnosis import CAUSES
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty

Carry = Callable[[list[tuple[Tensor, Tensor]], Tensor], Iterator[Tensor]]


def chunked(
    size: int, carry: Carry, after: Callable[[Tensor], Tensor] | None = None
) -> Any:
    """A chunked scan whose carries are made from the chunks' totals by `carry`."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        state = b.new_zeros(b.shape[0], b.shape[2])
        if initial_state is not None:
            state = initial_state
        pieces, totals = [], []
        for decays, drives in zip(a.split(size, 1), b.split(size, 1), strict=True):
            local, product, rows = torch.zeros_like(state), torch.ones_like(state), []
            for decay, drive in zip(decays.unbind(1), drives.unbind(1), strict=True):
                local, product = decay * local + drive, decay * product
                rows.append((local, product))
            pieces.append(rows)
            totals.append((product, local))
        carries = list(carry(totals, state))
        out = [
            local + product * entering
            for rows, entering in zip(pieces, carries, strict=True)
            for local, product in rows
        ]
        h = torch.stack(out, 1)
        return (h if after is None else after(h)), h[:, -1].clone()

    return call


def right(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """Each chunk starts from the totals of those before it."""
    for product, local in totals:
        yield state
        state = product * state + local


def own_total(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """Each chunk's own total, where that of the chunk before belongs."""
    yield state
    for product, local in totals[1:]:
        state = product * state + local
        yield state


def late(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """Each chunk starts from the carry of the chunk before."""
    carries = list(right(totals, state))
    yield from [carries[0], *carries[:-1]]


def dropped(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """Only the first chunk has a carry."""
    yield state
    yield from (torch.zeros_like(state) for _ in totals[1:])


def decayed(factor: float) -> Carry:
    """What is carried through a chunk decays too much."""

    def carry(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
        for product, local in totals:
            yield state
            state = factor * product * state + local

    return carry


def scaled(factor: float) -> Carry:
    """The whole carry is too large or too small."""

    def carry(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
        for index, (product, local) in enumerate(totals):
            entering = state if index == 0 else factor * state
            yield entering
            state = product * entering + local

    return carry


def first_only(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """The initial state enters the first chunk and is lost there."""
    yield state
    yield from list(right(totals, torch.zeros_like(state)))[1:]


def forgetful(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """The last local state alone is carried."""
    yield state
    yield from (local for _, local in totals[:-1])


def undecayed(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """What enters a chunk enters the next one as it came."""
    for _, local in totals:
        yield state
        state = state + local


def clamped(totals: list[tuple[Tensor, Tensor]], state: Tensor) -> Iterator[Tensor]:
    """No carry is larger than 3."""
    for product, local in totals:
        yield state
        state = (product * state + local).clamp(-3.0, 3.0)


FAULTS: dict[str, tuple[Carry, str]] = {
    "own_total": (own_total, "carry_total"),
    "late": (late, "carry_index"),
    "dropped": (dropped, "carry_dropped"),
    "decayed": (decayed(0.97), "carry_decay"),
    "scaled": (scaled(1.05), "carry_decay"),
    "first_only": (first_only, "initial_state"),
    "forgetful": (forgetful, "carry_forgets"),
    "undecayed": (undecayed, "carry_undecayed"),
    "clamped": (clamped, "state_clamped"),
}


@pytest.mark.parametrize("chunk", [8, 16, 33, 64])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_faults_of_the_carry_are_told_apart(
    bench: Any, chunk: int, fault: str, seed: int
) -> None:
    """Each fault is recognised as itself at its chunk size, on ordinary data."""
    carry, cause = FAULTS[fault]
    case = bench.case(T=4 * chunk + 5, seed=seed, initial_state=True, chunk=chunk)
    found = explain(bench.report(chunked(chunk, carry), case), [chunk])
    assert found is not None
    assert found.cause == cause
    assert found.chunk == chunk
    assert str(chunk) in found.detail


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("T", [33, 48, 49])
def test_last_chunks_of_any_length_are_understood(
    bench: Any, T: int, fault: str
) -> None:
    """A last chunk of one token, or a whole one, hides no fault and breaks nothing."""
    carry, cause = FAULTS[fault]
    case = bench.case(T=T, initial_state=True, chunk=16)
    report = bench.report(chunked(16, carry), case)
    found = [explain(report, [16]) for _ in range(3)]
    assert found[0] is not None
    assert found[0].cause == cause
    assert found == [found[0]] * 3


def test_a_wrong_state_without_a_token_breaks_nothing(bench: Any) -> None:
    """An empty sequence, whose final state is off by one bit, has no chunk to fit."""

    def call(a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        return b.clone(), initial_state * (1.0 + 2.0**-23)

    report = bench.report(call, bench.case(T=0, initial_state=True))
    assert report.metrics["final_state"].wrong.any()
    assert explain(report, [16]) is None


@pytest.mark.parametrize(("factor", "words"), [(0.97, "0.97 "), (1.25, "1.25 ")])
def test_the_factor_of_a_wrong_decay_is_told(
    bench: Any, factor: float, words: str
) -> None:
    """The text says by how much the carried part is off."""
    case = bench.case(T=69, initial_state=True)
    found = explain(bench.report(chunked(16, decayed(factor)), case), [16])
    assert found is not None
    assert words in found.detail


@pytest.mark.parametrize("fault", FAULTS)
def test_another_chunk_size_explains_nothing(bench: Any, fault: str) -> None:
    """A fault at edges of 16 is not taken for one at edges of 24."""
    case = bench.case(T=69, initial_state=True)
    report = bench.report(chunked(16, FAULTS[fault][0]), case)
    found = explain(report, [24])
    assert found is None


def test_the_first_fitting_size_is_found(bench: Any) -> None:
    """Sizes are tried in order, until the fault fits."""
    case = bench.case(T=69, initial_state=True)
    found = explain(bench.report(chunked(16, dropped), case), [200, 64, 24, 16, 8])
    assert found is not None
    assert found.chunk == 16


def test_a_lost_initial_state_needs_no_chunk(bench: Any) -> None:
    """Outputs of a zero initial state are recognised without any edge."""
    case = bench.case(T=69, initial_state=True)
    call = lambda a, b, initial_state=None: bench.scan(a, b)  # noqa: E731
    found = explain(bench.report(call, case), [])
    assert found == Explanation(
        cause="initial_state",
        chunk=None,
        detail="the outputs are those of a zero initial state",
    )


def test_a_silent_tail_is_recognised(bench: Any) -> None:
    """Zeros after the last full chunk are a partial chunk that is not computed."""

    def silent(h: Tensor) -> Tensor:
        h = h.clone()
        h[:, 64:] = 0.0
        return h

    found = explain(bench.report(chunked(16, right, silent), bench.case(T=69)), [16])
    assert found is not None
    assert found.cause == "partial_chunk"


def test_a_stale_element_is_recognised(bench: Any) -> None:
    """Single values of the token before are told from any other wrong value."""

    def stale(h: Tensor) -> Tensor:
        h = h.clone()
        h[1, 40, 3] = h[1, 39, 3]
        return h

    def other(h: Tensor) -> Tensor:
        h = h.clone()
        h[1, 40, 3] = h[1, 39, 3] + 0.1
        return h

    case = bench.case(T=69)
    found = explain(bench.report(chunked(16, right, stale), case), [16])
    assert found is not None
    assert (found.cause, found.detail[:9]) == ("local_element", "1 element")
    assert explain(bench.report(chunked(16, right, other), case), [16]) is None


@pytest.mark.parametrize(
    "fault",
    [
        lambda a, b: (1.01 * a, b),
        lambda a, b: (a, 1.01 * b),
        lambda a, b: (a.roll(2, 1), b),
        lambda a, b: (a, b.flip(2)),
        lambda a, b: (a.flip(1), b.flip(1)),
    ],
    ids=["decay", "drive", "shifted", "channels", "backwards"],
)
def test_other_faults_are_not_taken_for_a_known_one(bench: Any, fault: Any) -> None:
    """What no hypothesis reproduces has no explanation."""
    report = bench.report(lambda a, b: bench.scan(*fault(a, b)), bench.case(T=69))
    assert report.verdict == "FAIL"
    assert explain(report, [16, 32, 64]) is None


def test_a_right_kernel_needs_no_explanation(bench: Any) -> None:
    """Where nothing is wrong, no fault fits."""
    report = bench.report(chunked(16, right), bench.case(T=69, initial_state=True))
    assert report.verdict == "PASS"
    assert explain(report, [16]) is None


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "name",
    [
        "carry_uses_own_total",
        "carry_shifted_by_one_chunk",
        "initial_state_ignored_after_first_chunk",
        "last_partial_chunk_dropped",
    ],
)
@pytest.mark.parametrize("op", ["linear_scan", "selective_scan"])
def test_planted_bugs_are_explained_in_both_ops(
    bench: Any, op: str, name: str, dtype: str
) -> None:
    """No hypothesis knows an op: gates and readouts come from the oracle itself."""
    kernels = {kernel.name: kernel for kernel in faulty()}
    kernel = kernels.get(f"faulty.{op}.{name}")
    if kernel is None:
        kernel = _selective(name)
    found = explain(_report(bench, kernel, dtype), [64])
    symptoms = {k.name.split(".")[-1]: k.symptom for k in kernels.values()}
    assert found is not None
    assert found.cause == symptoms[name]


def _selective(name: str) -> Kernel:
    """A planted bug of linear_scan in selective_scan."""
    from functools import partial

    from scancheck.kernels.faulty.catalog import CALLS

    call = partial(CALLS["selective_scan"], name)
    return Kernel(name=name, op="selective_scan", call=call)


def _report(bench: Any, kernel: Kernel, dtype: str) -> CaseReport:
    sizes = {"linear_scan": {"T": 200}, "selective_scan": {"L": 200, "N": 3}}
    case = make_case(
        kernel.op,
        {"B": 2, "D": 4} | sizes[kernel.op],
        dtype=dtype,
        recipe="gaussian_slow",
        seed=5,
        options={"initial_state": True},
    )
    return check_case(kernel, case, bench.request())


def test_every_explanation_is_a_cause(bench: Any) -> None:
    """Explanations speak the words of the table."""
    case = bench.case(T=69, initial_state=True)
    for carry, _ in FAULTS.values():
        found = explain(bench.report(chunked(16, carry), case), [16])
        assert found is not None
        assert found.cause in CAUSES


def test_outputs_that_are_no_numbers_are_no_trouble(bench: Any) -> None:
    """NaN and infinities in a kernel's outputs break no hypothesis."""

    def broken(h: Tensor) -> Tensor:
        h = h.clone()
        h[0, 20:] = np.nan
        h[1, 30:] = np.inf
        h[1, 5] *= 2
        return h

    report = bench.report(
        chunked(16, right, broken), bench.case(T=69, initial_state=True)
    )
    assert explain(report, [16]) is None


def test_a_lone_output_is_explained_too(bench: Any) -> None:
    """The sequence alone, or the final state alone, is enough to recognise a fault."""
    case = bench.case(T=69, initial_state=True)
    call = chunked(16, own_total)
    for lone in (
        lambda a, b, initial_state=None: call(a, b, initial_state)[0],
        lambda a, b, initial_state=None: (None, call(a, b, initial_state)[1]),
    ):
        found = explain(bench.report(lone, case), [16])
        assert found is not None
        assert found.cause == "carry_total"


def test_the_control_is_right() -> None:
    """The control that planted bugs are made from is a kernel of both ops."""
    assert {kernel.op for kernel in controls()} == {"linear_scan", "selective_scan"}
