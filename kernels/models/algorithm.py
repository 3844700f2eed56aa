"""Which scan a model runs, and its one entry, forwards and for the adjoint."""

from dataclasses import dataclass

import numpy as np

from scancheck.formats import Format
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.combine import COMBINES, Affine, value
from scancheck.kernels.models.hillis_steele import hillis_steele
from scancheck.kernels.models.log_difference import log_difference
from scancheck.kernels.models.sequential import sequential
from scancheck.kernels.models.two_pass_chunked import two_pass_chunked


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A scan algorithm with its options."""

    name: str  # sequential, hillis_steele, chunk
    variant: str  # plain, kahan, full, log_diff
    chunk: int | None = None  # steps per chunk
    inner: str = "sequential"  # order inside a chunk: sequential or tree
    state: Format | None = None  # format of the carried state; None: as computed
    state_every: int = 1  # for sequential: steps between two roundings of the state


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a scan, each field [T, lanes] or absent."""

    drive: Array
    decay: Array
    decay_rest: Array | None = None  # low word of a decay computed as an exponential
    log_decay: Array | None = None


def exponential_steps(
    arithmetic: Arithmetic, algorithm: Algorithm, log_decay: Array, drive: Array
) -> Steps:
    """Steps whose decay is an exponential; fully compensated, with its low word."""
    decay_rest = None
    if algorithm.variant == "full":
        decay, decay_rest = arithmetic.exp_pair(log_decay)
    else:
        decay = arithmetic.exp(log_decay)
    return Steps(drive=drive, decay=decay, decay_rest=decay_rest, log_decay=log_decay)


def scan(
    arithmetic: Arithmetic, algorithm: Algorithm, steps: Steps, initial: Array
) -> Array:
    """The states after each step, [T, lanes], from the initial state [lanes]."""

    def store(state: Affine) -> Affine:
        if algorithm.state is None:
            return state
        return Affine(drive=arithmetic.cast(algorithm.state, value(arithmetic, state)))

    start = Affine(drive=initial)
    if algorithm.variant == "log_diff":
        assert steps.log_decay is not None
        assert algorithm.chunk is not None
        return log_difference(
            arithmetic,
            steps.log_decay,
            steps.drive,
            start,
            chunk=algorithm.chunk,
            inner=algorithm.inner,
            store=store,
        )
    combine = COMBINES[algorithm.variant]
    maps = Affine(drive=steps.drive, decay=steps.decay, decay_rest=steps.decay_rest)
    match algorithm.name:
        case "sequential":
            return sequential(
                arithmetic,
                combine,
                maps,
                start,
                store=store,
                store_every=algorithm.state_every,
            )
        case "hillis_steele":
            return hillis_steele(arithmetic, combine, maps, start)
        case _:
            assert algorithm.chunk is not None
            return two_pass_chunked(
                arithmetic,
                combine,
                maps,
                start,
                chunk=algorithm.chunk,
                inner=algorithm.inner,
                store=store,
            )


def adjoint_scan(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    steps: Steps,
    cotangents: Array,
    final: Array,
) -> tuple[Array, Array]:
    """The cotangents G_t of the states, [T, lanes], and that of the initial state.

    G_t = cotangents_t + a_{t+1} G_{t+1}: the same scan on reversed time, chunks counted
    from the end. It starts from the cotangent of the final state through a decay of
    exactly one, and ends with dS_0 = a_1 G_1 (numerics 2.9).
    """
    if len(cotangents) == 0:
        return cotangents, final
    reverse = Steps(
        drive=cotangents[::-1],
        decay=_shifted(steps.decay, 1.0),
        decay_rest=_shifted_or_absent(steps.decay_rest),
        log_decay=_shifted_or_absent(steps.log_decay),
    )
    adjoint = scan(arithmetic, algorithm, reverse, final)[::-1]
    return adjoint, decayed(arithmetic, algorithm, steps, adjoint[0], 0)


def decayed(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    steps: Steps,
    x: Array,
    index: int | slice,
) -> Array:
    """The decays at `index` times x, the low word of a decay included."""
    if steps.decay_rest is None:
        return arithmetic.mul(steps.decay[index], x)
    step = Affine(
        drive=np.zeros_like(x),
        decay=steps.decay[index],
        decay_rest=steps.decay_rest[index],
    )
    combine = COMBINES[algorithm.variant]
    return value(arithmetic, combine(arithmetic, Affine(drive=x), step))


def previous(states: Array, initial: Array) -> Array:
    """The state that each step starts from, S_{t-1}, [T, lanes]."""
    return np.concatenate((initial[None], states))[: len(states)]


def _shifted(x: Array, first: float) -> Array:
    """Reversed in time and one step later, with `first` in the gap."""
    return np.concatenate((np.full_like(x[:1], first), x[:0:-1]))


def _shifted_or_absent(x: Array | None) -> Array | None:
    return None if x is None else _shifted(x, 0.0)
