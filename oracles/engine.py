"""One engine for every op and every kind of number: tiled scan and tiled adjoint.

The engine lowers a tile of time, runs the recurrence over it, and applies the epilogue,
so that memory stays within a few tiles. The adjoint keeps the state at tile edges only
and runs each tile forward again before it goes back through it, unless one tile is the
whole (architecture.md gives the adjoint of the normal form).

A `System` says how one kind of number runs a tile (systems.py).
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.ops.normal_form import (
    Lowered,
    Op,
    spec_of,
    state_inputs,
    state_outputs,
)
from scancheck.oracles.called import Call
from scancheck.oracles.delayed import DelayedSystem
from scancheck.oracles.numbers import Joined, compact
from scancheck.oracles.systems import System
from scancheck.oracles.threads import meanwhile
from scancheck.oracles.value_decay import folded, is_foldable, unfolded

FloatArray = NDArray[np.float64]

# State entries of a tile, over all its steps: enough work to share between cores. An
# array of them has 4 MiB; the adjoint keeps a score of those.
TILE_ENTRIES = 2**19
# Where no state is kept and what is lowered is small beside the states.
FACTORED_STRETCH = 8
# A freed block of this size lets glibc's malloc keep twice as much of what is freed
# (mallopt(3), M_MMAP_THRESHOLD). Else it gives the memory of each tile back, and from
# a sixth to nearly half of a budget's time goes into zeroed pages for the next one.
KEPT_BYTES = 2**25 - 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Outputs and, where cotangents were given, gradients of one case."""

    outputs: dict[str, Any]  # output name -> number in the op's layout
    gradients: dict[str, Any] = field(default_factory=dict)  # input name -> number
    companions: dict[str, Any] = field(default_factory=dict)  # M, W, second moment


class Tile(NamedTuple):
    """A tile of time in normal form."""

    start: int  # index of its first token
    inputs: dict[str, Any]  # its part of the op's inputs, switches and constants
    lowered: Lowered
    run: Lowered  # as the system runs it
    carry: Any  # what the lowering of the tile before handed on
    carry_after: Any


def stretch_of(op: Op, tensors: Container[str] = (), *, gradients: bool) -> int:
    """How much longer tiles may be for systems that expand nothing themselves."""
    spread = any(name in tensors for name in op.spread_by)
    return FACTORED_STRETCH if op.factored and not (spread or gradients) else 1


@cache
def keep_freed_memory() -> None:
    """Once in a process; the block itself is never touched."""
    np.empty(KEPT_BYTES, np.uint8)


def unchanged(running: dict[str, Any]) -> dict[str, Any]:
    """Running numbers as they are."""
    return running


def solve(
    system: System,
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    cotangents: Mapping[str, FloatArray] | None = None,
    *,
    stretch: int = 1,
    multiple: int = 1,
    met: Callable[[dict[str, Any]], dict[str, Any]] = unchanged,
) -> Solution:
    """Outputs of the op on stored tensors, and gradients where cotangents are given.

    `cotangents` maps output names to arrays; a missing output has cotangent zero.
    A tile has up to `stretch` times TILE_ENTRIES state entries, or `multiple` steps
    where that is more; it starts at a multiple of so many steps. Sequences that are
    called together are solved one by one. Running numbers are those that `met` makes of
    the ones found step by step.
    """
    if op.calling is not None:
        call = Call(op, tensors, system.constant, system.reduced)

        def alone(bare: Op, part: Any, bars: Any) -> tuple[Any, Any]:
            one = solve(
                system,
                bare,
                part,
                switches,
                bars,
                stretch=stretch,
                multiple=multiple,
                met=met,
            )
            return one.outputs, one.gradients

        outputs, gradients = call.solved(alone, cotangents)
        return Solution(outputs=outputs, gradients=gradients)
    keep_freed_memory()
    # Overflow makes infinities and NaN that the radii and bounds account for.
    with np.errstate(over="ignore", invalid="ignore"):
        if op.reads_before and not system.general:
            system = DelayedSystem(system)
        run = _Run(system, op, tensors, switches, stretch, multiple, met)
        return run.forward() if cotangents is None else run.both(cotangents)


class _Run:
    """One case on its way through the engine."""

    def __init__(
        self,
        system: System,
        op: Op,
        tensors: Mapping[str, FloatArray],
        switches: Mapping[str, bool],
        stretch: int,
        multiple: int,
        met: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self.system, self.op, self.switches = system, op, dict(switches)
        self.general = system.general
        self.time_axis = {}
        self.sizes: dict[str, int] = {}
        for name, values in tensors.items():
            axes = spec_of(op, name, values.ndim).axes
            self.sizes.update(zip(axes, values.shape, strict=True))
            if op.time_axis in axes:
                self.time_axis[name] = axes.index(op.time_axis)
        self.total = self.sizes[op.time_axis]
        self.inputs = {n: system.constant(v) for n, v in tensors.items()}
        groups, keys, lanes = op.group_shape(self.sizes)
        self.state_shape = (groups, keys, lanes)
        constants = op.constants(self.sizes).items()
        self.constants = {n: system.constant(v) for n, v in constants}
        self.substeps = op.substeps(self.sizes)
        self.step = max(1, groups * keys * lanes * self.substeps)
        # Tokens whose steps are a multiple.
        whole = multiple // gcd(multiple, self.substeps)
        tokens = max(1, stretch * TILE_ENTRIES // self.step // whole) * whole
        self.tile = max(1, min(self.total, tokens))
        self.running: dict[str, Any] = {}
        if op.running is not None:
            self.running = met(op.running.find(self.everything))
            self.time_axis |= dict.fromkeys(op.running.names, 1)
        # The one tile with its readout and states, where nothing is run twice.
        self.whole: tuple[Tile, Any, Any] | None = None

    def tiles(self) -> list[tuple[int, int]]:
        """Half-open ranges of steps."""
        edges = [*range(0, self.total, self.tile), self.total]
        return list(pairwise(edges))

    @property
    def everything(self) -> dict[str, Any]:
        """All inputs, switches, constants and running numbers, whole."""
        return self.switches | self.constants | self.inputs | self.running

    @property
    def steps(self) -> int:
        """The steps of the recurrence: of each token one or several."""
        return self.total * self.substeps

    def counted(self, tile: Tile) -> tuple[int, int]:
        """The index of the tile's first step, and the number of steps."""
        return tile.start * self.substeps, self.steps

    def slice(self, start: int, stop: int) -> dict[str, Any]:
        """The tile of the inputs; those without time whole; beside them the rest."""
        tile: dict[str, Any] = self.switches | self.constants
        for name, value in (self.inputs | self.running).items():
            axis = self.time_axis.get(name)
            index = (slice(None),) * (axis or 0) + (slice(start, stop),)
            tile[name] = value if axis is None else value[index].mapped(compact)
        return tile

    def lower(self, into: deque[Tile], span: tuple[int, int], carry: Any) -> None:
        """Appends the lowered tile of these steps."""
        inputs = self.slice(*span)
        lowered, after = self.op.lower(inputs, carry)
        run = lowered
        if is_foldable(lowered) and not self.general:
            run = folded(lowered)
        into.append(Tile(span[0], inputs, lowered, run, carry, after))

    def initial_state(self) -> Any:
        """S_0 as a number, zero where the case has none."""
        return self.state_of(state_inputs(self.op), self.inputs)

    def state_of(self, names: Iterable[str], given: Mapping[str, Any]) -> Any:
        """S from the tensors of a state, those that are not given taken as zero."""
        names = tuple(names)
        if not any(name in given for name in names):
            return self.system.constant(np.zeros(self.state_shape))
        parts = (given[n] if n in given else self.zeros(n) for n in names)
        return self.op.state_in(*parts, self.sizes)

    def parts_of(self, names: Iterable[str], state: Any) -> dict[str, Any]:
        """The tensors of a state by name."""
        parts = self.op.state_out(state, self.sizes)
        if not isinstance(parts, tuple):
            parts = (parts,)
        # A running number may be a further part.
        return dict(zip(names, parts, strict=self.op.running is None))

    def zeros(self, name: str) -> Any:
        """A tensor of the op, of zeros."""
        shape = tuple(self.sizes[axis] for axis in spec_of(self.op, name).axes)
        return self.system.constant(np.zeros(shape))

    def forward(self) -> Solution:
        """Outputs only; one tile of states at a time."""
        return Solution(outputs=self.outputs(None))

    def both(self, cotangents: Mapping[str, FloatArray]) -> Solution:
        """Outputs and gradients; states at tile edges are kept, others recomputed."""
        edges: list[Any] = []
        outputs = self.outputs(edges)
        return Solution(outputs=outputs, gradients=self.backward(edges, cotangents))

    def finish(self, joined: Joined[Any], tile: Tile, o: Any) -> None:
        """Writes a tile of the sequence output to its place."""
        joined.put(tile.start, self.op.epilogue(tile.inputs, o))

    def outputs(self, edges: list[Any] | None) -> dict[str, Any]:
        """The op's outputs; `edges` receives the state and carry before each tile.

        While a tile is scanned, the one before is finished and the next one lowered.
        """
        sequence = self.op.outputs[0]
        joined = Joined[Any](sequence.axes.index(self.op.time_axis), self.total)
        state = self.system.begin(self.initial_state())
        spans, ready = self.tiles(), deque[Tile]()
        keep = edges is not None and len(spans) == 1 and self.system.alike_when_kept
        jobs: list[Callable[[], None]] = []
        for index, span in enumerate(spans):
            if index == 0:
                self.lower(ready, span, None)
            tile = ready.popleft()
            if span is not spans[-1]:
                carry = tile.carry_after
                jobs.append(partial(self.lower, ready, spans[index + 1], carry))
            if edges is not None:
                edges.append((state, tile.carry))
            with meanwhile(jobs):
                o, state, states = self.system.forward(
                    tile.run, state, *self.counted(tile), keep
                )
            if keep:
                self.whole = tile, o, states
            jobs = [partial(self.finish, joined, tile, o)]
        for job in jobs:
            job()
        if joined.number is None:
            joined.put(0, self.zeros(sequence.name))
        names = [spec.name for spec in state_outputs(self.op)]
        last = self.parts_of(names, self.system.end(state, self.steps))
        if self.op.running is not None:
            made = self.op.running.final(self.everything, tuple(last.values()))
            last = dict(zip(names, made, strict=True))
        return {**last, sequence.name: joined.number}

    def again(
        self, span: tuple[int, int], state: Any, carry: Any
    ) -> tuple[Tile, Any, Any]:
        """The tile of these steps run from the state before it, its states kept."""
        tiles = deque[Tile]()
        self.lower(tiles, span, carry)
        tile = tiles.pop()
        o, _, states = self.system.forward(tile.run, state, *self.counted(tile), True)
        return tile, o, states

    def backward(
        self, edges: list[Any], cotangents: Mapping[str, FloatArray]
    ) -> dict[str, Any]:
        """Gradients of all inputs, tile by tile from the last."""
        ybar_all, axis = self._sequence_cotangent(cotangents)
        finals = [spec.name for spec in state_outputs(self.op)]
        given = {n: self.system.constant(x) for n, x in cotangents.items()}
        running_bars: dict[str, Any] = {}
        if self.op.running is not None:
            ends = tuple(given[n] if n in given else self.zeros(n) for n in finals)
            parts, running_bars = self.op.running.final_pullback(self.everything, ends)
            given = dict(zip(finals, parts, strict=True))
        last = self.state_of(finals, given)
        back = self.system.begin_adjoint(last)
        joined: dict[str, Joined[Any]] = {}
        totals: dict[str, Any] = {}
        spans = self.tiles()
        for (start, stop), (state, carry) in zip(
            reversed(spans), reversed(edges), strict=True
        ):
            tile, o, states = self.whole or self.again((start, stop), state, carry)
            index = (slice(None),) * axis + (slice(start, stop),)
            obar, outer = self.op.epilogue_pullback(tile.inputs, o, ybar_all[index])
            bars, back = self.system.adjoint(
                tile.run, states, obar, back, *self.counted(tile)
            )
            if tile.run is not tile.lowered:
                bars = unfolded(bars, tile.lowered)
            inner = self.op.lower_pullback(tile.inputs, tile.lowered, bars)
            for name, bar in _merged(inner, outer).items():
                if name in self.time_axis:
                    whole = Joined[Any](self.time_axis[name], self.total)
                    joined.setdefault(name, whole).put(start, bar)
                else:
                    totals[name] = totals[name] + bar if name in totals else bar
        out = {name: whole.number for name, whole in joined.items()}
        terms = self.steps * self.sizes.get("B", 1)
        out |= {n: self.system.reduced(total, terms) for n, total in totals.items()}
        states = state_inputs(self.op)
        found: dict[str, Any] = {}
        if any(name in self.inputs for name in states):
            found = self.parts_of(states, self.system.end_adjoint(back))
        if self.op.running is not None:
            running_bars |= {n: out.pop(n) for n in self.op.running.names if n in out}
            out |= self.op.running.pullback(self.everything, running_bars)
        out |= {name: bar for name, bar in found.items() if name in self.inputs}
        for name, values in self.inputs.items():
            if name not in out:
                out[name] = self.system.constant(np.zeros(values.shape))
        return out

    def _sequence_cotangent(
        self, cotangents: Mapping[str, FloatArray]
    ) -> tuple[Any, int]:
        """The cotangent of the sequence output, zero where none is given."""
        sequence = self.op.outputs[0]
        axis = sequence.axes.index(self.op.time_axis)
        if sequence.name not in cotangents:
            return self.zeros(sequence.name), axis
        return self.system.constant(cotangents[sequence.name]), axis


def _merged(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    """Contributions to the same input added."""
    merged = dict(inner)
    for name, bar in outer.items():
        merged[name] = merged[name] + bar if name in merged else bar
    return merged
