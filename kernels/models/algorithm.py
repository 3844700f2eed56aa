"""Which scan a model runs, and its one entry, forwards and for the adjoint."""

from dataclasses import dataclass

import numpy as np

from scancheck.formats import Format
from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.blelloch import blelloch
from scancheck.kernels.models.chunks import by_time
from scancheck.kernels.models.combine import COMBINES, Affine, take, value
from scancheck.kernels.models.factored_exponentials import factored_exponentials
from scancheck.kernels.models.inner_scans import states_after
from scancheck.kernels.models.log_chunks import Form, StatesFrom, chained, chunk_steps
from scancheck.kernels.models.log_cumsum_exp import log_cumsum_exp
from scancheck.kernels.models.log_difference import log_difference
from scancheck.kernels.models.product_ratio import product_ratio
from scancheck.kernels.models.renormalised import renormalised
from scancheck.kernels.models.segment_sum import segment_sum
from scancheck.kernels.models.sequential import Store, states_in_order
from scancheck.kernels.models.single_pass import applied, chained_edges, local_prefixes
from scancheck.kernels.models.two_pass_chunked import edge_states, states_from_edges

CHUNK_FORMS: dict[str, Form] = {
    "log_diff": log_difference,
    "log_segsum": segment_sum,
    "log_factored": factored_exponentials,
    "log_ratio": product_ratio,
    "log_renorm": renormalised,
}
LOG_VARIANTS = (*CHUNK_FORMS, "log_full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A scan algorithm with its options."""

    name: str  # sequential, hillis_steele, blelloch, chunk (two passes), single_pass
    variant: str  # plain, kahan, full, or one of LOG_VARIANTS
    chunk: int | None = None  # steps per chunk
    inner: str = "sequential"  # order inside a chunk: sequential, tree, warps
    carry: str = "sequential"  # order between chunks: sequential or tree
    state: Format | None = None  # format of the carried state; None: as computed
    state_every: int = 1  # for sequential: steps between two roundings of the state


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a scan, each field [T, lanes] or absent."""

    drive: Array
    decay: Array
    decay_rest: Array | None = None  # low word of a decay computed as an exponential
    log_decay: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What a scan leaves behind."""

    states: Array  # after each step, [T, lanes]
    edges: Affine  # the state each chunk starts from, [chunks, lanes]


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
) -> Scanned:
    """The states after each step from the initial state [lanes].

    Without chunks the initial state is the only edge.
    """
    start = Affine(drive=initial)
    if len(steps.drive) == 0:
        return Scanned(states=steps.drive.copy(), edges=take(start, None))

    def store(state: Affine) -> Affine:
        if algorithm.state is None:
            return state
        return Affine(drive=arithmetic.cast(algorithm.state, value(arithmetic, state)))

    if algorithm.variant in CHUNK_FORMS:
        states, carried = chained(
            _log_form(arithmetic, algorithm, steps),
            len(steps.drive),
            _chunk(algorithm, steps),
            initial,
            lambda state: store(Affine(drive=state)).drive,
        )
        return Scanned(states=states, edges=Affine(drive=carried))
    if algorithm.name in ("chunk", "single_pass"):
        edges = _edges(arithmetic, algorithm, steps, start, store)
        states = states_again(arithmetic, algorithm, steps, edges)
        return Scanned(states=states, edges=edges)
    states = _unchunked(arithmetic, algorithm, steps, start, store)
    return Scanned(states=states, edges=take(start, None))


def _edges(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    steps: Steps,
    start: Affine,
    store: Store,
) -> Affine:
    """The state each chunk starts from, [chunks, lanes]."""
    combine, maps = COMBINES[algorithm.variant], _maps(steps)
    chunk, inner = _chunk(algorithm, steps), algorithm.inner
    if algorithm.name == "single_pass":
        prefixes = local_prefixes(arithmetic, combine, maps, chunk=chunk, inner=inner)
        return chained_edges(arithmetic, combine, prefixes, start, store)
    return edge_states(
        arithmetic,
        combine,
        maps,
        start,
        chunk=chunk,
        inner=inner,
        carry=algorithm.carry,
        store=store,
    )


def states_again(
    arithmetic: Arithmetic, algorithm: Algorithm, steps: Steps, edges: Affine
) -> Array:
    """The states that `scan` gave, bit by bit, from those at its chunk edges.

    This is what a backward pass recomputes inside every chunk. An algorithm without
    chunks runs once more from the initial state.
    """
    if len(steps.drive) == 0:
        return steps.drive.copy()
    if algorithm.variant in CHUNK_FORMS:
        states_from = _log_form(arithmetic, algorithm, steps)
        states = states_from(slice(None), edges.drive)
        return by_time(states, len(steps.drive))
    if algorithm.name not in ("chunk", "single_pass"):
        return scan(arithmetic, algorithm, steps, edges.drive[0]).states
    combine, maps = COMBINES[algorithm.variant], _maps(steps)
    chunk, inner = _chunk(algorithm, steps), algorithm.inner
    if algorithm.name == "single_pass":
        prefixes = local_prefixes(arithmetic, combine, maps, chunk=chunk, inner=inner)
        return applied(arithmetic, combine, prefixes, edges, len(steps.drive))
    return states_from_edges(arithmetic, combine, maps, edges, chunk=chunk, inner=inner)


def _unchunked(
    arithmetic: Arithmetic,
    algorithm: Algorithm,
    steps: Steps,
    start: Affine,
    store: Store,
) -> Array:
    if algorithm.variant == "log_full":
        assert steps.log_decay is not None
        order = "sequential" if algorithm.name == "sequential" else "tree"
        return log_cumsum_exp(
            arithmetic, steps.log_decay, steps.drive, start.drive, order
        )
    combine, maps = COMBINES[algorithm.variant], _maps(steps)
    if algorithm.name == "blelloch":
        return blelloch(arithmetic, combine, maps, start)
    if algorithm.name == "hillis_steele":
        states = states_after(arithmetic, combine, "tree", maps, start)
    else:
        states = states_in_order(
            arithmetic,
            combine,
            maps,
            start,
            store=store,
            store_every=algorithm.state_every,
        )
    return value(arithmetic, states)


def _log_form(arithmetic: Arithmetic, algorithm: Algorithm, steps: Steps) -> StatesFrom:
    assert steps.log_decay is not None
    form = CHUNK_FORMS[algorithm.variant]
    in_chunks = chunk_steps(
        steps.log_decay, steps.decay, steps.drive, _chunk(algorithm, steps)
    )
    return form(arithmetic, in_chunks, algorithm.inner)


def _chunk(algorithm: Algorithm, steps: Steps) -> int:
    """The chunk size, no longer than the scan."""
    assert algorithm.chunk is not None
    return min(algorithm.chunk, len(steps.drive))


def _maps(steps: Steps) -> Affine:
    return Affine(drive=steps.drive, decay=steps.decay, decay_rest=steps.decay_rest)


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
    adjoint = scan(arithmetic, algorithm, reverse, final).states[::-1]
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
