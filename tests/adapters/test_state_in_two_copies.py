"""Why fla's delta rules step by step are SUSPECT in 16 bits on an H200.

Triton 3.6 compiles the loop so that every thread holds the state twice: whole columns,
from which S^T k is formed, and its own entries, which are read out and returned. In a
column s becomes fma(e, k, s), as an own entry s + round(e k). So what is returned
is not what errors are corrected by: its roundings add up over all tokens, from a large
first state on, where those of a delta rule fade. The steps are written out in NumPy, in
the order of the compiled code, and have the published rho.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.bounds.contract_emulation import emulated_for
from scancheck.bounds.moments import rho
from scancheck.case import case_from_json
from scancheck.contract import parse_contract
from scancheck.ops import OPS
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.build import build

Float32Array = NDArray[np.float32]
H200 = Path(__file__).parents[2] / "reports" / "field" / "h200"
ORDER = (1, 0, 2)  # of the keys in S^T k
PUBLISHED = (
    "fla.fused_recurrent_gated_delta_rule-bf16.json",
    "fla.fused_recurrent_kda-bf16.json",
    "fla.fused_recurrent_kda-fp16.json",
)


def fma(a: Float32Array, b: Float32Array, c: Float32Array) -> Float32Array:
    """a b + c rounded once: the product is exact in fp64, and its sum nearly."""
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return exact.astype(np.float32)


def final_states(x: dict[str, Float32Array]) -> tuple[Float32Array, Float32Array]:
    """The columns that predict, and the entries that are returned, [B, H, K, V]."""
    assert not x["g"].any()  # of these cases: exp(0) is 1 on the card too
    columns = x["initial_state"].copy()
    own = columns.copy()
    for t in range(x["v"].shape[1]):
        k = x["k"][:, t, ..., None]
        first, *others = ORDER[: columns.shape[2]]
        seen = columns[:, :, first] * k[:, :, first]
        for key in others:
            seen = fma(columns[:, :, key], k[:, :, key], seen)
        e = (x["v"][:, t] - seen) * x["beta"][:, t, :, None]
        columns = fma(e[:, :, None], k, columns)
        own = own + e[:, :, None] * k
    return columns, own


@pytest.mark.parametrize("published", PUBLISHED)
def test_the_state_that_is_returned_is_a_second_one(published: str) -> None:
    """rho of the entries is the published one to three digits, of the columns small."""
    record = json.loads((H200 / published).read_text(encoding="utf-8"))
    (finding,) = record["findings"]
    case, name = case_from_json(finding["case"]), "final_state"
    op, tensors = OPS[case.op], build(case).tensors
    contract = parse_contract(record["contract"])
    roots = emulated_for(op, tensors, {}, contract, case.dtype)
    assert roots is not None
    truth = solve(Fp64System(), op, tensors, {}).outputs[name].value
    held = {n: values.astype(np.float32) for n, values in tensors.items()}
    of_columns, of_own = (rho(s - truth, roots[name]) for s in final_states(held))
    assert (finding["tensor"], finding["verdict"]) == (name, "SUSPECT")
    assert abs(of_own / finding["rho"] - 1.0) < 1e-3
    assert of_columns < 1.0
