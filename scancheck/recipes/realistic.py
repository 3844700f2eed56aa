"""Initialisations and ranges of published models, as their authors give them.

A kernel that fails here fails in use; one that fails only on the other recipes has a
limit that its users should know of. Token-dependent gates come from nearly normal
pre-activations of variance 1, as layers are initialised to give.
"""

import math

import numpy as np

from scancheck.formats import FloatArray
from scancheck.recipes.chains import Chains, Plan, Tensors, draws
from scancheck.recipes.elementary import exponential, logarithm, logistic
from scancheck.recipes.op_rules import lowered
from scancheck.recipes.scans import keys_shape
from scancheck.recipes.streams import bell, integers, uniform

LEAST_STEP, LARGEST_STEP = 1e-3, 1e-1
STRONGEST_GATE = 316.0


def mamba_initialisation(plan: Plan) -> Tensors:
    """A = -1..-N, steps log-uniform in 1e-3..1e-1 by an inverse-softplus bias.

    linear_scan has a channel per entry of A instead.

    Source: Gu and Dao, "Mamba" (2023), sections 3.5 and 3.6; mamba_simple.py of
    state-spaces/mamba (A_log = log 1..N, dt_min, dt_max, inv_dt, D = 1).
    """
    if plan.op == "linear_scan":
        return _discretised(plan, _orders(plan.channels, 16))
    return _selective(plan, np.broadcast_to(_orders(plan.states), plan.speeds))


def _orders(count: int, highest: int | None = None) -> FloatArray:
    """1, 2, ..., from 1 again past the highest."""
    return (1 + np.arange(count) % (highest or max(count, 1))).astype(np.float64)


def mamba2_initialisation(plan: Plan) -> Tensors:
    """One A per channel or head, uniform in -16..-1, with the steps of Mamba.

    Source: Dao and Gu, "Transformers are SSMs" (2024), and mamba2.py of
    state-spaces/mamba (A_init_range = (1, 16)).
    """
    per_channel = uniform(draws(plan, "A"), 1.0, 16.0, (plan.channels,))
    if plan.op == "linear_scan":
        return _discretised(plan, per_channel)
    speed = np.broadcast_to(per_channel[:, None], plan.speeds)
    if plan.op == "ssd":
        return lowered(plan, _at_initialisation(plan, speed)) | {
            "B": bell(draws(plan, "B"), plan.keyed),
            "C": bell(draws(plan, "C"), plan.keyed),
            "D": np.ones(plan.heads),
        }
    return _selective(plan, speed)


def _steps(plan: Plan) -> tuple[FloatArray, FloatArray]:
    """softplus(bias + x) [B, T, D] with x of deviation 1/2, and the bias [D].

    The bias is the inverse softplus of a step that is log-uniform in 1e-3..1e-1.
    """
    low, high = (math.log(step) for step in (LEAST_STEP, LARGEST_STEP))
    step = exponential(uniform(draws(plan, "dt"), low, high, (plan.channels,)))
    bias = logarithm(exponential(step) - 1.0)
    x = bias + 0.5 * bell(draws(plan, "delta"), plan.sequence)
    return logarithm(1.0 + exponential(x)), bias


def _selective(plan: Plan, speed: FloatArray) -> Tensors:
    """selective_scan's tensors of a layer at initialisation; D is 1, B and C normal."""
    return lowered(plan, _at_initialisation(plan, speed)) | {
        "B": bell(draws(plan, "B"), keys_shape(plan)),
        "C": bell(draws(plan, "C"), keys_shape(plan)),
        "D": np.ones(plan.channels),
        "z": bell(draws(plan, "z"), (plan.batch, plan.channels, plan.steps)),
    }


def _at_initialisation(plan: Plan, speed: FloatArray) -> Chains:
    """Chains of a layer; a state from earlier tokens is as large as the inputs."""
    step, bias = _steps(plan)
    return Chains(
        step=step,
        speed=np.asarray(speed),
        drive=bell(draws(plan, "u"), plan.sequence) / 4.0,
        state=bell(draws(plan, "state"), plan.state),
        bias=bias,
    )


def _discretised(plan: Plan, speed: FloatArray) -> Tensors:
    """linear_scan's decay exp(-step speed) and drive step B u."""
    step, _ = _steps(plan)
    drive = bell(draws(plan, "B"), plan.sequence) * bell(
        draws(plan, "u"), plan.sequence
    )
    return _of_logs(plan, -step * speed, step * drive)


def _of_logs(plan: Plan, log_decay: FloatArray, drive: FloatArray) -> Tensors:
    """The op's tensors for the logarithms of decays."""
    if plan.op != "linear_scan":
        chains = Chains(
            step=-log_decay,
            speed=np.ones(plan.speeds),
            drive=drive,
            state=bell(draws(plan, "state"), plan.state),
        )
        return lowered(plan, chains)
    gate = {"g": log_decay} if plan.form == "g" else {"a": exponential(log_decay)}
    return gate | {
        "b": drive,
        "initial_state": bell(draws(plan, "state"), plan.state[:2]),
    }


def hgrn_lower_bounds(plan: Plan) -> Tensors:
    """f = low + (1 - low) sigmoid(x), drive (1 - f) silu(x'), a bound per channel.

    The bounds of a model's layers rise from 0 in the lowest towards 1.

    Source: Qin, Yang and Zhong, "Hierarchically gated recurrent neural network for
    sequence modeling" (2023), section 3.
    """
    layers = 24
    layer = integers(draws(plan, "layer"), 0, layers - 1, (plan.channels,))
    low = layer / layers
    decay = low + (1.0 - low) * logistic(bell(draws(plan, "f"), plan.sequence))
    x = bell(draws(plan, "c"), plan.sequence)
    return _of_logs(plan, logarithm(decay), (1.0 - decay) * x * logistic(x))


def rg_lru_decays(plan: Plan) -> Tensors:
    """a = sigmoid(Lambda)**(c r) with c = 8, a**c uniform in 0.9..0.999 for r = 1.

    Drive sqrt(1 - a^2) (i x) with input and recurrence gates i, r = sigmoid(.).

    Source: De, Smith et al., "Griffin" (2024), section 2.4 and appendix A.
    """
    strongest = uniform(draws(plan, "Lambda"), 0.9, 0.999, (plan.channels,))
    r = logistic(bell(draws(plan, "r"), plan.sequence))
    log_decay = r * logarithm(strongest)
    decay = exponential(log_decay)
    i = logistic(bell(draws(plan, "i"), plan.sequence))
    x = bell(draws(plan, "x"), plan.sequence)
    return _of_logs(plan, log_decay, np.sqrt(1.0 - decay * decay) * (i * x))


def min_gru_gates(plan: Plan) -> Tensors:
    """Decay 1 - z and drive z h with z = sigmoid(x), h normal.

    Source: Feng et al., "Were RNNs all we needed?" (2024), section 3.1.
    """
    x = bell(draws(plan, "z"), plan.sequence)
    drive = logistic(x) * bell(draws(plan, "h"), plan.sequence)
    return _of_logs(plan, logarithm(logistic(-x)), drive)


def gla_gates(plan: Plan) -> Tensors:
    """Log gates log sigmoid(x) / 16: memories of about twenty tokens.

    Source: Yang et al., "Gated linear attention transformers with hardware-efficient
    training" (2023), section 4.4 (temperature 16).
    """
    x = bell(draws(plan, "gate"), plan.sequence)
    drive = bell(draws(plan, "k"), plan.sequence) * bell(
        draws(plan, "v"), plan.sequence
    )
    return _of_logs(plan, logarithm(logistic(x)) / 16.0, drive)


def mlstm_forget_gates(plan: Plan) -> Tensors:
    """Forget gates sigmoid(x + bias), the bias from 3 to 6 over the channels.

    Source: Beck et al., "xLSTM" (2024), and the mLSTM cell of NX-AI/xlstm (forget-gate
    bias linear from 3 to 6).
    """
    bias = 3.0 + 3.0 * np.arange(plan.channels) / max(plan.channels - 1, 1)
    x = bias + bell(draws(plan, "f"), plan.sequence)
    drive = bell(draws(plan, "k"), plan.sequence) * bell(
        draws(plan, "v"), plan.sequence
    )
    return _of_logs(plan, logarithm(logistic(x)), drive)


def deep_log_gates(plan: Plan) -> Tensors:
    """Log gates from 0 down to -316, as measured in a gated delta net.

    Uniform in the logarithm from 2**-10 to 316, so that a sequence has gates of 0,
    -1e-3, -0.1, -5, -50 and -316 next to each other.

    Source: ggml-org/llama.cpp#22794 (test inputs replaced by measured ranges).
    """
    low, high = -10.0 * math.log(2.0), math.log(STRONGEST_GATE)
    size = exponential(uniform(draws(plan, "gate"), low, high, plan.sequence))
    open_ = integers(draws(plan, "open"), 0, 7, plan.sequence) == 0
    log_decay = -np.where(open_, 0.0, size)
    return _of_logs(plan, log_decay, bell(draws(plan, "drive"), plan.sequence))
