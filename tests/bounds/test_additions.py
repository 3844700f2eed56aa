"""Additions on a term's path, counted in the programs that structures stand for."""

from dataclasses import dataclass

import numpy as np
import pytest
from machines.emulator import (
    Array,
    Machine,
    Scan,
    Tape,
    blelloch,
    chunked,
    hillis_steele,
    random_trees,
    sequential,
)

from scancheck.bounds.rules import additions, reverse_additions, rules_for
from scancheck.bounds.scan_tables import step_error
from scancheck.contract import Contract, Structure
from scancheck.formats import FP32

LENGTHS = (*range(1, 20), 31, 32, 33, 63, 64, 65, 94)


@dataclass(slots=True, kw_only=True)
class Counter(Machine):
    """A machine whose numbers are the additions on the longest path to them."""

    def mul(self, x: Array, y: Array) -> Array:
        """Both factors of a term bring their own path."""
        return x + y

    def add(self, x: Array, y: Array) -> Array:
        """One addition more than either operand."""
        return np.maximum(x, y) + 1


def counted(scan: Scan, steps: int) -> tuple[list[int], list[int]]:
    """Additions on the way to each state, and to the cotangent of each decay."""
    tape = Tape(Counter(fmt=FP32))
    zeros = np.zeros((steps, 1))
    a, b, s = tape.inputs(zeros), tape.inputs(zeros), tape.inputs(zeros[:1])
    states = scan(a, b, s[0])
    tape.backward([(state, np.zeros(1)) for state in states])
    return (
        [int(e.value[0]) for e in states],
        [0 if e.bar is None else int(e.bar[0]) for e in a],
    )


def cases() -> list[tuple[Scan, Structure]]:
    """Programs and the structures that they declare."""
    rows = [
        (sequential, Structure(kind="sequential")),
        (sequential, Structure()),
        (hillis_steele, Structure(kind="tree")),
        (blelloch, Structure(kind="tree")),
        (random_trees(3), Structure()),
    ]
    for size in (1, 2, 3, 5, 8, 16, 31):
        for inner in ("sequential", "tree"):
            for carry in ("sequential", "tree"):
                structure = Structure(
                    kind="chunk", chunk=size, inner=inner, carry=carry
                )
                for restart in (True, False):
                    scan = chunked(size, inner, carry, restart=restart)
                    rows.append((scan, structure))
    return rows


@pytest.mark.parametrize("steps", LENGTHS)
def test_no_program_makes_more_additions_than_its_structure_says(steps: int) -> None:
    """Every prefix of every program, and the gradients that reverse mode gives."""
    for scan, structure in cases():
        states, decays = counted(scan, steps)
        limits = [additions(structure, t) for t in range(steps + 1)]
        assert all(n <= m for n, m in zip(states, limits[1:], strict=True)), structure
        reverse = reverse_additions(structure, steps)
        for t, count in enumerate(decays):
            assert count <= limits[t] + limits[steps - t] + reverse, (structure, t)


@pytest.mark.parametrize("steps", [20, 33, 64])
def test_counts_of_declared_orders_are_reached(steps: int) -> None:
    """Sequential and two-pass chunk counts are those of the program, not more."""
    for scan, structure in (
        (sequential, Structure(kind="sequential")),
        (chunked(8), Structure(kind="chunk", chunk=8)),
    ):
        states, _ = counted(scan, steps)
        assert states == [additions(structure, t + 1) for t in range(steps)]


def test_chunk_plus_chunks_is_too_few() -> None:
    """A count of C + T / C additions, with one pass forgotten, would be exceeded."""
    states, _ = counted(chunked(16), 32)
    assert states[-1] > 16 + 2 + 1


def test_uses_of_the_carry_count_in_reverse_mode() -> None:
    """A carry that joins every step of its chunk collects as many cotangents."""
    structure = Structure(kind="chunk", chunk=31, inner="tree")
    _, decays = counted(chunked(31, "tree", restart=False), 62)
    assert decays[0] > additions(structure, 0) + additions(structure, 62) + 2


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_an_age_of_chunks_costs_a_product_and_an_addition(dtype: str) -> None:
    """A step of age costs 2 u in every format, fp64 too, where 1 + u is 1."""
    structure = Structure(kind="chunk", chunk=8)
    rules = rules_for(Contract(compute=dtype, structure=structure), dtype)
    assert 2 * rules.u <= step_error(rules) <= 2 * rules.u * (1 + rules.u)
