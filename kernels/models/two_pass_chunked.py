"""Chunk totals first, then the carry from chunk to chunk, then every chunk again.

Pass 1 combines the steps of each chunk but the last. The totals are applied to the
initial state one after another, or by Hillis-Steele over the chunks; that gives the
state each chunk starts from. Pass 2 scans each chunk from its own. Inside a chunk both
passes run in one of the orders of `inner_scans`.

The states at chunk edges are what a backward pass keeps: from them pass 2 gives every
state again, to the last bit.

Contract: structure chunk(C, inner, carry); where the carry is sequential, with the
order stepwise for an `inner` that is sequential and hillis_steele for a tree. A term
passes at most 2 (C - 1) + 1 additions inside chunks when `inner` is sequential,
2 ceil(log2 C) + 1 when it is Hillis-Steele (one more by warps), and one for each chunk
edge that it crosses, or ceil(log2 chunks) + 1 when the carry is a tree.
"""

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunks import by_position, by_time
from scancheck.kernels.models.combine import Affine, Combine, join, take, value
from scancheck.kernels.models.inner_scans import PREFIXES, states_after
from scancheck.kernels.models.sequential import Store


def edge_states(
    arithmetic: Arithmetic,
    combine: Combine,
    steps: Affine,
    initial: Affine,
    *,
    chunk: int,
    inner: str,
    carry: str,
    store: Store,
) -> Affine:
    """The state each chunk starts from, [ceil(T / C), lanes]; T is at least 1.

    `store` is what is done to a state that crosses a chunk edge.
    """
    edge = (len(steps.drive) - 1) // chunk * chunk
    complete = by_chunk(take(steps, slice(None, edge)), chunk)
    totals = take(PREFIXES[inner](arithmetic, combine, complete), -1)
    return carried_states(arithmetic, combine, totals, initial, carry, store)


def carried_states(
    arithmetic: Arithmetic,
    combine: Combine,
    totals: Affine,
    initial: Affine,
    carry: str,
    store: Store,
) -> Affine:
    """The initial state, and the state after each total: [totals + 1, lanes]."""
    start = take(initial, None)
    count = len(totals.drive)
    if count == 0:
        return start
    if carry == "tree":
        after = states_after(arithmetic, combine, "tree", totals, initial)
        return join(start, store(after))
    states = [start]
    for k in range(count):
        state = combine(arithmetic, states[-1], take(totals, slice(k, k + 1)))
        states.append(store(state))
    return join(*states)


def states_from_edges(
    arithmetic: Arithmetic,
    combine: Combine,
    steps: Affine,
    edges: Affine,
    *,
    chunk: int,
    inner: str,
) -> Array:
    """The states after each step, shaped as `steps`: [T, lanes]."""
    states = states_after(arithmetic, combine, inner, by_chunk(steps, chunk), edges)
    return by_time(value(arithmetic, states), len(steps.drive))


def by_chunk(steps: Affine, chunk: int) -> Affine:
    """[T, lanes] -> [C, chunks, lanes], the last filled up with identity steps."""
    assert steps.decay is not None
    rest = steps.decay_rest
    return Affine(
        drive=by_position(steps.drive, chunk, 0.0),
        decay=by_position(steps.decay, chunk, 1.0),
        decay_rest=None if rest is None else by_position(rest, chunk, 0.0),
    )
