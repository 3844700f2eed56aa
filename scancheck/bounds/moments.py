"""What rounding errors are likely to be: second moments, rho and lambda.

Where the sound budget is far above what a right kernel does, these see smaller faults.
They take roundings as independent and of mean zero, so they may judge only data that is
marked as such (numerics 2.8).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.bias import bias_of, rounded_functions
from scancheck.bounds.budget import storage_dtype
from scancheck.bounds.card import solve_moments_on_card
from scancheck.bounds.moment_number import MomentNumber
from scancheck.bounds.moment_system import MomentSystem
from scancheck.bounds.rules import rules_for, storage_error
from scancheck.contract import Contract
from scancheck.formats import FP32
from scancheck.ops.constant_decays import has_constant_decays
from scancheck.ops.normal_form import Op, spec_of, state_inputs
from scancheck.oracles.engine import solve

FloatArray = NDArray[np.float64]

RMS_OF_ROUNDING = math.sqrt(0.541 / 3)
"""Root mean square of one rounding to nearest in units of u |x|, 0.425, for
significands m of [1, 2) with density 1 / (m ln 2): the error is uniform up to half an
ulp, u for |x| = m, so its square is u^2 / 3 times the mean of 1 / m^2, 3 / (8 ln 2) =
0.541."""

RHO_CEILING = 2.35
"""1 / RMS_OF_ROUNDING: independent errors of mean zero, each of at most u |x|, cannot
have a larger rho in expectation."""


def moments_for(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    contract: Contract,
    dtype: str,
    cotangents: Mapping[str, FloatArray] | None = None,
    *,
    device: str = "cpu",
) -> dict[str, FloatArray] | None:
    """sqrt(v) of every output and, where cotangents are given, gradient, by name.

    v is the sum of the squares of u |result| over all roundings on the way to an
    element, carried to it by derivatives (numerics 2.8), with those of the state's and
    the output's storage. The roundings are those of a sequential scan; those of a step
    size count anew in each state that it enters. To v comes the square of what more
    functions may be off by, all in one direction (`bias`).

    Left out are gradients summed over time: their terms share the errors of states and
    are not independent. None for compensated and log-space contracts, whose largest
    roundings are not independent either, unless operands of matrix products are
    shorter, which then have the largest ones; for transitions that are not diagonal
    (`contract_emulation` has chunks of those); and where every step errs in the same
    direction: for constant decays that are exponentials (a correct fp32 kernel gave rho
    up to 16), and for computation shorter than fp32, where slow decays differ from one
    by a few ulps (correct bf16 scans gave rho up to 4).

    An output and an input never share a name, so one mapping holds both. With a CUDA
    `device` the moments of outputs alone are scanned there.
    """
    if contract.constant_decay == "exp" and has_constant_decays(op):
        return None
    rules = rules_for(contract, dtype)
    short = rules.compute.precision < FP32.precision
    products = rules.operand_cast is not None
    forms = contract.log != "none" and not products
    if forms or contract.comp != "none" or short or not op.diagonal:
        return None
    there = device != "cpu" and not op.reads_before
    independent = rounded_functions(rules)
    if there and cotangents is None and not products:
        solution = solve_moments_on_card(independent, op, tensors, switches, device)
    else:
        solution = solve(MomentSystem(independent), op, tensors, switches, cotangents)
    numbers = {**solution.outputs, **solution.gradients}
    kept = {
        name: number
        for name, number in numbers.items()
        if name in state_inputs(op) or not _sums_time(op, name, len(number.shape))
    }
    roots = {name: _root(op, name, number, dtype) for name, number in kept.items()}
    where = device if there and cotangents is None else "cpu"
    exact = {name: number.value for name, number in kept.items()}
    bias = bias_of(rules, op, tensors, switches, exact, cotangents, device=where)
    return {name: np.hypot(root, bias[name]) for name, root in roots.items()}


def _sums_time(op: Op, name: str, rank: int) -> bool:
    """Whether a tensor is an input that all time steps share."""
    spec = spec_of(op, name, rank)
    output = any(name == other.name for other in op.outputs)
    return not output and op.time_axis not in spec.axes


def _root(op: Op, name: str, number: MomentNumber, dtype: str) -> FloatArray:
    """sqrt(v) after the store into the tensor's format."""
    store = storage_error(storage_dtype(op, name, dtype, len(number.shape)))
    rules = number.rules
    if store.largest < rules.overflow or store.u > rules.u:
        number = number.stored(store)
    return np.sqrt(number.moment)


def rho(error: FloatArray, root_v: FloatArray) -> float:
    """Measured over predicted root mean square of the error; 0 where both vanish.

    Source: numerics 2.8. NaN where an error is not finite.
    """
    predicted = RMS_OF_ROUNDING * _rms(root_v)
    measured = _rms(error)
    if predicted == 0.0:
        return math.inf if measured > 0.0 else 0.0
    return measured / predicted


def _rms(x: FloatArray) -> float:
    """Root mean square, safe at the ends of the range."""
    top = float(np.max(np.abs(x), initial=0.0))
    if top == 0.0 or not math.isfinite(top):
        return top
    return top * float(np.sqrt(np.mean((x / top) ** 2)))


def rho_limit(chains: int) -> float:
    """The largest rho that independent roundings explain, for so many chains.

    2.35 (1 + 3 / sqrt(2 chains)): the ceiling of the expectation, and three standard
    deviations of a root mean square over `chains` independent errors (numerics 2.8).
    """
    return RHO_CEILING * (1.0 + 3.0 / math.sqrt(2.0 * chains))


def lambda_factor(count: int, p: float) -> float:
    """lambda such that some |err| > lambda sqrt(v) among `count` has probability <= p.

    l = sqrt(2 ln(2 count / p)) for roundings alone: Hoeffding's inequality in Azuma's
    form for martingale differences bounded by u |result|, and a union over all elements
    (numerics 2.8; Higham and Mary 2019; Hallman and Ipsen 2022). With a bias of at most
    b beside roundings of sizes s_i, |err| <= l sqrt(sum s_i^2) + b, which is at most
    sqrt(l^2 + 1) sqrt(v) by Cauchy and Schwarz.
    """
    return math.sqrt(2.0 * math.log(2.0 * count / p) + 1.0)
