"""A tile of error numbers run forward over rows of lanes (`error_rows`), on all cores.

Compiled loops are compiled for arrays in C order and for nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_rows import (
    LANES,
    OUT,
    ROWS,
    S_PEAK,
    STATE_ROW,
    E,
    K,
    M,
    P,
    R,
    V,
    W,
    Z,
    any_order,
    any_order_alike,
    as_kept,
    at,
    cast_drive,
    decay_by_key,
    drive,
    drive_alike,
    drive_as_it_is,
    higher,
    in_order,
    in_order_alike,
    is_alike,
    join,
    keep_row,
    load,
    peak_at,
    read_alike,
    read_row,
    settle_row,
    show,
    spread,
    write_row,
)
from scancheck.bounds.error_scan import COMPONENTS, STATE_U, TREES
from scancheck.bounds.rules import Store
from scancheck.oracles.fp64_scan import aligned
from scancheck.oracles.jit import NO_ALLOCATION, jit
from scancheck.oracles.numbers import plain
from scancheck.oracles.threads import share

FloatArray = NDArray[np.float64]
Parts = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@jit(**NO_ALLOCATION)
def run_rows(
    w, z, v, k, r, has_z, has_k, has_r, cast, s, c, o, states, start, every, path, rows,
    carried, begin, stop,
):  # fmt: skip
    """Runs the tasks begin..stop of a tile, one for each group and LANES lanes.

    w, z, v, k, r: four arrays [G, T, K, L] each, sizes of 1 repeated, z, k and r where
    they are given, and w one for all lanes beside a z; cast: unit roundoff, floor and
    largest number of the format of what is written, or empty. The rest is that of
    `error_tile.run_forward`; rows [ROWS] and carried [K, STATE_ROW] are room.
    """
    _, _, keys, lanes = s.shape
    blocks = -(-lanes // LANES)
    keep, stores, trees = states.shape[1] > 0, c[STATE_U] > 0.0, c[TREES] > 0.0
    w_alike, k_alike, r_alike = is_alike(w) and not has_z, is_alike(k), is_alike(r)
    for task in range(begin, stop):
        g, first = task // blocks, task % blocks * LANES
        n = min(lanes - first, LANES)
        for key in range(keys):
            one = carried[key]
            for part in range(COMPONENTS):
                for i in range(n):
                    one[part * LANES + i] = s[part, g, key, first + i]
            if keep:
                settle_row(rows, one, c, path[max(start, 0)])
                as_kept(rows, one, c, stores and start % every == 0)
                write_row(states, 0, g, key, first, n, rows, one, trees)
        for t in range(o.shape[2]):
            here = start + t
            before = stores and here % every == 0
            after = stores and (here + 1) % every == 0
            load(rows, V, v, g, t, 0, first, n)
            if has_z:
                load(rows, Z, z, g, t, 0, first, n)
            for i in range(4 * LANES):
                rows[OUT + i] = 0.0
            top = 0.0
            for key in range(keys):
                one, peak = carried[key], 0.0
                if before:
                    if w_alike:
                        spread(one)
                    keep_row(rows, one, c, path[max(here, 0)])
                if not has_k:
                    drive_as_it_is(rows)
                elif k_alike:
                    size, error = at(k[1], g, t, key), at(k[2], g, t, key)
                    drive_alike(rows, at(k[0], g, t, key), size, error, c)
                    peak = peak_at(k, g, t, key)
                else:
                    load(rows, K, k, g, t, key, first, n)
                    drive(rows, c)
                    join(one, rows, K + P)
                if cast.size > 0:
                    cast_drive(rows, one, cast)
                after_step = path[here + 1]
                if w_alike:
                    decay, error = at(w[0], g, t, key), at(w[2], g, t, key)
                    peak = higher(peak, peak_at(w, g, t, key))
                    if trees:
                        any_order_alike(rows, one, decay, error, peak, c, after_step)
                    else:
                        in_order_alike(rows, one, decay, error, peak, c)
                else:
                    if has_z:
                        size, error = at(w[1], g, t, key), at(w[2], g, t, key)
                        above = peak_at(w, g, t, key)
                        decay_by_key(rows, at(w[0], g, t, key), size, error, above, c)
                    else:
                        load(rows, W, w, g, t, key, first, n)
                    if trees:
                        any_order(rows, one, peak, c, after_step)
                    else:
                        in_order(rows, one, peak, c)
                if keep or after:
                    as_kept(rows, one, c, after)
                if keep:
                    if w_alike:
                        spread(one)
                    write_row(states, t + 1, g, key, first, n, rows, one, trees)
                if not has_r:
                    show(rows, one, trees)
                elif r_alike:
                    size, error = at(r[1], g, t, key), at(r[2], g, t, key)
                    read_alike(rows, one, at(r[0], g, t, key), size, error, c)
                    top = higher(top, peak_at(r, g, t, key))
                else:
                    load(rows, R, r, g, t, key, first, n)
                    read_row(rows, one, c)
                    for i in range(LANES):
                        rows[OUT + P + i] = higher(rows[OUT + P + i], rows[R + P + i])
            for i in range(n):
                size, error = rows[OUT + M + i], rows[OUT + E + i]
                peak = rows[OUT + P + i]
                if has_r:
                    peak = higher(higher(peak, top), size + error)
                o[0, g, t, first + i] = rows[OUT + i]
                o[1, g, t, first + i], o[2, g, t, first + i] = size, error
                o[3, g, t, first + i] = peak if peak == peak else np.inf
        for key in range(keys):
            one = carried[key]
            if w_alike:
                spread(one)
            for i in range(n):
                peak = one[S_PEAK + i]
                one[S_PEAK + i] = peak if peak == peak else np.inf
            for part in range(COMPONENTS):
                for i in range(n):
                    s[part, g, key, first + i] = one[part * LANES + i]


def run_in_rows(
    w: ErrorNumber,
    z: ErrorNumber | None,
    v: ErrorNumber,
    k: ErrorNumber | None,
    r: ErrorNumber | None,
    cast: Store | None,
    s: FloatArray,
    c: FloatArray,
    o: FloatArray,
    states: FloatArray,
    start: int,
    every: int,
    path: FloatArray,
) -> None:
    """Runs a tile: s, o and states are those of `error_tile.run_forward`.

    w, k, r [G, T or 1, K or 1, L or 1], v [G, T, 1, L]; with z [G, T, 1, L] the decay
    is w z, and w has one lane. `cast` is one of k v.
    """
    _, groups, keys, lanes = s.shape
    limits = () if cast is None else (cast.u, cast.eta, cast.largest)
    decays, of_values, written, by_key, read = map(_arrays, (w, z, v, k, r))
    given = z is not None, k is not None, r is not None
    format_of_drive = np.array(limits, dtype=np.float64)

    def run(begin: int, stop: int) -> None:
        run_rows(
            decays, of_values, written, by_key, read, *given, format_of_drive,
            s, c, o, states, start, every, path,
            aligned(ROWS), aligned(keys, STATE_ROW), begin, stop,
        )  # fmt: skip

    share(groups * -(-lanes // LANES), o.shape[2] * s[0].size, run)


def _arrays(x: ErrorNumber | None) -> Parts:
    """The four components, or zeros."""
    if x is None:
        return (np.zeros((1, 1, 1, 1)),) * 4
    value, magnitude, error, peak = map(_plain, x.components)
    return value, magnitude, error, peak


def _plain(part: FloatArray) -> FloatArray:
    """In C order; one repeated entry as [1, 1, 1, 1]."""
    if part.size and not any(part.strides):
        return np.full((1, 1, 1, 1), part.flat[0])
    return plain(part)
