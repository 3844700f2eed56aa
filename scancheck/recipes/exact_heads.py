"""Exact data of the ops with heads: small integers, keys and readouts of -1, 0 and 1.

Outputs are scaled by K**-0.5, which is exact where K is a power of 4; build.py asks for
it. A decay is 1 or 0. No partial result has more than 8 bits.
"""

import numpy as np

from scancheck.formats import FloatArray, IntArray
from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.op_rules import lowered, rules_of
from scancheck.recipes.pairs import pair_tokens
from scancheck.recipes.streams import integers, signs

RESETTING = 8192.0  # a rate whose eighth is a reset as well: gv of gla
MOST_READ = 10  # keys that are read: 10 times 25, the largest state, is below 2**8
ERASED_READ = 16  # the same for a state that is overwritten, of 8 at most


def exact_heads(plan: Plan) -> Tensors:
    """exact_dyadic of an op with heads."""
    if plan.op == "ssd":
        return _ssd(plan)
    if rules_of(plan.op).erases:
        return lowered(plan, _erasing(plan))
    made = lowered(plan, _additive(plan))
    if "u" in made:
        made["u"] = _ones(plan, "u", made["u"].shape)
    return made


def _additive(plan: Plan) -> Chains:
    """Drives in pairs x, -x under equal keys, with gates that reset.

    At most two pairs are open at a time, and after a reset as many close that it cut,
    beside a first state of 2, one drive on the first and one on the last token: a state
    stays within 2 + 4 * 3 + 2 * 3 = 20, and with the bonus of rwkv6 within 23.
    """
    opened, closed = pair_tokens(plan)
    rows = np.arange(plan.batch)[:, None]
    keys = signs(draws(plan, "k"), plan.keyed)
    keys[rows, closed] = keys[rows, opened]
    resets = integers(draws(plan, "reset"), 0, 15, plan.sequence) == 0
    return Chains(
        step=np.where(resets, RESETTING, 0.0),
        speed=integers(draws(plan, "speed"), 0, 1, plan.speeds).astype(np.float64),
        drive=_paired(plan, opened, closed),
        state=integers(draws(plan, "state"), -2, 2, plan.state).astype(np.float64),
        keys=keys,
        reads=_ones(plan, "q", plan.keyed) * (np.arange(plan.states) < MOST_READ),
    )


def _paired(plan: Plan, opened: IntArray, closed: IntArray) -> FloatArray:
    """Drives x of 1 to 3 and -x at these tokens, one at either end, 0 elsewhere."""
    rows = np.arange(plan.batch)[:, None]
    drive = np.zeros(plan.sequence)
    for end in (slice(0, 1), slice(-1, None)):
        drive[:, end] = integers(
            draws(plan, f"end {end.start}"), 1, 3, drive[:, end].shape
        )
    pairs = (*opened.shape, plan.channels)
    size = integers(draws(plan, "drive"), 1, 3, pairs) * signs(
        draws(plan, "sign"), pairs
    )
    drive[rows, opened] = size
    drive[rows, closed] = -size
    return drive


def _erasing(plan: Plan) -> Chains:
    """One key of K at random for each token, beta 0 or 1, with gates that reset.

    What is written replaces what its key held, so that a state stays within 8. rwkv7
    erases what the state was before the reset, and writes nothing there.
    """
    chosen = integers(draws(plan, "key"), 0, plan.states - 1, plan.keyed[:3])
    keys = (chosen[..., None] == np.arange(plan.states)).astype(np.float64)
    resets = integers(draws(plan, "reset"), 0, 15, plan.sequence) == 0
    beta = integers(draws(plan, "beta"), 0, 1, (plan.batch, plan.steps, plan.heads))
    if plan.op == "rwkv7":
        beta[resets[:, :, : plan.heads]] = 0
    return Chains(
        step=np.where(resets, RESETTING, 0.0),
        speed=integers(draws(plan, "speed"), 0, 1, plan.speeds).astype(np.float64),
        drive=integers(draws(plan, "drive"), -8, 8, plan.sequence).astype(np.float64),
        state=integers(draws(plan, "state"), -8, 8, plan.state).astype(np.float64),
        keys=keys * signs(draws(plan, "sign"), (*chosen.shape, 1)),
        reads=_ones(plan, "q", plan.keyed) * (np.arange(plan.states) < ERASED_READ),
        beta=beta.astype(np.float64),
    )


def _ssd(plan: Plan) -> Tensors:
    """Steps of 0 or 1 per head and A = 0 or -8192, drives as in `_additive`.

    A step is 1 wherever a drive is not 0; elsewhere x says nothing but through D.
    """
    opened, closed = pair_tokens(plan)
    rows = np.arange(plan.batch)[:, None]
    chains = _additive(plan)
    shape = (plan.batch, plan.steps, plan.heads)
    step = integers(draws(plan, "step"), 0, 1, shape).astype(np.float64)
    step[rows, opened] = step[rows, closed] = 1.0
    step[:, :1] = step[:, -1:] = 1.0
    bias = integers(draws(plan, "bias"), 0, int(plan.bias), (plan.heads,))
    resetting = integers(draws(plan, "A"), 0, 1, (plan.heads,))
    values = chains.drive.reshape(*shape, plan.width)
    idle = integers(draws(plan, "idle"), -3, 3, values.shape)
    made = lowered(plan, chains)
    return made | {
        "x": np.where(step[..., None] == 0.0, idle, values),
        "dt": step - bias,
        "A": -RESETTING * resetting,
        "D": integers(draws(plan, "D"), -2, 2, (plan.heads,)).astype(np.float64),
        "z": np.zeros(values.shape),
        "dt_bias": bias.astype(np.float64),
    }


def _ones(plan: Plan, name: str, shape: tuple[int, ...]) -> FloatArray:
    """-1, 0 and 1 at random."""
    return integers(draws(plan, name), -1, 1, shape).astype(np.float64)


def place_in_heads(plan: Plan, place: FloatArray) -> Tensors:
    """values_tell_their_place of an op with heads: one key, that forgets at each token.

    The delta rule does so with beta = 1, others by their gates.
    """
    erases = rules_of(plan.op).erases
    first = (np.arange(plan.states) == 0).astype(np.float64)
    one = np.broadcast_to(first, plan.keyed).copy()
    chains = Chains(
        step=np.ones(plan.sequence),
        speed=np.full(plan.speeds, 0.0 if erases else RESETTING),
        drive=place,
        state=signs(draws(plan, "state"), plan.state),
        keys=one,
        reads=one,
        beta=np.ones((plan.batch, plan.steps, plan.heads)),
    )
    made = lowered(plan, chains)
    if "u" in made:
        made["u"] = np.zeros_like(made["u"])
    if plan.op == "ssd":
        bias = np.full(plan.heads, float(plan.bias))
        made |= {
            "dt": np.ones_like(made["dt"]) - bias,
            "D": np.zeros(plan.heads),
            "z": np.zeros_like(made["z"]),
            "dt_bias": bias,
        }
    return made
