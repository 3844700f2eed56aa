"""selective_scan on a tape: every operation of forward and backward pass rounded.

Replicates are B/C groups of two channels, so that one call of `budget_for` bounds all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from machines.emulator import Entry, Machine, Scan, Tape
from numpy.typing import NDArray

from scancheck.formats import Format, round_array

Array = NDArray[Any]
BATCH, CHANNELS, STATES = 2, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Scales of one family of selective_scan inputs."""

    bias: float = 0.0
    delta: float = 1.0
    gate: float = 1.0  # of z
    rate: float = 1.0  # of A
    skip: float = 1.0  # of D
    keys: float = 1.0  # of B and C


def tensors(
    draw: Draw, fmt: Format, seed: int, steps: int, replicates: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and cotangents in the op's layout; storage tensors rounded into `fmt`."""
    rng = np.random.default_rng([seed, steps])
    lanes = CHANNELS * replicates
    sequence = (BATCH, lanes, steps)
    keys = (BATCH, replicates, STATES, steps)
    values = {
        "u": rng.normal(size=sequence),
        "delta": draw.delta * rng.normal(size=sequence),
        "z": draw.gate * rng.normal(size=sequence),
        "B": draw.keys * rng.normal(size=keys),
        "C": draw.keys * rng.normal(size=keys),
        "A": -draw.rate * rng.uniform(0.1, 2, (lanes, STATES)),
        "D": draw.skip * rng.normal(size=lanes),
        "delta_bias": draw.bias + rng.normal(size=lanes),
        "initial_state": rng.normal(size=(BATCH, lanes, STATES)),
    }
    bars = {
        "y": rng.normal(size=sequence),
        "last_state": rng.normal(size=(BATCH, lanes, STATES)),
    }
    inputs = {name: round_array(fmt, x) for name, x in values.items()}
    return inputs, {name: round_array(fmt, x) for name, x in bars.items()}


def run(
    machine: Machine,
    scan: Scan,
    inputs: dict[str, Array],
    bars: dict[str, Array],
    *,
    skip_first: bool = False,
    softplus: bool = True,
    logs: bool = False,
) -> dict[str, Array]:
    """Outputs and gradients by name, in the op's layout.

    `skip_first`: D u is the first term of the sum over states, not the last. `logs`:
    the scan takes log gates.
    """
    tape = Tape(machine)
    leaves: dict[tuple[Any, ...], Entry] = {}

    def leaf(name: str, *index: int) -> Entry:
        if (name, *index) not in leaves:
            leaves[(name, *index)] = tape.inputs(_lane(inputs, name, index)[None])[0]
        return leaves[(name, *index)]

    steps = inputs["u"].shape[2]
    seeds: list[tuple[Entry, Array]] = []
    out: dict[tuple[Any, ...], Array] = {}
    for batch in range(BATCH):
        for channel in range(CHANNELS):
            at = (batch, channel)
            d = []
            for t in range(steps):
                x = leaf("delta", *at, t) + leaf("delta_bias", channel)
                d.append(x.softplus() if softplus else x)
            du = [d[t] * leaf("u", *at, t) for t in range(steps)]
            states = []
            for n in range(STATES):
                w = [d[t] * leaf("A", channel, n) for t in range(steps)]
                if not logs:
                    w = [gate.exp() for gate in w]
                x = [du[t] * leaf("B", batch, n, t) for t in range(steps)]
                states.append(scan(w, x, leaf("initial_state", *at, n)))
                out[("last_state", *at, n)] = states[-1][-1].value
                bar = _lane(bars, "last_state", (*at, n))
                seeds.append((states[-1][-1], bar))
            for t in range(steps):
                terms = [leaf("C", batch, n, t) * states[n][t] for n in range(STATES)]
                skip = leaf("D", channel) * leaf("u", *at, t)
                terms = [skip, *terms] if skip_first else [*terms, skip]
                total = terms[0]
                for term in terms[1:]:
                    total = total + term
                y = total * leaf("z", *at, t).silu()
                out[("y", *at, t)] = y.value
                seeds.append((y, _lane(bars, "y", (*at, t))))
    tape.backward(seeds)
    for key, entry in leaves.items():
        out[key] = np.zeros(1) if entry.bar is None else entry.bar
    shapes = {n: x.shape for n, x in inputs.items()} | {
        n: x.shape for n, x in bars.items()
    }
    # An input and an output never share a name.
    return {name: _gathered(out, name, shapes[name]) for name in shapes}


def _lane(values: dict[str, Array], name: str, index: tuple[int, ...]) -> Array:
    """All replicates of one entry, [replicates]."""
    x = values[name]
    match name:
        case "B" | "C":
            batch, n, t = index
            return x[batch, :, n, t]
        case "A" | "D" | "delta_bias":
            channel, *rest = index
            return x[(slice(channel, None, CHANNELS), *rest)]
        case _:
            batch, channel, last = index
            return x[batch, channel::CHANNELS, last]


def _gathered(
    out: dict[tuple[Any, ...], Array], name: str, shape: tuple[int, ...]
) -> Array:
    """The entries of one tensor in the op's layout."""
    gathered = np.zeros(shape, dtype=np.longdouble)
    for key, value in out.items():
        if key[0] == name:
            _lane({name: gathered}, name, key[1:])[...] = value
    return gathered
