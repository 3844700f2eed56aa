"""How long `scancheck verify` judges an op with a matrix state at a size people use.

    python benchmarks/verify_matrix.py

The cases are those of the quick profile, recipes, seeds and options alike, but each has
T 512, H 2 and K = V = 64, gradients included: `verify` itself turns its sizes from case
to case, most of them small, so a size can be measured only by giving it to all.
"""

import sys
import time
from dataclasses import replace
from typing import Any
from unittest import mock

from figures import Figure, report

from scancheck import verify
from scancheck.case import Case
from scancheck.gate import loop

KERNEL = "model.gated_delta_rule.sequential.plain"
SIZES = {"B": 1, "T": 512, "H": 2, "HV": 2, "K": 64, "V": 64}


def resized(*arguments: Any, **options: Any) -> list[Case]:
    """The case list with the same sizes in all cases.

    Left out are empty cases, and those whose sequences lie at places of their own.
    """
    return [
        replace(case, sizes=tuple((name, SIZES[name]) for name, _ in case.sizes))
        for case in loop_case_list(*arguments, **options)
        if all(size for _, size in case.sizes)
        and not {"cu_seqlens", "lengths"} & {*dict(case.options)}
    ]


loop_case_list = loop.case_list


def figures() -> list[Figure]:
    """Seconds of the whole quick profile in fp32."""
    start = time.perf_counter()
    with mock.patch.object(loop, "case_list", resized):
        result = verify(KERNEL, dtypes=["fp32"], profile="quick", gradients=True)
    # Of the cases: the run is BLIND to the parts of calls that were left out.
    if set(result.record.counts) != {"PASS"}:
        raise RuntimeError(f"{KERNEL}: expected passes; got {result.record.counts}")
    return [
        Figure(
            name="verify quick, matrix state",
            shape=f"{KERNEL} fp32, gradients, T 512, H 2, K = V = 64 in all cases",
            value=time.perf_counter() - start,
            unit="s",
            target=60.0,
            at_least=False,
        )
    ]


if __name__ == "__main__":
    sys.exit(report(figures()))
