"""Other people's kernels in our calling form, one module each.

A package behind an adapter is imported when its kernel is first called; whether it can
run here is told from installed versions alone.
"""

from scancheck.adapters.accelerated_scan import accelerated_scans
from scancheck.adapters.fla import fla_kernels
from scancheck.adapters.flash_scan import flash_scan
from scancheck.adapters.jax_associative_scan import jax_associative_scan
from scancheck.adapters.mamba_ssm import mamba_ssm_kernels
from scancheck.adapters.mamba_ssm_step import mamba_ssm_steps
from scancheck.adapters.mambapy_pscan import mambapy_pscan
from scancheck.adapters.mambapy_selective_scan import mambapy_selective_scan
from scancheck.adapters.mlstm_kernels import mlstm_kernels
from scancheck.adapters.torch_associative_scan import torch_associative_scan
from scancheck.adapters.transformers import transformers_kernels
from scancheck.kernel import Kernel


def adapters() -> tuple[Kernel, ...]:
    """Every adapted kernel, those that cannot run here with the reason."""
    return (
        *accelerated_scans(),
        *fla_kernels(),
        flash_scan(),
        jax_associative_scan(),
        *mamba_ssm_kernels(),
        *mamba_ssm_steps(),
        mambapy_pscan(),
        mambapy_selective_scan("selective_scan"),
        mambapy_selective_scan("selective_scan_seq"),
        *mlstm_kernels(),
        torch_associative_scan("generic"),
        torch_associative_scan("pointwise"),
        *transformers_kernels(),
    )
