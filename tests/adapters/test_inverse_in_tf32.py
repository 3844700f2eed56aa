"""Why fla's chunked delta rules are SUSPECT in fp16 on an H200, and not interpreted.

The triangular inverse of chunk_gated_delta_rule and of chunk_kda is merged from blocks
of 16 by products in TF32, which the tensor cores cut off operands to. In fp16 all
else is rounded to as many bits, and to nearest. The cases are the published ones,
the kernels written out in NumPy.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scancheck.case import case_from_json
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import parse_contract
from scancheck.formats import FORMATS, round_array
from scancheck.kernel import Kernel
from scancheck.verdict import Verdict

FloatArray = NDArray[np.float64]
H200 = Path(__file__).parents[2] / "reports" / "field" / "h200"
PUBLISHED = ("fla.chunk_gated_delta_rule-fp16.json", "fla.chunk_kda-fp16.json")
CHUNK, BLOCK = 64, 16
half = partial(round_array, FORMATS["fp16"])


def cut_off(x: FloatArray) -> FloatArray:
    """fp32 values without their last 13 bits."""
    bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def inverse(lower: FloatArray, operand: Any) -> FloatArray:
    """(I + L)^-1 from its diagonal blocks, merged by products of operands.

    X_ij = -X_ii (sum over k from j to i - 1 of L_ik X_kj).
    """
    steps = len(lower)
    spans = [slice(a, min(a + BLOCK, steps)) for a in range(0, steps, BLOCK)]
    found = np.zeros_like(lower)
    for i, rows in enumerate(spans):
        eye = np.eye(rows.stop - rows.start)
        found[rows, rows] = np.linalg.inv(eye + lower[rows, rows])
        for j, columns in enumerate(spans[:i]):
            inner = sum(
                operand(lower[rows, k]) @ operand(found[k, columns]) for k in spans[j:i]
            )
            found[rows, columns] = -operand(found[rows, rows]) @ operand(inner)
    return found


def chunks(operand: Any, **given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the final state by chunks of 64, operands in fp16 and sums exact."""
    q, k, v, beta, gates, state = (
        given[n].double().numpy() for n in ("q", "k", "v", "beta", "g", "initial_state")
    )
    assert not gates.any()  # of this case; they would decay all of the below
    out = np.zeros(v.shape)
    final = state.copy()
    for b in range(len(q)):
        s = state[b, 0]
        for start in range(0, q.shape[1], CHUNK):
            at = b, slice(start, start + CHUNK), 0
            erased = k[at] * beta[at][:, None]
            solved = half(inverse(np.tril(erased @ k[at].T, -1), operand))
            w, u = (
                half(solved @ half(erased)),
                half(solved @ half(v[at] * beta[at][:, None])),
            )
            new = half(u - w @ half(s))
            scores = half(np.tril(q[at] @ k[at].T))
            out[at] = (q[at] @ half(s) + scores @ new) * q.shape[3] ** -0.5
            s = s + k[at].T @ new
        final[b, 0] = s
    return torch.from_numpy(out).to(given["v"].dtype), torch.from_numpy(final).float()


@pytest.mark.parametrize("published", PUBLISHED)
@pytest.mark.parametrize("operand", [cut_off, np.asarray], ids=["TF32", "fp32"])
def test_products_in_tf32_are_what_was_found(operand: Any, published: str) -> None:
    """rho of o is the published one, but for the order of sums; else it is small."""
    record = json.loads((H200 / published).read_text(encoding="utf-8"))
    (finding,) = record["findings"]
    case = case_from_json(finding["case"])
    kernel = Kernel(name="mine", op=case.op, call=partial(chunks, operand))
    request = Request(contract=parse_contract(record["contract"]), runs=1)
    report = check_case(kernel, case, request)
    (of_o,) = (
        one for one in report.checks if one.tensor == "o" and one.rho is not None
    )
    if operand is cut_off:
        assert (report.verdict, finding["verdict"]) == (Verdict.SUSPECT, "SUSPECT")
        assert abs(of_o.rho - finding["rho"]) < 0.1 * finding["rho"]
    else:
        assert report.verdict is Verdict.PASS
        assert of_o.rho < 1.0
