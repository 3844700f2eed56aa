"""Cotangents: what each kind holds, in the formats of the outputs."""

import numpy as np
import pytest

from scancheck.case import Case, make_case
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, round_array
from scancheck.recipes import COTANGENT_KINDS, cotangents

STATES = {"linear_scan": "final_state", "selective_scan": "last_state"}
SEQUENCES = {"linear_scan": "h", "selective_scan": "y"}
OPS = pytest.mark.parametrize("op", STATES)


def a_case(
    op: str, *, steps: int = 70, batch: int = 2, dtype: str = "bf16", chunk: int = 16
) -> Case:
    """A case with chunks of 16, unless told otherwise."""
    if op == "linear_scan":
        sizes = {"B": batch, "T": steps, "D": 3}
    else:
        sizes = {"B": batch, "L": steps, "D": 3, "N": 2}
    return make_case(
        op, sizes, dtype=dtype, recipe="unit_decay", seed=0, options={"chunk": chunk}
    )


@OPS
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("kind", COTANGENT_KINDS)
def test_values_are_in_the_formats_of_the_outputs(
    op: str, dtype: str, kind: str
) -> None:
    """Sequence cotangents are in the case's dtype, the state's in fp32 or fp64."""
    case = a_case(op, dtype=dtype)
    state_format = FORMATS["fp64" if dtype == "fp64" else "fp32"]
    for name, values in cotangents(case, kind, 7).items():
        fmt = state_format if name == STATES[op] else FORMATS[dtype]
        assert np.array_equal(values, round_array(fmt, values))
        assert values.any()


@OPS
def test_dense_covers_everything(op: str) -> None:
    """Every element of every output has a cotangent, and most are not zero."""
    drawn = cotangents(a_case(op), "dense", 1)
    time = (2, 70, 3) if op == "linear_scan" else (2, 3, 70)
    state = (2, 3) if op == "linear_scan" else (2, 3, 2)
    assert {name: values.shape for name, values in drawn.items()} == {
        SEQUENCES[op]: time,
        STATES[op]: state,
    }
    assert all((values != 0.0).all() for values in drawn.values())


@OPS
def test_final_state_alone(op: str) -> None:
    """Only the last state has a cotangent."""
    assert set(cotangents(a_case(op), "final_state", 1)) == {STATES[op]}


@OPS
def test_one_token_alone(op: str) -> None:
    """One token has a cotangent in all chains, another one for most seeds."""
    seen = set()
    for seed in range(20):
        drawn = cotangents(a_case(op), "one_token", seed)
        assert set(drawn) == {SEQUENCES[op]}
        values = drawn[SEQUENCES[op]]
        time = 1 if op == "linear_scan" else 2
        tokens = np.unique(np.nonzero(values)[time])
        assert len(tokens) == 1
        assert np.count_nonzero(values) == 6
        seen.add(int(tokens[0]))
    assert len(seen) > 10


@OPS
def test_cancelling_pairs_straddle_every_edge(op: str) -> None:
    """Neighbours across each chunk edge are large and nearly cancel."""
    drawn = cotangents(a_case(op), "cancelling_pairs", 2)
    values = drawn[SEQUENCES[op]]
    values = values if op == "linear_scan" else values.transpose(0, 2, 1)
    for edge in (16, 32, 48, 64):
        assert (np.abs(values[:, edge]) > 30.0).all()
        assert (np.abs(values[:, edge] + values[:, edge - 1]) < 1.0).all()


@pytest.mark.parametrize("chunk", range(1, 9))
def test_pairs_cancel_for_any_chunk(chunk: int) -> None:
    """Whatever the chunk, neighbours cancel: no large value stands alone."""
    case = a_case("linear_scan", chunk=chunk)
    values = cotangents(case, "cancelling_pairs", 3)["h"]
    large = np.abs(values) > 16.0
    assert large.any()
    assert (np.abs(values.cumsum(axis=1)) < 70.0).all()
    assert np.abs(values.sum(axis=1)).max() < 8.0


@OPS
@pytest.mark.parametrize("kind", COTANGENT_KINDS)
def test_empty_and_shortest_sequences(op: str, kind: str) -> None:
    """No tokens, one token and no batch rows give cotangents of those shapes."""
    for batch, steps in ((2, 0), (2, 1), (2, 2), (0, 70)):
        drawn = cotangents(a_case(op, batch=batch, steps=steps), kind, 3)
        for values in drawn.values():
            assert values.shape[0] == batch
            assert np.isfinite(values).all()


@OPS
@pytest.mark.parametrize("kind", COTANGENT_KINDS)
def test_the_seed_decides(op: str, kind: str) -> None:
    """The same seed gives the same bits, and another seed others."""
    first = cotangents(a_case(op), kind, 4)
    again = cotangents(a_case(op), kind, 4)
    other = cotangents(a_case(op), kind, 5)
    for name in first:
        assert first[name].tobytes() == again[name].tobytes()
        assert first[name].tobytes() != other[name].tobytes()


def test_an_unknown_kind_is_refused() -> None:
    """The message lists the kinds."""
    with pytest.raises(CaseInvalid, match=r"one_token.*'sparse'"):
        cotangents(a_case("linear_scan"), "sparse", 0)
