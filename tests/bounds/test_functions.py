"""exp, softplus, sigmoid, silu and its slope: error models over whole formats."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from machines.emulator import Machine
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber, exact_number
from scancheck.bounds.rules import rules_for
from scancheck.contract import Contract, ErrorModel
from scancheck.formats import BF16, FORMATS, FP16, FP32, Format, from_ordinal

Array = NDArray[Any]
WIDE = np.longdouble
MODEL = ErrorModel(e0=4.0, e1=2.35)


def every_value(fmt: Format) -> Array:
    """All finite values of a 16-bit format; for fp32 a grid to both ends of exp."""
    if fmt == FP32:
        rng = np.random.default_rng(0)
        edges = np.array([-104.0, -103.5, -88.8, -88.7, -87.4, -17.4, 0, 17.4, 88.7])
        grid = [rng.normal(0, s, 3000) for s in (1e-30, 1e-3, 1.0, 20.0, 40.0)]
        x = np.concatenate([*grid, edges, edges + 1e-4])
        return x.astype(np.float32).astype(float)
    top = 2 ** (fmt.precision - 1) * (fmt.emax - fmt.emin + 2)
    return from_ordinal(fmt, np.arange(-top + 1, top))


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))


def soft(x: Array) -> Array:
    """log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def computed_silu(m: Machine, x: Array) -> Array:
    """x / (1 + exp(-x)), each operation rounded."""
    return m.rounded(x / m.add(np.ones_like(x), m.exp(-x)))


def computed_slope(m: Machine, x: Array) -> Array:
    """s (1 + x (1 - s)), each operation rounded."""
    s, one = m.sigmoid(x), np.ones_like(x)
    return m.mul(s, m.add(one, m.mul(x, m.add(one, -s))))


def computed_reciprocal(m: Machine, x: Array) -> Array:
    """1 / x, rounded once."""
    return m.rounded(np.ones_like(x) / m.operand(x))


def slope(x: Array) -> Array:
    """The derivative of silu."""
    return logistic(x) * (1.0 + x * logistic(-x))


Case = tuple[
    Callable[[Machine, Array], Array],
    Callable[[Array], Array],
    Callable[[ErrorNumber], ErrorNumber],
]
FUNCTIONS: dict[str, Case] = {
    "exp": (Machine.exp, np.exp, ErrorNumber.exp),
    "softplus": (Machine.softplus, soft, ErrorNumber.softplus),
    "sigmoid": (Machine.sigmoid, logistic, ErrorNumber.sigmoid),
    "silu": (computed_silu, lambda x: x * logistic(x), ErrorNumber.silu),
    "silu_slope": (computed_slope, slope, ErrorNumber.silu_slope),
    "reciprocal": (computed_reciprocal, lambda x: 1.0 / x, ErrorNumber.reciprocal),
}


def contract(fmt: Format, ftz: str) -> Contract:
    """exp and softplus by the model; silu with what its own operations add to exp."""
    # 1 / (1 + exp(-x)) with exp off by E is off by E / (1 - E), far above E in bf16.
    room = 1.0 if fmt == FP32 else 4.0
    silu = ErrorModel(e0=8.0 * room, e1=2.35 * room)
    return Contract(compute=fmt.name, exp=MODEL, softplus=MODEL, silu=silu, ftz=ftz)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("fmt", [FP32, FP16, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_no_value_exceeds_its_error_model(name: str, fmt: Format, shift: float) -> None:
    """Every value of a 16-bit format, exact or off by up to `shift`."""
    run, exact, bound = FUNCTIONS[name]
    x = every_value(fmt)
    if fmt == BF16 and name != "exp" and name != "softplus":
        x = x[np.abs(x) < 80.0]  # beyond, the declared error of exp exceeds one
    rng = np.random.default_rng(1)
    off = shift * rng.choice([-1.0, 1.0], x.shape)
    for ftz, mode in (("no", "nearest"), ("no", "random"), ("yes", "flush")):
        m = Machine(
            fmt=fmt,
            direction="nearest" if mode == "flush" else mode,
            flush=mode == "flush",
            flush_inputs=mode == "flush",
            exp_error=(MODEL.e0, MODEL.e1),
            softplus_error=(MODEL.e0, MODEL.e1),
        )
        number = exact_number(rules_for(contract(fmt, ftz), fmt.name), x)
        number = number.like(x, np.abs(x), number.error + shift, np.abs(x))
        with np.errstate(all="ignore"):
            got = run(m, np.asarray(x + off, dtype=WIDE if m.exact else float))
            want = exact(x.astype(WIDE))
            allowed = bound(number)
            error = np.abs(got - want)
        in_range = allowed.peak <= fmt.largest
        assert np.all(error[in_range] <= allowed.error[in_range] * (1 + 1e-9)), mode
        assert in_range.sum() > 1000


def test_a_model_without_its_slope_is_exceeded() -> None:
    """e0 alone does not cover an exponential whose error grows with |x|."""
    x = -np.arange(1.0, 80.0)
    m = Machine(fmt=FP32, direction="away", exp_error=(4.0, 2.35))
    rules = rules_for(Contract(exp=ErrorModel(e0=4.0), ftz="no"), "fp32")
    error = np.abs(m.exp(np.asarray(x, dtype=WIDE)) - np.exp(x.astype(WIDE)))
    assert np.all(error > exact_number(rules, x).exp().error)


def test_exp_of_minus_infinity_is_exactly_zero() -> None:
    """A gate of -inf makes a decay of 0 with no error, and nothing overflows."""
    for name in FORMATS:
        rules = rules_for(Contract(compute=name), "fp32")
        number = exact_number(rules, np.array([-np.inf])).exp()
        assert number.value[0] == number.error[0] == number.peak[0] == 0.0


def test_silu_far_left_is_zero_where_exp_overflows() -> None:
    """x / (1 + exp(-x)) is 0 for x < -88.8: more than a relative error, yet in E."""
    x = np.array([-88.75, -90.0, -95.0])
    got = computed_silu(Machine(fmt=FP32), x.astype(np.float32).astype(float))
    assert np.array_equal(got, np.zeros(3))
    number = exact_number(rules_for(Contract(ftz="no"), "fp32"), x).silu()
    true = np.abs(x * logistic(x.astype(WIDE)))
    assert np.all(true > 1e-2 * np.abs(number.value))
    assert np.all(number.error >= true)


@pytest.mark.parametrize("off", [-0.999, 0.999])  # 1 / (1 - e) exceeds 1 + e
def test_default_models_cover_functions_built_on_the_default_exp(off: float) -> None:
    """silu and softplus made from an exp that errs as the contract allows pass.

    Far below zero both are that exp, so 4 u alone would fail a correct kernel.
    """
    u, contract = FP32.unit_roundoff, Contract(ftz="no")
    rules = rules_for(contract, "fp32")
    x = np.arange(-80.0, 0.0, 0.25)
    share = off * u * (contract.exp.e0 + contract.exp.e1 * np.abs(x))
    number = exact_number(rules, x)
    fast_silu = x / (1.0 + np.exp(-x) * (1.0 - share))
    fast_softplus = np.log1p(np.exp(x) * (1.0 + share))
    for fast, exact, bound in (
        (fast_silu, x * logistic(x), number.silu()),
        (fast_softplus, soft(x), number.softplus()),
    ):
        error = np.abs(fast - exact)
        assert (error <= bound.error).all()
        assert (error > 4.0 * u * np.abs(exact)).any()
