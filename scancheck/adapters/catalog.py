"""Other people's kernels in our calling form, one module each.

A package behind an adapter is imported when its kernel is first called; whether it can
run here is told from installed versions alone.
"""

from scancheck.adapters.mambapy_pscan import mambapy_pscan
from scancheck.adapters.torch_associative_scan import torch_associative_scan
from scancheck.kernel import Kernel


def adapters() -> tuple[Kernel, ...]:
    """Every adapted kernel, those that cannot run here with the reason."""
    return (
        mambapy_pscan(),
        torch_associative_scan("generic"),
        torch_associative_scan("pointwise"),
    )
