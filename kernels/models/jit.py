"""Numba compilation for the models of CUDA kernels."""

from pathlib import Path

from scancheck.jit import jit_of

jit = jit_of("numba-models", (Path(__file__).parent,))
