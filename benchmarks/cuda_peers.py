"""Kernels of other packages beside the CUDA kernels, imported when they are called.

A peer that is not installed raises ImportError at its first call. Layouts that a peer
needs are made before.
"""

from collections.abc import Callable, Mapping
from typing import Any

from naive_loops import linear_scan, selective_scan
from torch import Tensor

Call = Callable[[], Any]
LINEAR_PEERS = ("accelerated-scan", "flash-linear-attention")
SELECTIVE_PEERS = ("mamba_ssm",)


def accelerated_scan(a: Tensor, b: Tensor) -> Call:
    """accelerated-scan's Triton kernel, on its own layout [B, C, T]."""
    gates, tokens = a.mT.contiguous(), b.mT.contiguous()
    return accelerated_scan_of(gates, tokens)


def accelerated_scan_of(gates: Tensor, tokens: Tensor) -> Call:
    """The same on tensors that have its layout; h in it too."""

    def call() -> Any:
        from accelerated_scan.scalar import scan

        return scan(gates, tokens)

    return call


def chunk_hgrn(g: Tensor, b: Tensor) -> Call:
    """flash-linear-attention's chunked kernel."""

    def call() -> Any:
        from fla.ops.hgrn import chunk_hgrn

        return chunk_hgrn(b, g)

    return call


def linear_loop(a: Tensor, b: Tensor) -> Call:
    """A loop over time in PyTorch."""
    return lambda: linear_scan(a=a, b=b)["h"]


def mamba(tensors: Mapping[str, Tensor]) -> Call:
    """mamba_ssm's selective_scan_fn, softplus on."""

    def call() -> Any:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        return selective_scan_fn(**tensors, delta_softplus=True)

    return call


def selective_loop(tensors: Mapping[str, Tensor]) -> Call:
    """A loop over time in PyTorch."""
    return lambda: selective_scan(**tensors, delta_softplus=True)["y"]


def triton_selective_scan(tensors: Mapping[str, Tensor]) -> Call:
    """The plain Triton kernel of triton_scan.py."""

    def call() -> Any:
        from triton_scan import selective_scan

        return selective_scan(**tensors)

    return call
