"""Faults of chunks of matrix products: what is read of the state, a cut inverse, axes.

Each is the oracle's recurrence with one thing wrong. An op reads the carried state
through the decays alone: what a token reads of it comes on top of the chunk's own part.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.carry_faults import Fault
from scancheck.checks.faulty_recurrence import run, sliced, spans
from scancheck.checks.oracle import CaseReport
from scancheck.ops import op_named
from scancheck.ops.normal_form import Lowered, spec_of
from scancheck.oracles.ball import Ball
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.systems import GenericSystem
from scancheck.oracles.tile_ball import exact_tile_ball

FloatArray = NDArray[np.float64]
# Factors I + N^2, I + N^4, ... after which a Neumann product may end too early.
DOUBLINGS = (0, 1, 2, 3, 4)


def faults_of_chunks(report: CaseReport, chunk: int) -> Iterator[Fault]:
    """Faults in chunks of one size, of ops with heads."""
    op = op_named(report.case.op)
    if "H" not in op.size_names:
        return
    where = "token's own" if op.reads_before else "chunk's first"
    yield (
        "carried_read",
        f"in chunks of {chunk} the state carried in is decayed by the {where} gate "
        "once more where it is read",
        run(report, ReadTooLate(chunk)),
    )
    if not op.diagonal:
        for doublings in DOUBLINGS:
            if 2 ** (doublings + 1) < min(chunk, _tokens(report)):
                yield (
                    "inverse_cut",
                    f"in chunks of {chunk} what a token erases counts at most "
                    f"{2 ** (doublings + 1) - 1} erasures on its way: "
                    f"{doublings} doublings",
                    run(report, CutInverse(chunk, doublings)),
                )


def swapped_axes(report: CaseReport) -> Iterator[Fault]:
    """Heads taken for tokens, where there are as many of both."""
    op, sizes = op_named(report.case.op), dict(report.case.sizes)
    heads = {sizes[name] for name in ("H", "HV") if name in op.size_names}
    if not heads or heads != {_tokens(report)} or heads == {1}:
        return
    turned = {}
    for name, values in report.inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        turned[name] = values
        if axes[1:2] == (op.time_axis,) and axes[2:3] != ("G",):
            turned[name] = np.ascontiguousarray(values.swapaxes(1, 2))
    outputs = run(report, Fp64System(), turned)
    first = op.outputs[0].name
    outputs[first] = np.ascontiguousarray(outputs[first].swapaxes(1, 2))
    yield "axes_swapped", "right with tokens and heads in each other's place", outputs


def _tokens(report: CaseReport) -> int:
    return int(dict(report.case.sizes)[op_named(report.case.op).time_axis])


class ChunkFault(GenericSystem):
    """The recurrence in plain fp64, a chunk at a time; one thing may be wrong with it.

    It runs every part of the normal form as it is, also reads before the update, so
    that chunks begin where a kernel's do.
    """

    def __init__(self, chunk: int) -> None:
        self.size = chunk

    def constant(self, values: FloatArray) -> Ball:
        """Stored values as balls of radius zero."""
        return exact_tile_ball(np.asarray(values, dtype=np.float64))

    def begin(self, state: Ball) -> FloatArray:
        """The values alone."""
        return np.asarray(state.value, dtype=np.float64)

    def end(self, state: FloatArray, total: int) -> Ball:
        """The final state."""
        return Ball(state, np.zeros_like(state))

    def forward(
        self, lowered: Lowered, state: FloatArray, start: int, total: int, keep: bool
    ) -> tuple[Ball, FloatArray, None]:
        """o [G, T, L] and the state after the tile."""
        pieces = []
        for first, last in spans(lowered, start, self.size):
            o, state = self.chunk(sliced(lowered, first, last), state)
            pieces.append(o)
        o = np.concatenate(pieces, 1)
        return Ball(o, np.zeros_like(o)), state, None

    def chunk(self, part: Lowered, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """o and the state after a chunk, or the end of one where a tile begins."""
        raise NotImplementedError


class ReadTooLate(ChunkFault):
    """The carried state is decayed once too often where it is read.

    By the first gate of the chunk, or by the token's own where the op reads before its
    update and has no use for it. What is erased and carried on is right.
    """

    def chunk(self, part: Lowered, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What is read of the carried state passes the decays alone."""
        steps, o = _Steps(part), np.empty_like(part.v.value)
        carried, first = state, steps.at("w", 0)
        for t in range(o.shape[1]):
            r, gate = steps.at("r", t), steps.at("w", t)
            after = steps.moved(t, state, steps.seen(t, state), steps.at("v", t))
            later = steps.decayed(t, carried)
            read, through = (state, carried) if part.reads_before else (after, later)
            factor = gate if part.reads_before else first
            o[:, t] = (r * (read + (factor - 1.0) * through)).sum(1)
            state, carried = after, later
        return o, state


class CutInverse(ChunkFault):
    """Chunks invert I + N by too short a Neumann product.

    (I - N)(I + N^2) .. with d more factors is the sum of (-N)^n for n < 2^(d + 1): as
    many rounds in which every token erases what the round before has written.
    """

    def __init__(self, chunk: int, doublings: int) -> None:
        super().__init__(chunk)
        self.rounds = 2 ** (doublings + 1) - 1

    def chunk(self, part: Lowered, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Rounds over the chunk, then what is read."""
        steps, v = _Steps(part), part.v.value
        nothing = np.zeros_like(v)
        # A delta rule's N acts on what it writes, v included; else on what is seen.
        first = nothing if part.erases_decayed else v
        seen, _, _ = steps.scanned(state, nothing, first, "q")
        for _ in range(self.rounds):
            seen, _, _ = steps.scanned(state, seen, v, "q")
        _, o, after = steps.scanned(state, seen, v, "r")
        return o, after


class _Steps:
    """The arrays of a part, and its steps one by one."""

    def __init__(self, part: Lowered) -> None:
        self.part = part
        self.steps = part.v.shape[1]

    def at(self, name: str, t: int) -> Any:
        """Step t: of v [G, L], of others [G, K or 1, L or 1]; one where absent."""
        number = getattr(self.part, name)
        if number is None:
            return 1.0
        return number.value[:, t if number.shape[1] > 1 else 0]

    def decayed(self, t: int, state: FloatArray) -> FloatArray:
        """diag(w_t) S diag(z_t)."""
        decayed: FloatArray = self.at("w", t) * state * self.at("z", t)
        return decayed

    def seen(self, t: int, state: FloatArray) -> FloatArray:
        """q_t^T S, [G, L]; zero where nothing is erased."""
        if self.part.q is None:
            return np.zeros_like(state[:, 0])
        seen: FloatArray = (self.at("q", t) * state).sum(1)
        return seen

    def moved(
        self, t: int, state: FloatArray, seen: FloatArray, written: FloatArray
    ) -> FloatArray:
        """The state after step t, for given q_t^T S and v_t."""
        state = self.decayed(t, state) + self.at("k", t) * written[:, None]
        if self.part.p is not None:
            state = state + self.at("p", t) * seen[:, None]
        return state

    def scanned(
        self, state: FloatArray, seen: FloatArray, written: FloatArray, read: str
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What a field reads before each step and after it, and the last state."""
        before, after = np.empty_like(written), np.empty_like(written)
        for t in range(self.steps):
            reader = self.at(read, t)
            before[:, t] = (reader * state).sum(1)
            state = self.moved(t, state, seen[:, t], written[:, t])
            after[:, t] = (reader * state).sum(1)
        return before, after, state
