"""The oracle's recurrence with one structural fault, for any op.

Each system is the fp64 oracle that does one thing wrong: at the edges of chunks, to the
lowered decays, or to the combination inside a chunk.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.numbers import concatenate
from scancheck.oracles.systems import System

FloatArray = NDArray[np.float64]
Outputs = dict[str, FloatArray]
FIELDS = ("w", "v", "k", "r", "log_w", "p", "q", "z", "log_z")


def run(
    report: CaseReport,
    system: System,
    tensors: Mapping[str, FloatArray] | None = None,
    switches: Mapping[str, bool] | None = None,
) -> Outputs:
    """Outputs of a system on a case's inputs, or on others in their place."""
    solution = solve(
        system,
        op_of(report.case),
        report.inputs.tensors if tensors is None else tensors,
        report.inputs.switches if switches is None else switches,
    )
    return {name: ball.value for name, ball in solution.outputs.items()}


def steps_in(report: CaseReport, chunk: int) -> int:
    """The steps of the recurrence in a chunk of tokens."""
    steps: int = op_of(report.case).substeps(dict(report.case.sizes))
    return chunk * steps


class AtEdges(Fp64System):
    """The oracle with `change` applied to the state at every chunk edge."""

    def __init__(self, chunk: int, change: "Change") -> None:
        super().__init__()
        self.chunk, self.change = chunk, change
        self.kept: list[Any] = []  # the state before each chunk, as carried
        self.parts: list[Lowered] = []  # the pieces of the chunk before the edge

    def begin(self, state: Any) -> Any:
        begun = super().begin(state)
        self.kept, self.parts = [begun], []
        return begun

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        pieces = []
        for first, last in spans(lowered, start, self.chunk):
            part = sliced(lowered, first, last)
            here = start + first
            if here > 0 and here % self.chunk == 0:
                self.kept.append(state)
                state = self.change(self, part, state, here // self.chunk)
                self.parts = []
            self.parts.append(part)
            o, state, _ = super().forward(part, state, here, total, False)
            pieces.append(o)
        return concatenate(pieces, 1), state, None


Change = Callable[[AtEdges, Lowered, Any, int], Any]


class SilentTail(Fp64System):
    """The oracle that reads out zero after the last full chunk."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        o, state, states = super().forward(lowered, state, start, total, keep)
        silent = max(0, total - total % self.chunk - start)
        value = o.value.copy()
        value[:, silent:] = 0.0
        return o.like(value, o.radius), state, states


class OtherDecays(Fp64System):
    """The oracle whose decays went through `change`, given their first step's index."""

    def __init__(self, change: Callable[[Lowered, int], FloatArray]) -> None:
        super().__init__()
        self.change = change

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        other = with_decay(lowered, self.change(lowered, start))
        return super().forward(other, state, start, total, keep)


class OtherWrites(Fp64System):
    """The oracle whose keys and values went through `change`."""

    def __init__(self, change: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__()
        self.change = change

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        changed = {
            name: x.like(self.change(x.value), np.zeros(x.shape))
            for name in ("k", "v")
            if (x := getattr(lowered, name)) is not None
        }
        other = replace(lowered, **changed)
        return super().forward(other, state, start, total, keep)


class SwappedCombine(Fp64System):
    """The oracle that combines (a1, b1), (a2, b2) to b = a1 b2 + b1 inside a chunk.

    Then a token's drive is decayed by the tokens of the chunk before it, not after it;
    the state entering the chunk is decayed as it should be.
    """

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        pieces = []
        for first, last in spans(lowered, start, self.chunk):
            part = sliced(lowered, first, last)
            o, state = self.swapped(part, state)
            pieces.append(o)
        return concatenate(pieces, 1), state, None

    def swapped(self, part: Lowered, state: Any) -> tuple[Any, Any]:
        """Readout and state of one chunk: its carry and its own tokens apart."""
        w = part.w.value
        steps = part.v.shape[1]
        before = np.cumprod(w, axis=1)
        before = np.concatenate([np.ones_like(w[:, :1]), before[:, :-1]], 1)
        nothing = tuple(np.zeros_like(array) for array in state)
        silent = part.v.like(np.zeros_like(part.v.value), np.zeros(part.v.shape))
        carried = replace(part, v=silent)
        keys = np.ones((1, 1, 1, 1)) if part.k is None else part.k.value
        own = with_decay(part, np.ones_like(w))
        weighted = part.w.like(keys * before, np.zeros((keys * before).shape))
        if part.k is None:
            drive = before[:, :, 0, :] * part.v.value
            own = replace(own, v=part.v.like(drive, np.zeros(drive.shape)))
        else:
            own = replace(own, k=weighted)
        o1, s1, _ = Fp64System().forward(carried, state, 0, steps, False)
        o2, s2, _ = Fp64System().forward(own, nothing, 0, steps, False)
        return o1 + o2, tuple(x + y for x, y in zip(s1, s2, strict=True))


def with_decay(lowered: Lowered, decay: FloatArray) -> Lowered:
    """The tile with other decays."""
    decay = np.ascontiguousarray(decay)
    w = lowered.w.like(decay, np.zeros(decay.shape))
    return replace(lowered, w=w, log_w=None)


def spans(lowered: Lowered, start: int, chunk: int) -> list[tuple[int, int]]:
    """Pieces of a tile that begins with step `start`, cut at chunk edges."""
    steps = lowered.v.shape[1]
    cuts = [t for t in range(1, steps) if (start + t) % chunk == 0]
    return list(pairwise([0, *cuts, steps]))


def sliced(lowered: Lowered, first: int, last: int) -> Lowered:
    """Steps first..last of a tile."""
    parts = {}
    for name in FIELDS:
        number = getattr(lowered, name)
        if number is not None and number.shape[1] > 1:
            number = number[:, first:last]
        parts[name] = number
    return replace(lowered, **parts)


def scanned(part: Lowered, state: Any) -> Any:
    """The state after some steps, in a system of their own."""
    return Fp64System().forward(part, state, 0, part.v.shape[1], False)[1]
