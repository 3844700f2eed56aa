"""How long `scancheck verify` judges an op with a matrix state at a size people use.

    python benchmarks/verify_matrix.py [--device cuda] [--kernel NAME] [-o FIGURES.json]

The cases are those of the quick profile, recipes, seeds and options alike, but each has
T 512, H 2 and K = V = 64, gradients included: `verify` itself turns its sizes from case
to case, most of them small, so a size can be measured only by giving it to all. On a
device the kernel is a fast one, which has no gradients; transformers' chunks have, but
their budget is formed on the CPU. The time is that of the whole command but Python's
own start: the server of the kernel's process starts first, as for `scancheck verify`,
and both import side by side.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from figures import Figure, report

from scancheck.kernel_server import start_for_cuda

KERNELS = {
    "cpu": "model.gated_delta_rule.sequential.plain",
    "cuda": "fla.fused_recurrent_gated_delta_rule",
}
MOST_S = {"cpu": 60.0, "cuda": 15.0}
SIZES = {"B": 1, "T": 512, "H": 2, "HV": 2, "K": 64, "V": 64}


def resized(cases: list[Any]) -> list[Any]:
    """The case list with the same sizes in all cases.

    Left out are empty cases, and those whose sequences lie at places of their own.
    """
    return [
        replace(case, sizes=tuple((name, SIZES[name]) for name, _ in case.sizes))
        for case in cases
        if all(size for _, size in case.sizes)
        and not {"cu_seqlens", "lengths"} & {*dict(case.options)}
    ]


def figures(device: str = "cpu", name: str | None = None) -> list[Figure]:
    """Seconds of the whole quick profile in fp32."""
    start = time.perf_counter()
    start_for_cuda(name or KERNELS[device], device)

    from scancheck import verify
    from scancheck.gate import loop
    from scancheck.registry import resolve_target

    (kernel,) = resolve_target(name or KERNELS[device], None)
    drawn = loop.case_list

    def case_list(*arguments: Any, **options: Any) -> list[Any]:
        return resized(drawn(*arguments, **options))

    with mock.patch.object(loop, "case_list", case_list):
        result = verify(
            kernel.name,
            dtypes=["fp32"],
            profile="quick",
            gradients=kernel.gradients,
            device=device,
        )
    # Of the cases: the run is BLIND to the parts of calls that were left out.
    if set(result.record.counts) != {"PASS"}:
        raise RuntimeError(f"{kernel.name}: expected passes; got {result.record}")
    with_gradients = "gradients" if kernel.gradients else "outputs"
    return [
        Figure(
            name="verify quick, matrix state",
            shape=f"{kernel.name} fp32 on {device}, {with_gradients}, T 512, H 2, "
            "K = V = 64 in all cases",
            value=time.perf_counter() - start,
            unit="s",
            target=MOST_S[device],
            at_least=False,
        )
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=MOST_S)
    parser.add_argument("--kernel")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    sys.exit(report(figures(options.device, options.kernel), options.output))
