"""selective_scan, forward and backward, every operation rounded: nothing exceeds E."""

import numpy as np
import pytest
from machines.emulator import Entry, Machine, chunked, hillis_steele, sequential
from machines.log_forms import Program, states
from machines.selective import Draw, run, tensors
from machines.trial import allowances, machine, ratios

from scancheck.bounds.budget import Budget, budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import BF16, FP32, Format
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles.fp64 import solve_fp64

STEPS, REPLICATES = 5, 40
FAST_EXP = ErrorModel(e0=4.0, e1=2.35)
DRAWS = {
    "plain": Draw(),
    "bias -20": Draw(bias=-20.0),
    "bias 20": Draw(bias=20.0),
    "strong decay": Draw(rate=30.0),
    "large skip": Draw(skip=1e4),
    "large keys": Draw(keys=1e4),
    "small keys, wide gate": Draw(keys=1e-4, gate=20.0),
    "wide gate": Draw(gate=40.0),
}
PROGRAMS = {
    "sequential": (sequential, Structure(kind="sequential")),
    "any": (sequential, Structure()),
    "hillis_steele": (hillis_steele, Structure(kind="tree")),
    "chunk": (chunked(3), Structure(kind="chunk", chunk=3)),
}
SWITCHES = {"delta_softplus": True}


def contract(fmt: Format, structure: Structure, ftz: str = "no") -> Contract:
    """Fast exponentials inside softplus and silu as well."""
    silu = ErrorModel(e0=8.0, e1=2.35)
    if fmt == BF16:
        # exp off by E makes silu off by E / (1 - E), and E reaches 0.7 here.
        silu = ErrorModel(e0=24.0, e1=12.0)
    return Contract(
        compute=fmt.name, structure=structure, ftz=ftz, exp=FAST_EXP,
        softplus=FAST_EXP, silu=silu,
    )  # fmt: skip


def emulated(fmt: Format, mode: str) -> Machine:
    """A machine whose exponentials are off by what the contract allows."""
    m = machine(fmt, mode)
    m.exp_error = m.softplus_error = (FAST_EXP.e0, FAST_EXP.e1)
    return m


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("fmt", [FP32, BF16], ids=lambda fmt: fmt.name)
def test_no_program_exceeds_its_budget(name: str, fmt: Format) -> None:
    """All outputs and all gradients, D u added first or last: err <= E everywhere."""
    inputs, bars = tensors(DRAWS[name], fmt, 1, STEPS, REPLICATES)
    want = run(Machine(fmt=fmt, direction="exact"), sequential, inputs, bars)
    for program, (scan, structure) in PROGRAMS.items():
        modes = (("random", False), ("flush", True))
        if program in ("any", "hillis_steele"):
            modes = (("nearest", True), ("away", True))
        for mode, first in modes:
            declared = contract(fmt, structure, "yes" if mode == "flush" else "no")
            budget = budget_for(
                SELECTIVE_SCAN, inputs, SWITCHES, declared, fmt.name, bars
            )
            with np.errstate(all="ignore"):
                got = run(emulated(fmt, mode), scan, inputs, bars, skip_first=first)
            for tensor, allowed in allowances(budget).items():
                ratio = ratios(got[tensor], want[tensor], allowed)
                assert np.max(ratio) <= 1.0, (program, mode, tensor)


def test_the_emulated_chain_is_the_op() -> None:
    """Without rounding, outputs and gradients are those of the fp64 oracle."""
    inputs, bars = tensors(Draw(), FP32, 1, STEPS, 4)
    got = run(Machine(fmt=FP32, direction="exact"), sequential, inputs, bars)
    solution = solve_fp64(SELECTIVE_SCAN, inputs, SWITCHES, bars)
    for name, ball in {**solution.outputs, **solution.gradients}.items():
        assert np.all(np.abs(got[name] - ball.value) <= 2.0 * ball.radius), name


def plain_budget(name: str) -> tuple[dict[str, np.ndarray], Budget]:
    """Errors of the adversary that always rounds away, and its budget."""
    inputs, bars = tensors(DRAWS[name], FP32, 1, STEPS, REPLICATES)
    want = run(Machine(fmt=FP32, direction="exact"), sequential, inputs, bars)
    got = run(emulated(FP32, "away"), sequential, inputs, bars, skip_first=True)
    declared = contract(FP32, Structure(kind="sequential"))
    budget = budget_for(SELECTIVE_SCAN, inputs, SWITCHES, declared, "fp32", bars)
    return {n: np.abs(got[n] - want[n]) for n in want}, budget


def test_no_budget_is_vacuous() -> None:
    """An adversary reaches 0.3 of the budget of every output and gradient."""
    reached: dict[str, float] = {}
    for name in DRAWS:
        errors, budget = plain_budget(name)
        for tensor, allowed in allowances(budget).items():
            ratio = float(np.max(errors[tensor] / allowed.error))
            reached[tensor] = max(ratio, reached.get(tensor, 0.0))
    assert min(reached.values()) > 0.3, reached


def log_chunks(size: int):  # type: ignore[no-untyped-def]
    """A scan over log gates: chunks of differences of sums, on the tape."""

    def minus(x: Entry) -> Entry:
        return x.tape.entry(-x.value)

    def scan(log: list[Entry], x: list[Entry], s: Entry) -> list[Entry]:
        out: list[Entry] = []
        for start in range(0, len(log), size):
            sums: list[Entry] = []
            for gate in log[start : start + size]:
                sums.append(sums[-1] + gate if sums else gate)
            before = s
            for t, c in enumerate(sums):
                s = c.exp() * before
                for j in range(t + 1):
                    s = s + (c + minus(sums[j])).exp() * x[start + j]
                out.append(s)
        return out

    return scan


def log_form(form: str):  # type: ignore[no-untyped-def]
    """A forward scan in a log form of chunks of 4, on the tape's values."""

    def scan(log: list[Entry], x: list[Entry], s: Entry) -> list[Entry]:
        tape, m = s.tape, s.tape.machine
        gates, drive = (np.array([e.value for e in part]) for part in (log, x))
        p = Program(form=form, chunk=4)
        return [
            tape.entry(h) for h in states(m, p, gates, m.exp(gates), drive, s.value)
        ]

    return scan


@pytest.mark.parametrize("name", ["plain", "strong decay", "bias 20"])
@pytest.mark.parametrize("form", ["diff", "segsum", "factored", "ratio", "renorm"])
def test_log_gates_with_errors_of_their_own_fit_their_budget(
    name: str, form: str
) -> None:
    """d A is rounded before it is summed: the bounds of log forms take that in."""
    inputs, bars = tensors(DRAWS[name], FP32, 1, STEPS, REPLICATES)
    want = run(Machine(fmt=FP32, direction="exact"), sequential, inputs, bars)
    declared = Contract(
        structure=Structure(kind="chunk", chunk=4), log=form, range="log", ftz="no",
        exp=FAST_EXP, softplus=FAST_EXP, silu=ErrorModel(e0=8.0, e1=2.35),
    )  # fmt: skip
    budget = budget_for(SELECTIVE_SCAN, inputs, SWITCHES, declared, "fp32")
    scan = log_chunks(4) if form == "diff" else log_form(form)
    for mode in ("nearest", "random", "away"):
        with np.errstate(all="ignore"):
            got = run(emulated(FP32, mode), scan, inputs, bars, logs=True)
        for tensor, allowed in budget.outputs.items():
            ratio = np.max(ratios(got[tensor], want[tensor], allowed))
            assert ratio <= 1.0, (mode, tensor)
