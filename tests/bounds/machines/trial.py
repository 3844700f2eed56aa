"""One attempt at a bound: a program on a machine, the exact result, and the ratio."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from machines.emulator import (
    Machine,
    Scan,
    Tape,
    blelloch,
    chunked,
    hillis_steele,
    random_trees,
    sequential,
)
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance, Budget, budget_for
from scancheck.contract import Contract, Structure
from scancheck.formats import Format, round_array
from scancheck.ops import OPS

Array = NDArray[Any]
WIDE = np.longdouble
LINEAR_SCAN = OPS["linear_scan"]

# Programs, each with the structure that it declares; "any" claims nothing.
PROGRAMS: dict[str, tuple[Scan, Structure]] = {
    "sequential": (sequential, Structure(kind="sequential")),
    "any sequential": (sequential, Structure()),
    "any trees": (random_trees(7), Structure()),
    "hillis_steele": (hillis_steele, Structure(kind="tree")),
    "blelloch": (blelloch, Structure(kind="tree")),
    "chunk": (chunked(5), Structure(kind="chunk", chunk=5)),
    "chunk joined": (chunked(5, restart=False), Structure(kind="chunk", chunk=5)),
    "chunk of trees": (
        chunked(6, "tree"),
        Structure(kind="chunk", chunk=6, inner="tree"),
    ),
    "tree of chunks": (
        chunked(4, "tree", "tree"),
        Structure(kind="chunk", chunk=4, inner="tree", carry="tree"),
    ),
}

DOUBLING = Structure(kind="tree", order="hillis_steele")


def in_chunks(size: int, inner: str) -> Structure:
    """Chunks whose order is named: one step after another, or by doubling."""
    order = "hillis_steele" if inner == "tree" else "stepwise"
    return Structure(kind="chunk", chunk=size, inner=inner, order=order)


# Programs whose structure names the order, which the bound emulates.
NAMED_PROGRAMS: dict[str, tuple[Scan, Structure]] = {
    "doubling": (hillis_steele, DOUBLING),
    "one chunk joined": (chunked(4096, "tree", restart=False), DOUBLING),
    **{
        f"{size} {inner}{'' if restart else ' joined'}": (
            chunked(size, inner, restart=restart),
            in_chunks(size, inner),
        )
        for size in (1, 2, 5, 8, 64)
        for inner in ("sequential", "tree")
        for restart in (True, False)
    },
    # Where chunks follow one another, a pass that never joins a total is one of them.
    "all in order": (sequential, in_chunks(5, "sequential")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A linear scan with cotangents; every array [T, lanes] or [lanes]."""

    a: Array
    b: Array
    s: Array
    ybar: Array
    last_bar: Array

    @property
    def tensors(self) -> dict[str, Array]:
        """The op's inputs, one batch row."""
        return {
            "a": self.a[None],
            "b": self.b[None],
            "initial_state": self.s[None],
        }

    @property
    def cotangents(self) -> dict[str, Array]:
        """The op's cotangents."""
        return {"h": self.ybar[None], "final_state": self.last_bar[None]}


def with_cotangents(fmt: Format, a: Array, b: Array, s: Array, seed: int = 3) -> Data:
    """The data with Gaussian cotangents of the format."""
    rng = np.random.default_rng(seed)
    return Data(
        a=a,
        b=b,
        s=s,
        ybar=round_array(fmt, rng.normal(size=b.shape)),
        last_bar=round_array(fmt, rng.normal(size=s.shape)),
    )


def exact(data: Data) -> dict[str, Array]:
    """States and gradients in extended precision, by the explicit adjoint."""
    a, b, s, ybar, g = (
        np.asarray(x, dtype=WIDE)
        for x in (data.a, data.b, data.s, data.ybar, data.last_bar)
    )
    states = [s]
    for x, y in zip(a, b, strict=True):
        states.append(x * states[-1] + y)
    adjoint = np.empty_like(b)
    for t in reversed(range(len(a))):
        adjoint[t] = ybar[t] + g
        g = a[t] * adjoint[t]
    return {
        "h": np.array(states[1:]),
        "a": adjoint * np.array(states[:-1]),
        "b": adjoint,
        "initial_state": g,
    }


def computed(scan: Scan, machine: Machine, data: Data) -> dict[str, Array]:
    """States of a program, and the gradients that reverse mode gives."""
    tape = Tape(machine)
    a, b = tape.inputs(data.a), tape.inputs(data.b)
    start = tape.inputs(data.s[None])
    with np.errstate(all="ignore"):
        states = scan(a, b, start[0])
        seeds = list(zip(states, data.ybar, strict=True))
        tape.backward([*seeds, (states[-1], data.last_bar)])
    gradients = {
        name: np.array([np.zeros_like(e.value) if e.bar is None else e.bar for e in es])
        for name, es in (("a", a), ("b", b), ("initial_state", start))
    }
    gradients["initial_state"] = gradients["initial_state"][0]
    return {"h": np.array([e.value for e in states]), **gradients}


def bounded(data: Data, contract: Contract, dtype: str, **options: Any) -> Budget:
    """The budget of a linear scan."""
    return budget_for(
        LINEAR_SCAN, data.tensors, {}, contract, dtype, data.cotangents, **options
    )


def allowances(budget: Budget) -> dict[str, Allowance]:
    """Outputs and gradients by name."""
    return {**budget.outputs, **budget.gradients}


def ratios(got: Array, want: Array, allowance: Allowance) -> Array:
    """err / E of elements that may not overflow; infinite where they did all the same.

    Arrays may lack the batch axis of the allowance.
    """
    error, overflows = allowance.error, allowance.overflows
    if error.ndim > want.ndim:
        error, overflows = error[0], overflows[0]
    with np.errstate(all="ignore"):
        off = np.abs(np.asarray(got, dtype=WIDE) - want)
        ratio = np.where(off == 0, 0, off / error)
    ratio = np.where(np.isnan(ratio) | ~np.isfinite(got), np.inf, ratio)
    return np.where(overflows, 0.0, ratio).astype(float)


def worst(got: dict[str, Array], want: dict[str, Array], budget: Budget) -> float:
    """The largest ratio over all outputs and gradients that a program gave."""
    allowed = allowances(budget)
    return max(float(np.max(ratios(got[n], want[n], allowed[n]))) for n in got)


def machine(fmt: Format, mode: str) -> Machine:
    """A machine of one of the modes that a contract can be tried in."""
    if mode == "flush":
        return Machine(fmt=fmt, flush=True, flush_inputs=True)
    return Machine(fmt=fmt, direction=mode)
