"""The mLSTM's maximum from sums of log gates, held against its budget."""

import numpy as np
import pytest

from scancheck.bounds.budget import budget_for
from scancheck.contract import Contract, Structure
from scancheck.ops import OPS

B, T, H, CHUNK = 3, 70, 4, 16


def drawn() -> dict[str, np.ndarray]:
    """Gates with a reset now and then: a sum of logs is large after it."""
    source = np.random.default_rng(7)
    tensors = {
        "q": source.standard_normal((B, T, H, 1)),
        "k": source.standard_normal((B, T, H, 1)),
        "v": source.standard_normal((B, T, H, 1)),
        "i": source.standard_normal((B, T, H)),
        "f": source.standard_normal((B, T, H)),
        "initial_max": source.standard_normal((B, H)),
    }
    tensors["f"][source.random((B, T, H)) < 0.05] = -3000.7
    return {n: x.astype(np.float32).astype(np.float64) for n, x in tensors.items()}


def forgotten(f: np.ndarray) -> np.ndarray:
    """logsigmoid in the array's format."""
    return -np.logaddexp(np.zeros((), f.dtype), -f)


def step_by_step(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The last m in fp64."""
    m, gates = tensors["initial_max"], forgotten(tensors["f"])
    for t in range(T):
        m = np.maximum(gates[:, t] + m, tensors["i"][:, t])
    return m


def in_chunks(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The last m in fp32, from running sums of each chunk."""
    m, new, f = (tensors[n].astype(np.float32) for n in ("initial_max", "i", "f"))
    gates = forgotten(f)
    for first in range(0, T, CHUNK):
        sums = np.cumsum(gates[:, first : first + CHUNK], 1)
        last = sums[:, -1]
        entered = (last[:, None] - sums) + new[:, first : first + CHUNK]
        m = np.maximum(last + m, entered.max(1))
    assert m.dtype == np.float32
    return m.astype(np.float64)


@pytest.mark.parametrize("log", ["diff", "segsum"])
def test_a_maximum_from_sums_is_within_its_budget(log: str) -> None:
    """And it is beyond that of the steps, which form no sums."""
    tensors = drawn()
    error = np.abs(in_chunks(tensors) - step_by_step(tensors))

    def allowed(contract: Contract) -> np.ndarray:
        budget = budget_for(OPS["mlstm"], tensors, {}, contract, "fp32")
        return budget.outputs["final_max"].error

    chunked = Contract(structure=Structure(kind="chunk", chunk=CHUNK), log=log)
    steps = Contract(structure=Structure(kind="sequential"))
    assert (error <= allowed(chunked)).all()
    assert (error > allowed(steps)).any()
    # It is a bound on what is seen, not on anything.
    assert (error > 0.003 * allowed(chunked)).any()
