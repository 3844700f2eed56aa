"""The rules as the arrays that the compiled scans read."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds import error_scan as scan
from scancheck.bounds.rules import (
    Rules,
    additions,
    additions_age,
    ageless_additions,
)

FloatArray = NDArray[np.float64]

# A compensated step forms the errors of a product and a sum and adds them to its rest:
# at most six results that may underflow, where a plain step has one of each kind.
COMPENSATED_FLOORS = 6.0
# Rests of a tree: with n products and d additions on a path, each of n + d errors
# passes at most 6 d roundings among the B and 2.5 n among the A, and the products of
# two rests that are left out add n (1.5 n + d); together below 6 (n + d)^2 u^2.
SECOND_ORDER = 6.0
# A table of so many steps at least, for all shorter sequences.
SHORTEST_TABLE = 1024


def coefficients(rules: Rules) -> FloatArray:
    """The rules as the vector that the compiled scan reads."""
    c = np.zeros(scan.COEFFICIENTS)
    floors = 1.0 if rules.comp == "none" else COMPENSATED_FLOORS
    c[scan.U] = rules.u
    c[scan.ETA], c[scan.ADD_ETA] = floors * rules.eta, floors * rules.add_eta
    c[scan.STATE_U], c[scan.STATE_ETA] = rules.state_u, rules.state_eta
    c[scan.STATE_LARGEST] = rules.state_largest
    c[scan.TREES], c[scan.FMA] = float(rules.trees), float(rules.fma)
    c[scan.COMP] = {"none": 0.0, "kahan": 1.0, "full": 2.0}[rules.comp]
    c[scan.PRODUCTS] = float(rules.partial_products)
    c[scan.STEP_U] = step_error(rules)
    return c


def step_error(rules: Rules) -> float:
    """What a term's relative error gains with each step of its age.

    One product always, and one addition where additions come with age.
    """
    match rules.comp:
        case "full":
            return 0.0
        case "none" if additions_age(rules):
            # (1 + u)(1 + sum_u) - 1, also where u is fp64's
            return rules.u + rules.sum_u * (1.0 + rules.u)
        case _:
            return rules.u


def path_table(rules: Rules, total: int) -> FloatArray:
    """The table that `error_scan` reads, [total + 1, PATH_COLUMNS].

    No row depends on `total`: many lengths share one table, which nobody writes to.
    """
    return _longer_table(rules, max(SHORTEST_TABLE, 1 << (total - 1).bit_length()))[
        : total + 1
    ]


@lru_cache(maxsize=4)
def _longer_table(rules: Rules, total: int) -> FloatArray:
    """Counting additions takes longer than a scan of a few lanes."""
    steps = np.arange(total + 1, dtype=np.float64)
    adds = np.array(
        [additions(rules.structure, t) for t in range(total + 1)], dtype=np.float64
    )
    one, more = np.log1p(rules.u), np.log1p(rules.sum_u)
    table = np.empty((total + 1, scan.PATH_COLUMNS))
    table[:, scan.STEPS], table[:, scan.ADDS] = steps, adds
    if rules.comp == "none":
        fixed = adds
        if additions_age(rules):
            fixed = np.array(
                [ageless_additions(rules.structure, t) for t in range(total + 1)],
                dtype=np.float64,
            )
        table[:, scan.GROWTH] = _power(fixed * more)
    else:
        table[:, scan.GROWTH] = 0.0
    table[:, scan.GROWN] = 1.0 + _power(2.0 * steps * one + adds * more)
    table[:, scan.SECOND] = _power(SECOND_ORDER * (steps + adds) * one)
    return table


def _power(exponent: FloatArray) -> FloatArray:
    """exp(x) - 1, held finite: times 0 it has to stay 0."""
    return np.asarray(np.expm1(np.minimum(exponent, 690.0)))
