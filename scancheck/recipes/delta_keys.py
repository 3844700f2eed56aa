"""Keys and strengths that the delta rule, and inverses of its chunks, are tried by.

A step is S <- (I - beta k k^T) S + beta k v^T after its gate; a chunk of them is solved
through L = I + tril(diag(beta) K K^T, -1) (numerics 2.10). rwkv7 does the same where
its keys are given (see heads.py). Gates are slow, so that keys meet.
"""

import math

import numpy as np

from scancheck.formats import FloatArray, IntArray, round_array
from scancheck.recipes.chains import Chains, Plan, draws
from scancheck.recipes.heads import unit
from scancheck.recipes.range_edges import NARROW
from scancheck.recipes.streams import bell, integers, signed, signs, uniform

REPEATED_BETAS = (0.5, 1.0, 1.98, 2.0)
BETA_EDGES = (0.0, 2.0**-20, 1.0, 2.0 - 2.0**-8, 2.0)
STRENGTHS = (1.9, 2.0, 2.004, 2.1)  # of beta |k|^2
MOST_READ = 16  # keys, where results are to be exact


def _chains(plan: Plan, keys: FloatArray, beta: FloatArray) -> Chains:
    """Slow gates and ordinary data under these keys and strengths.

    A mirror keeps what is written, as unit decay does: drives shrink as the sequence
    grows, so that the state stays in fp16's range.
    """
    drive = bell(draws(plan, "drive"), plan.sequence)
    memory = np.array([plan.chunk, 4 * plan.chunk, 2 * plan.steps + 2])
    chosen = integers(draws(plan, "speed"), 0, len(memory) - 1, plan.speeds)
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=1.0 / np.maximum(memory, 4.0)[chosen],
        drive=np.ldexp(drive, -3 - max(0, (plan.steps.bit_length() - 9) // 2)),
        state=bell(draws(plan, "state"), plan.state),
        keys=keys,
        beta=beta,
    )


def _per_chunk(plan: Plan, values: FloatArray) -> FloatArray:
    """[B, chunks, ...] repeated over the tokens of each chunk."""
    return values[:, np.arange(plan.steps) // plan.chunk]


def _one_per_chunk(plan: Plan) -> FloatArray:
    """A unit key for each chunk, [B, chunks, H, K]."""
    chunks = -(-plan.steps // plan.chunk)
    shape = (plan.batch, chunks, plan.groups, plan.states)
    return unit(bell(draws(plan, "keys"), shape))


def _in_turn(plan: Plan, count: int, heads: int) -> IntArray:
    """[B, 1, heads]: 0 to count - 1 in turn over batch rows and heads."""
    first = int(integers(draws(plan, "first"), 0, count - 1, ()))
    place = np.arange(plan.batch * heads).reshape(plan.batch, 1, heads)
    return (place + first) % count


def _throughout(plan: Plan, values: tuple[float, ...], heads: int) -> FloatArray:
    """[B, T, heads]: one of the values for each batch row and head."""
    chosen = np.array(values)[_in_turn(plan, len(values), heads)]
    return np.broadcast_to(chosen, (plan.batch, plan.steps, heads)).copy()


def _beta(plan: Plan, low: float, high: float) -> FloatArray:
    """Strengths [B, T, HV] at random."""
    shape = (plan.batch, plan.steps, plan.heads)
    return uniform(draws(plan, "beta"), low, high, shape)


def repeated_keys(plan: Plan) -> Chains:
    """One key for a whole chunk, with beta of 1/2, 1, 1.98 or 2 throughout a head.

    The entries of L^-1 stay within 2, but Neumann series and doublings pass through
    powers as large as binomial(C, C/2) beta^(C/2), and lose every digit.

    Source: numerics.md 2.10 and 3, family 25 (FlashKDA#10).
    """
    keys = _per_chunk(plan, _one_per_chunk(plan))
    return _chains(plan, keys, _throughout(plan, REPEATED_BETAS, plan.heads))


def correlated_keys(plan: Plan) -> Chains:
    """Keys around one, in the plane of two, or all of them positive, by row and head.

    All entries of K K^T are large, and in the last case positive.

    Source: numerics.md 3, family 26.
    """
    noise = bell(draws(plan, "keys"), plan.keyed)
    shape = (plan.batch, 1, plan.groups, plan.states)
    one, other = (bell(draws(plan, f"{n} key"), shape) for n in ("one", "other"))
    near = unit(one) + 0.3 * unit(noise)
    share = bell(draws(plan, "share"), (2, *plan.keyed[:3], 1))
    plane = share[0] * one + share[1] * other
    positive = uniform(draws(plan, "positive"), 0.0, 1.0, plan.keyed)
    kind = _in_turn(plan, 3, plan.groups)[..., None]
    keys = np.where(kind == 0, near, np.where(kind == 1, plane, positive))
    return _chains(plan, unit(keys), _beta(plan, 0.25, 1.0))


def orthogonal_keys_wrap(plan: Plan) -> Chains:
    """Keys e_(t mod K) of either sign, beta 1, no decay, small integers: exact.

    Each token overwrites what was written K tokens ago and leaves the rest alone; what
    is read is at most 16 times the largest value written, 8. L is the identity within
    K tokens, and beyond them not.

    Source: numerics.md 3, family 27.
    """
    token = np.arange(plan.steps)[None, :, None, None]
    one = (np.arange(plan.states) == token % plan.states).astype(np.float64)
    keys = one * signs(draws(plan, "sign"), (*plan.keyed[:3], 1))
    reads = integers(draws(plan, "q"), -1, 1, plan.keyed).astype(np.float64)
    drive = integers(draws(plan, "drive"), -8, 8, plan.sequence)
    state = integers(draws(plan, "state"), -8, 8, plan.state)
    return Chains(
        step=np.ones(plan.sequence),
        speed=np.zeros(plan.speeds),
        drive=drive.astype(np.float64),
        state=state.astype(np.float64),
        keys=keys,
        reads=reads * (np.arange(plan.states) < MOST_READ),
        beta=np.ones((plan.batch, plan.steps, plan.heads)),
    )


def opposite_keys(plan: Plan) -> Chains:
    """k, -k, k, ... or the corners of a simplex in turn, by row and head.

    K + 1 corners have products of -1/K with each other. beta is 1 to 2.

    Source: numerics.md 3, family 28.
    """
    turn = np.where(np.arange(plan.steps) % 2, -1.0, 1.0)[None, :, None, None]
    opposite = turn * _per_chunk(plan, _one_per_chunk(plan))
    corners = simplex(plan.states)[np.arange(plan.steps) % (plan.states + 1)]
    kind = _in_turn(plan, 2, plan.groups)[..., None]
    keys = np.where(kind == 0, opposite, corners[None, :, None, :])
    return _chains(plan, keys, _beta(plan, 1.0, 2.0))


def simplex(dimension: int) -> FloatArray:
    """The corners of a regular simplex around 0, unit vectors [K + 1, K].

    Lower triangular: under the entry c_ii of the diagonal, which makes row i a unit
    vector, every row has -c_ii / (K - i), so that each column adds up to 0.
    """
    corners = np.zeros((dimension + 1, dimension))
    for i in range(dimension):
        rest = 1.0 - (corners[i, :i] ** 2).cumsum()[-1] if i else 1.0
        corners[i, i] = math.sqrt(max(rest, 0.0))
        corners[i + 1 :, i] = -corners[i, i] / (dimension - i)
    return corners


def beta_edges(plan: Plan) -> Chains:
    """beta of 0, 2**-20, 1, 2 - 2**-8 and 2 at random: nothing, a projection, a mirror.

    Source: numerics.md 3, family 29.
    """
    shape = (plan.batch, plan.steps, plan.heads)
    chosen = integers(draws(plan, "beta"), 0, len(BETA_EDGES) - 1, shape)
    keys = unit(bell(draws(plan, "keys"), plan.keyed))
    return _chains(plan, keys, np.array(BETA_EDGES)[chosen])


def unnormalised_keys(plan: Plan) -> Chains:
    """beta |k|^2 of 1.9, 2, 2.004 or 2.1 under a key that stays for a chunk.

    Beyond 2 the state, and L^-1, grow by beta |k|^2 - 1 at each token: a norm rounded
    to bf16 is enough. Growth ends at 2**20 (fp16: 4), where the strength becomes 1.9.

    Source: numerics.md 2.10 and 3, family 30 (fla-org/flash-linear-attention#806).
    """
    bound = math.log(2.0) * (2.0 if -plan.fmt.emin < NARROW else 20.0)
    strength = _throughout(plan, STRENGTHS, plan.groups)
    grown = np.maximum(strength - 2.0, 0.0).cumsum(axis=1)
    strength[grown > bound] = STRENGTHS[0]
    # The value heads of a key share its beta, and so its strength.
    beta = uniform(draws(plan, "beta"), 0.5, 1.0, strength.shape)
    size = np.sqrt(strength / beta)
    keys = size[..., None] * _per_chunk(plan, _one_per_chunk(plan))
    return _chains(plan, keys, np.repeat(beta, plan.heads // plan.groups, axis=-1))


def converged_state(plan: Plan) -> Chains:
    """Values that the state gives already, save 2**-10 of their size; no decay.

    The first 2 K tokens write what the rest find: v - S^T k cancels to what is new, and
    a product S^T k rounded to a short format before the difference loses it.

    Source: numerics.md 2.10 and 3, family 31 (attention-gym#465).
    """
    keys = round_array(plan.fmt, unit(bell(draws(plan, "keys"), plan.keyed)))
    beta = round_array(plan.fmt, _beta(plan, 0.5, 1.0))
    new = bell(draws(plan, "drive"), plan.sequence).reshape(*beta.shape, plan.width)
    first = signed(draws(plan, "state"), 0.5, 1.5, plan.state)
    by_head = (plan.batch, plan.heads, plan.width, plan.states)
    state = (first if plan.initial_state else np.zeros_like(first)).reshape(by_head)
    values = np.empty_like(new)
    k = np.repeat(keys, plan.heads // plan.groups, axis=2)
    for token in range(plan.steps):
        key = k[:, token, :, None, :]
        known = (state * key).cumsum(axis=-1)[..., -1]
        if token < 2 * plan.states:
            values[:, token] = round_array(plan.fmt, new[:, token])
        else:
            values[:, token] = round_array(
                plan.fmt, known + np.ldexp(new[:, token], -10)
            )
        change = beta[:, token, :, None] * (values[:, token] - known)
        state = state + change[..., None] * key
    return Chains(
        step=np.ones(plan.sequence),
        speed=np.zeros(plan.speeds),
        drive=values.reshape(plan.sequence),
        state=first,
        keys=keys,
        beta=beta,
    )
