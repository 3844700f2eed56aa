"""What is claimed of the errors of the CUDA functions, e0 + e1 |x| in u = 2**-24.

`benchmarks/cuda_functions.py` measures every one over all 2**32 inputs; the claims are
its maxima, rounded up. They hold where the exact result is a normal number; below
2**-126 the exponentials, softplus, sigmoid and silu may give 0. silu = x sigmoid(x)
loses its value already where sigmoid falls below, from x = -87.3 down.

A decay is 2**p with p = dt (A log2(e)): A log2(e) is off by 1.22 u (the constant by
0.22 u, the product by 1 u), which the exponential turns into 1.22 |x| u for x = dt A. A
rounded p adds another |x| u; exp2_product rounds none. Fast rounds x log2(e) alike.
"""

from collections.abc import Mapping

from scancheck.contract import ErrorModel

LOG2_E_ERROR = 1.22
"""Relative error of fl(A fl(log2 e)) in u: 2**-24 for the product, and of the constant
0x1.4ae0cp-26 / log2(e)."""

REPRODUCIBLE_ERRORS: Mapping[str, ErrorModel] = {
    "exp2": ErrorModel(e0=1.15),
    "exp": ErrorModel(e0=1.45),
    "expm1": ErrorModel(e0=2.1),
    "log": ErrorModel(e0=1.5),
    "log1p": ErrorModel(e0=1.5),
    "softplus": ErrorModel(e0=2.6),
    "sigmoid": ErrorModel(e0=2.7),
    "silu": ErrorModel(e0=3.6),
}
