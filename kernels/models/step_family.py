"""What an op in step form has to say about itself: its tensors as steps, and back."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.reduction import ascending_sum
from scancheck.kernels.models.step_form import Steps

Inputs = dict[str, Array]  # by name, absent ones left out; sequences [T, B, ...]
Gradients = dict[str, Array]  # by name, in the layout of Inputs


def read_alone(arithmetic: Arithmetic, inputs: Inputs, o: Array) -> Array:
    """The read-out as it is, for ops without an epilogue."""
    return o


def read_alone_pullback(
    arithmetic: Arithmetic, inputs: Inputs, o: Array, ybar: Array
) -> tuple[Array, Gradients]:
    """obar, and no gradients."""
    return ybar, {}


def one_part(zeros: Array, state: Array | None) -> Array:
    """A state that is one tensor; zeros where it is absent."""
    return zeros if state is None else state


def only_part(state: Array) -> tuple[Array, ...]:
    """That tensor of a state."""
    return (state,)


def no_more(arithmetic: Arithmetic, inputs: Inputs) -> tuple[Array, ...]:
    """A final state that is S alone."""
    return ()


def as_they_are(
    arithmetic: Arithmetic,
    inputs: Inputs,
    gradients: Gradients,
    bars: tuple[Array, ...],
) -> Gradients:
    """Gradients that nothing is left to do to."""
    return gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An op on the step form, in model arithmetic.

    `epilogue(arithmetic, inputs, o)` gives the sequence output [T, B, ...] from
    o [T, ..., L]; `epilogue_pullback(arithmetic, inputs, o, ybar)` gives obar and
    gradients, to which those of `lower_pullback(arithmetic, inputs, steps, bars)` add.
    `state_in(zeros, part, ...)` puts a state [..., K, L] together, an absent part being
    None; `state_out(state)` takes it apart. Parts of the final state that are not in S
    come from `further_final(arithmetic, inputs)`, and `finish(arithmetic, inputs,
    gradients, bars)` gets all gradients with the cotangents of those parts.
    """

    names: tuple[str, ...]  # inputs; the first has the storage format
    optional: tuple[str, ...]  # of them
    sequences: frozenset[str]  # of them, those with axes [B, T, ...]
    lower: Callable[[Arithmetic, Inputs], Steps]
    lower_pullback: Callable[[Arithmetic, Inputs, Steps, Steps], Gradients]
    epilogue: Callable[[Arithmetic, Inputs, Array], Array] = read_alone
    epilogue_pullback: Callable[
        [Arithmetic, Inputs, Array, Array], tuple[Array, Gradients]
    ] = read_alone_pullback
    state: str = "initial_state"  # the input that is the initial state
    further_state: tuple[str, ...] = ()  # those with its further parts
    state_in: Callable[..., Array] = one_part
    state_out: Callable[[Array], tuple[Array, ...]] = only_part
    further_final: Callable[[Arithmetic, Inputs], tuple[Array, ...]] = no_more
    finish: Callable[[Arithmetic, Inputs, Gradients, tuple[Array, ...]], Gradients] = (
        as_they_are
    )
    value_major: bool = False  # states are [..., V, K] in the op's layout


def scale_of(arithmetic: Arithmetic, width: int) -> Array:
    """width**-0.5, rounded into the format as a kernel's argument is."""
    return arithmetic.rounded(np.asarray(width**-0.5))


def spread(x: Array, heads: int) -> Array:
    """[T, B, H, K] -> [T, B, heads, K]: head j is that of group j // (heads / H)."""
    return np.repeat(x, heads // x.shape[2], axis=2)


def gathered(arithmetic: Arithmetic, xbar: Array, groups: int) -> Array:
    """The cotangents of `spread`'s output summed over each group's heads, ascending."""
    steps, batch, heads, keys = xbar.shape
    xbar = xbar.reshape(steps, batch, groups, heads // groups, keys)
    return ascending_sum(arithmetic, xbar, 3)


def scaled_reads(arithmetic: Arithmetic, q: Array) -> Array:
    """K**-0.5 q."""
    return arithmetic.mul(scale_of(arithmetic, q.shape[-1]), q)


def attention_steps(
    arithmetic: Arithmetic,
    inputs: Inputs,
    *,
    decay: Array | None = None,
    log_decay: Array | None = None,
    value_decay: Array | None = None,
    beta: Array | None = None,
) -> Steps:
    """Steps from q, k [T, B, H, K] and v [T, B, HV, V]; q is scaled before it reads."""
    heads = inputs["v"].shape[2]
    return Steps(
        keys=spread(inputs["k"], heads),
        values=inputs["v"],
        reads=spread(scaled_reads(arithmetic, inputs["q"]), heads),
        decay=decay,
        log_decay=log_decay,
        value_decay=value_decay,
        beta=beta,
    )


def attention_pullback(
    arithmetic: Arithmetic, inputs: Inputs, bars: Steps
) -> Gradients:
    """The gradients of q, k and v."""
    groups = inputs["q"].shape[2]
    return {
        "q": scaled_reads(arithmetic, gathered(arithmetic, bars.reads, groups)),
        "k": gathered(arithmetic, bars.keys, groups),
        "v": bars.values,
    }


def log_decay_bar(arithmetic: Arithmetic, steps: Steps, bars: Steps) -> Array:
    """The cotangent of log w: as a chunk form gives it, or directly from that of w."""
    if bars.log_decay is not None:
        return bars.log_decay
    return gate_bar(arithmetic, steps.decay, bars.decay)


def gate_bar(arithmetic: Arithmetic, decay: Array | None, bar: Array | None) -> Array:
    """The cotangent of log w, formed directly: w times that of w."""
    assert decay is not None and bar is not None
    return arithmetic.mul(decay, bar)
