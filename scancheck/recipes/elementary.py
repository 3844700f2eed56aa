"""exp, log and the logistic function by IEEE operations alone: the same on any machine.

Recipes may not take them from a library, whose last bits differ between machines.
"""

import math

import numpy as np

from scancheck.formats import FloatArray

LN2_HIGH = 0.6931471803691238  # 32 bits: its products with small integers are exact
LN2_LOW = 1.9082149292705877e-10


def exponential(x: FloatArray) -> FloatArray:
    """exp(x) to a few ulp, where it is in range."""
    power = np.rint(x / math.log(2.0))
    rest = (x - power * LN2_HIGH) - power * LN2_LOW
    scaled = np.ldexp(exponential_of_small(rest), power.astype(np.int64))
    return np.asarray(scaled, dtype=np.float64)


def exponential_of_small(x: FloatArray) -> FloatArray:
    """exp(x) for |x| <= 1 to a few ulp.

    Eleven terms of the series at x / 8 leave 2**-33 / 11! < 2**-58; three squarings.
    """
    small = x / 8.0
    value = np.ones_like(x)
    for n in range(10, 0, -1):
        value = 1.0 + value * small / n
    for _ in range(3):
        value = value * value
    return value


def logarithm(x: FloatArray) -> FloatArray:
    """log(x) for positive x to a few ulp.

    log m = 2 artanh z with z = (m - 1) / (m + 1) for m in [sqrt(1/2), sqrt(2)): twelve
    terms of the series leave z**24 / 25 < 2**-65 of it.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    m = np.where(low, 2.0 * mantissa, mantissa)
    power = exponent - low
    z = (m - 1.0) / (m + 1.0)
    series = np.zeros_like(z)
    for n in range(23, 0, -2):
        series = 1.0 / n + z * z * series
    return power * LN2_HIGH + (2.0 * z * series + power * LN2_LOW)


def logistic(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)) to a few ulp."""
    return 1.0 / (1.0 + exponential(-x))
