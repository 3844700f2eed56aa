"""Decays between two places of one chunk, and how far off a kernel may form them.

The decay from after token j to after token t is exp(c_t - c_j), c the running sum of
log gates in the chunk, or the product of the decays in between. By log form:

    none      products, one token after the other
    segsum    exp of a sum over (j, t], formed anew for each pair
    diff      exp(c_t - c_j); with a gate for each key it stands inside a sum over keys,
              and kernels split it, exp(c_t - c_a) exp(c_a - c_j), at an anchor a that
              is at most ANCHOR tokens outside (j, t]
    factored  exp(c_t) exp(-c_j), which may leave the range

An exponent that is off by theta is off by the factor exp(theta) (1 + e0 + e1 |d|). The
parts of theta are those of `log_difference`; beside them each running sum may be
rounded once more where it is read, and once where it is brought to base 2.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.products import HUGE
from scancheck.bounds.rules import Rules, tree_depth
from scancheck.oracles.units import U64

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FORMS = ("none", "diff", "segsum", "factored")
ANCHOR = 16  # tokens of a sub-chunk: kernels anchor decays of each key at its ends


class Decay(NamedTuple):
    """Exact factors and bounds on their errors, of one shape."""

    value: FloatArray
    error: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDecays:
    """All decays of a chunk of C tokens; N is K with gates for each key, else 1."""

    between: Decay  # [G, N, C + 1, C + 1]: row t, column j: from place j to place t
    one: Decay  # [G, N, C]: those of the tokens themselves
    grown: FloatArray  # [G, N]: at least one, and any decay within the chunk
    inverse: FloatArray  # [G, N, C]: exp(-c_j) where it is formed, else one

    def at(self, late: IntArray, early: IntArray) -> Decay:
        """Factors from places `early` to places `late`, [G, N, late, early]."""
        rows, columns = late[:, None], early
        return Decay(*(x[:, :, rows, columns] for x in self.between))


def decays_of(
    rules: Rules, form: str, w: ErrorNumber, log_w: ErrorNumber | None
) -> ChunkDecays:
    """The decays of a chunk from w and log_w [G, C, N, 1]."""
    one = Decay(*(np.swapaxes(x[..., 0], 1, 2) for x in (w.value, w.error)))
    if (one.value == 1.0).all() and not one.error.any():
        return _none_at_all(one)
    if log_w is None or form == "none":
        return _by_products(rules, one)
    return _by_exponents(rules, form, one, log_w)


def _below(steps: int) -> NDArray[np.bool_]:
    """[C + 1, C + 1]: whether place j is not after place t."""
    return np.tri(steps + 1, dtype=bool)


def _none_at_all(one: Decay) -> ChunkDecays:
    groups, keys, steps = one.value.shape
    value = np.broadcast_to(
        _below(steps).astype(float), (groups, keys, steps + 1, steps + 1)
    )
    return ChunkDecays(
        between=Decay(value, np.zeros_like(value)),
        one=one,
        grown=np.ones((groups, keys)),
        inverse=np.ones((groups, keys, steps)),
    )


def _by_products(rules: Rules, one: Decay) -> ChunkDecays:
    """Products of decays, each with its own error and one rounding."""
    groups, keys, steps = one.value.shape
    value = np.zeros((groups, keys, steps + 1, steps + 1))
    error = np.zeros_like(value)
    value[:, :, 0, 0] = 1.0
    u = rules.u + U64
    for t in range(steps):
        w, off = one.value[..., t, None], one.error[..., t, None]
        before, e = value[:, :, t], error[:, :, t]
        value[:, :, t + 1] = w * before
        moved = np.abs(w) * e + off * (np.abs(before) + e)
        moved = moved + u * (np.abs(value[:, :, t + 1]) + moved) + rules.eta
        error[:, :, t + 1, : t + 1] = moved[..., : t + 1]
        value[:, :, t + 1, t + 1] = 1.0
    grown = np.maximum(1.0, (np.abs(value) + error).max((2, 3)))
    return ChunkDecays(
        between=_stored(rules, Decay(value, error)),
        one=one,
        grown=grown,
        inverse=np.ones((groups, keys, steps)),
    )


class _Sums(NamedTuple):
    """Running sums at places 0 .. C, [G, N, C + 1]."""

    log: FloatArray  # c
    share: FloatArray  # sums of what each gate and rounding adds to theta, in order
    rho: FloatArray  # what a sum has beside that
    read: FloatArray  # what rounding it once more, and in base 2, adds
    path: FloatArray  # sums of |l|


def _sums(rules: Rules, log_w: ErrorNumber) -> _Sums:
    gates = np.swapaxes(log_w.value[..., 0], 1, 2)
    errors = np.swapaxes(log_w.error[..., 0], 1, 2)
    u = rules.u + U64
    log, path, own = (_from_zero(x) for x in (gates, np.abs(gates) + errors, errors))
    if rules.structure.inner == "tree":
        depth = np.array([tree_depth(n + 1) for n in range(log.shape[2])])
        growth = np.expm1(depth * np.log1p(u))
        rho, share = growth * path + depth * rules.add_eta, own
    else:
        # Every sum before is off by at most 2 u times the sum of |c_i|.
        rho = u * (1.0 + u) * (np.abs(log) + own)
        rho = rho + 2.0 * u * u * np.cumsum(np.abs(log), 2) + rules.add_eta
        rho[..., 0] = 0.0
        share = own + np.cumsum(rho, 2)
    return _Sums(log, share, rho, 2.0 * u * (np.abs(log) + share), path)


def _from_zero(x: FloatArray) -> FloatArray:
    """Running sums with the empty one in front."""
    return np.concatenate([np.zeros_like(x[..., :1]), np.cumsum(x, 2)], 2)


def _by_exponents(
    rules: Rules, form: str, one: Decay, log_w: ErrorNumber
) -> ChunkDecays:
    groups, keys, steps = one.value.shape
    sums = _sums(rules, log_w)
    below, u = _below(steps), rules.u + U64
    late, early = np.arange(steps + 1)[:, None], np.arange(steps + 1)
    c, tree = sums.log, rules.structure.inner == "tree"
    d = np.where(below, c[..., :, None] - c[..., None, :], 0.0)
    gates = _reach(sums.share, late, early)
    e0, e1 = rules.exp
    if form == "segsum":
        reach = _reach(sums.path, late, early)
        theta = np.expm1((late - early).clip(0) * np.log1p(u)) * reach + 2.0 * u * reach
        own_errors = _from_zero(np.swapaxes(log_w.error[..., 0], 1, 2))
        theta = theta + _reach(own_errors, late, early)
        own = e0 + e1 * (np.abs(d) + theta)
    elif form == "factored":
        off = sums.share + sums.rho + sums.read
        theta = off[..., :, None] + off[..., None, :]
        each = e0 + e1 * (np.abs(c) + off)
        own = _both(each[..., :, None], each[..., None, :])
    elif keys == 1:
        ends = sums.rho + sums.read
        theta = gates + ends[..., None, :]
        theta = theta + (ends if tree else sums.read)[..., :, None]
        theta = theta + u * (np.abs(d) + theta)
        own = e0 + e1 * (np.abs(d) + theta)
    else:
        # Up to the outermost anchors, and back from them.
        high, low = (late + ANCHOR).clip(max=steps), (early - ANCHOR).clip(0)
        reach = _reach(sums.path, high, low)
        most = (sums.rho + sums.read).max(2)[..., None, None]
        theta = _reach(sums.share, high, low) + 4.0 * most
        theta = theta + 2.0 * u * (reach + theta)
        each = e0 + e1 * (reach + theta)
        own = _both(each, each)
    inverse, peak_of_inverse = np.ones_like(c), np.zeros_like(d)
    if form == "factored":
        inverse = np.exp(np.minimum(-c, HUGE))
        # What underflows in exp(c_t) meets exp(-c_j), and the other way round.
        peak_of_inverse = inverse[..., None, :] + np.exp(np.minimum(c, HUGE))[..., None]
    value = np.where(below, np.exp(np.minimum(d, HUGE)), 0.0)
    error = _off(value, d, theta, own) + rules.eta * (1.0 + peak_of_inverse)
    error = np.where(below, error, 0.0)
    rise = np.maximum(d, 0.0).max((2, 3))
    return ChunkDecays(
        between=_stored(rules, Decay(value, error)),
        one=one,
        grown=np.exp(np.minimum(rise, HUGE)),
        inverse=inverse[..., 1:],
    )


def _reach(running: FloatArray, late: IntArray, early: IntArray) -> FloatArray:
    """Of running sums what lies between two places, [G, N, C + 1, C + 1]."""
    index = np.broadcast_arrays(late, early)
    return np.maximum(running[..., index[0]] - running[..., index[1]], 0.0)


def _both(a: FloatArray, b: FloatArray) -> FloatArray:
    """Relative error of a product of two factors."""
    return a + b + a * b


def _off(
    f: FloatArray, d: FloatArray, theta: FloatArray, own: FloatArray
) -> FloatArray:
    """Error of exp(d) whose exponent is off by theta, `own` the function's error."""
    error = f * (np.expm1(np.minimum(theta, HUGE)) * (1.0 + own) + own)
    lifted = np.exp(np.minimum(d + theta, HUGE)) * (1.0 + own)
    return np.where(f == 0.0, lifted, error)


def _stored(rules: Rules, decay: Decay) -> Decay:
    """The decays after the cast that a contract names."""
    cast = rules.decay_cast
    if cast is None:
        return decay
    top = np.abs(decay.value) + decay.error
    return Decay(
        decay.value, decay.error + np.where(top > 0, cast.u * top + cast.eta, 0.0)
    )
