"""Operands of matrix products: how often each is rounded before it is multiplied.

A chunk of a diagonal recurrence with keys is a few matrix products (Yang et al. 2023,
sections 4.2 and 4.3; Dao and Gu 2024, section 6): inside it decayed scores of queries
and keys meet the values, across its edge a decayed query meets the state, which decayed
keys and values make. Before each product its operands are rounded to the format of the
products (numerics 2.7). An operand is rounded once where it is computed, as a scale or
a step size makes it, and once where a decay has multiplied it; or once where its format
does not hold it. Decays of exactly one change nothing: what an exponential makes of
them, the operand is rounded back from.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.rules import Rules
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.formats import Format, round_array
from scancheck.ops.normal_form import Lowered, Op

FloatArray = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


FORMS = ("none", "diff", "segsum", "factored", "renorm")


def check_matrix_products(op: Op, contract: Contract) -> None:
    """Raises CaseInvalid where a contract speaks of matrix products without a bound."""
    default = Contract()
    names = [
        name
        for name in ("operands", "accumulate")
        if getattr(contract, name) != getattr(default, name)
    ]
    if not names:
        return
    structure = contract.structure
    order = "" if structure.order == "any" else f" in the order {structure.order}"
    for holds, expected, got in (
        (op.matrix_products, "an op with keys, whose chunks are products", op.name),
        (op.diagonal, "an op whose transition is diagonal", op.name),
        (
            structure.kind != "sequential" and not order,
            "structure=unknown, tree or chunk(C) in any order",
            f"structure={structure.kind}{order}",
        ),
        (
            contract.log in FORMS,
            f"log to be one of {', '.join(FORMS)}",
            f"log={contract.log}",
        ),
        (contract.comp == "none", "comp=none", f"comp={contract.comp}"),
    ):
        if not holds:
            given = f"{names[0]}={getattr(contract, names[0])}"
            raise CaseInvalid(f"contract {given}: expected {expected}; got {got}")


class Operand(NamedTuple):
    """The operands of one kind, one a token."""

    size: FloatArray  # bounds on their entries, [G, T, N]
    computed: Flags  # inexact before it is first rounded, [G, T]
    unheld: Flags  # exact, but not in the format of the products, [G, T]

    def times(self, decayed: Flags) -> Counts:
        """Roundings of the operand by the time it is multiplied."""
        return self.computed.astype(np.int64) + (decayed | self.unheld)

    def turned(self) -> Self:
        """In reversed time."""
        size, computed, unheld = self
        return type(self)(size[:, ::-1], computed[:, ::-1], unheld[:, ::-1])


def operand(number: ErrorNumber, rules: Rules) -> Operand:
    """The operands [G, T, N] of this value."""
    off = number.error
    return Operand(number.magnitude + off, *how_made(number.value, off, rules.operands))


def how_made(value: FloatArray, off: FloatArray, fmt: Format) -> tuple[Flags, Flags]:
    """`computed` and `unheld` of operands [G, T, N]; `off` is zero for exact ones."""
    exact = off == 0.0
    held = round_array(fmt, value) == value
    return ~exact.all(axis=2), (exact & ~held).any(axis=2)


def keys_of(lowered: Lowered) -> tuple[ErrorNumber, ErrorNumber]:
    """Keys and queries, [G, T, K]; raises CaseInvalid where there are none."""
    groups, steps = lowered.v.shape[:2]
    found = []
    for name, x in (("keys k", lowered.k), ("a readout r", lowered.r)):
        if x is None or x.shape[3] != 1:
            got = "none" if x is None else f"one for each of {x.shape[3]} lanes"
            raise CaseInvalid(
                f"contract operands: expected {name} that all lanes share; got {got}"
            )
        found.append(x[..., 0].broadcast_to((groups, steps, x.shape[2])))
    return found[0], found[1]


def decays_of(lowered: Lowered) -> tuple[Flags, FloatArray]:
    """Whether a step has a decay that is not one [G, T]; bounds on them all."""
    w = lowered.w
    moved = (w.value != 1.0).any(axis=(2, 3))
    shape = lowered.v.shape[:2]
    high = np.abs(w.value) + w.error
    return np.broadcast_to(moved, shape), np.broadcast_to(
        high, (*shape, *high.shape[2:])
    )
