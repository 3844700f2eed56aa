"""One pass over the data: chunks are scanned on their own, the carry is chained.

Every chunk combines its steps without knowing what came before. The chain runs in the
order of the chunks: the state a chunk hands on is its own total applied to the state it
was handed. Each prefix of the chunk is then applied to that state, so that the data are
read once:

    P_t     the combination of the chunk's steps up to t, in an order of `inner_scans`
    S_out   = P_C applied to S_in                  one product, one addition, then store
    S_t     = P_t applied to S_in                  one product, one addition

From the states at chunk edges the same prefixes give every state again, bit by bit.

Contract: structure chunk(C, inner, sequential). A term passes at most C - 1 additions
in a prefix when `inner` is sequential, ceil(log2 C) when it is a tree (one more by
warps), one for each chunk edge that it crosses and one for the last application.

Source of the chain: Merrill and Garland, "Single-pass parallel prefix scan with
decoupled look-back", NVR-2016-002 (2016); here no chunk looks back further than one.
"""

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunks import by_time
from scancheck.kernels.models.combine import Affine, Combine, take, value
from scancheck.kernels.models.inner_scans import PREFIXES
from scancheck.kernels.models.sequential import Store
from scancheck.kernels.models.two_pass_chunked import by_chunk, carried_states


def local_prefixes(
    arithmetic: Arithmetic, combine: Combine, steps: Affine, *, chunk: int, inner: str
) -> Affine:
    """The combinations of each chunk's steps, [C, chunks, lanes]."""
    return PREFIXES[inner](arithmetic, combine, by_chunk(steps, chunk))


def chained_edges(
    arithmetic: Arithmetic,
    combine: Combine,
    prefixes: Affine,
    initial: Affine,
    store: Store,
) -> Affine:
    """The state each chunk starts from, [chunks, lanes]."""
    totals = take(take(prefixes, -1), slice(None, -1))
    return carried_states(arithmetic, combine, totals, initial, "sequential", store)


def applied(
    arithmetic: Arithmetic,
    combine: Combine,
    prefixes: Affine,
    edges: Affine,
    count: int,
) -> Array:
    """The states after each of `count` steps, [T, lanes]."""
    start = take(edges, None)
    return by_time(value(arithmetic, combine(arithmetic, start, prefixes)), count)
