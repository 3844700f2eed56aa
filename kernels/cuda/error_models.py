"""What is claimed of the errors of the CUDA functions, e0 + e1 |x| in u = 2**-24.

By policy of kernels/cuda/sources/functions.cuh. `benchmarks/cuda_functions.py` measures
every function over all 2**32 inputs, and the claims are its maxima, rounded up. They
hold where the exact result is a normal number; below 2**-126 the exponentials, softplus
and sigmoid may give 0, and silu = x sigmoid(x) as soon as sigmoid does, below -87.3.

What Fast and Tabulated take from the hardware was measured on an H200 (sm_90). NVIDIA
guarantees less: 2 + floor(1.173 |x|) ulps, 2 u each, for exp; for log 2**-21.41 in
0.5 .. 2 and 3 ulps elsewhere ("CUDA C++ Programming Guide", mathematical functions,
intrinsic functions). That is what a Contract assumes by default.

e1 of Fast and Tabulated is the rounding of x log2(e): 1 u of the product and 0.22 u of
the constant, relative to x, become 1.22 |x| u in the exponential.

A decay is 2**(dt (A log2(e))). A log2(e), rounded once for all steps, is off by 1.22 u
as above. The bounds count the rounding of the product dt A themselves, and so that of
dt (A log2(e)); exp2_product of Reproducible has none, only one of the reduced argument,
which is at most 1/2: 2**-26 ln(2) = 0.18 u.
"""

from collections.abc import Mapping

from scancheck.contract import ErrorModel

E1 = 1.23
"""Of x rounded to x log2(e): 1 + 0.22 and products of both errors."""

REPRODUCIBLE_ERRORS: Mapping[str, ErrorModel] = {
    "exp2": ErrorModel(e0=1.14),
    "exp": ErrorModel(e0=1.41),
    "expm1": ErrorModel(e0=2.03),
    "log": ErrorModel(e0=1.46),
    "log1p": ErrorModel(e0=1.57),
    "softplus": ErrorModel(e0=2.66),
    "sigmoid": ErrorModel(e0=2.69),
    "silu": ErrorModel(e0=3.39),
}
REPRODUCIBLE_DECAY = ErrorModel(e0=1.32, e1=E1)
"""exp2_product(dt, fl(A log2(e))) for exp(dt A), whose product the bounds round: 1.14
of exp2 and 0.18 of the argument."""

FAST_ERRORS: Mapping[str, ErrorModel] = {
    "exp2": ErrorModel(e0=2.45),
    "exp2_shifted": ErrorModel(e0=2.55),  # exp2_product(x, 1), against 2**x
    "exp": ErrorModel(e0=2.42, e1=E1),
    "log": ErrorModel(e0=2.7, e1=1.78),  # e0 |log(x)| + e1
    "softplus": ErrorModel(e0=3.31, e1=E1),
    "sigmoid": ErrorModel(e0=3.03, e1=E1),
    "silu": ErrorModel(e0=3.78, e1=E1),
}
FAST_DECAY = ErrorModel(e0=FAST_ERRORS["exp2_shifted"].e0, e1=E1)
"""As REPRODUCIBLE_DECAY."""

TABULATED_ERRORS: Mapping[str, ErrorModel] = {
    "exp": FAST_ERRORS["exp"],
    "softplus": FAST_ERRORS["softplus"],
    "sigmoid": ErrorModel(e0=2.28, e1=E1),
    "silu": ErrorModel(e0=3.06, e1=E1),
}
TABULATED_DECAY = FAST_DECAY
