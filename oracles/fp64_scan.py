"""The compiled loops of the fp64 ball scan: tiles forward and cotangents back.

Arrays of a tile are [G, T, K, L] with sizes of 1 that repeat. Work is cut into tasks,
one per group and block of lanes, and a call runs the tasks first..last of them: threads
share the tasks, which needs no parallel compilation.

The loops are split so that each touches few arrays: compilers give up vectorising when
they would have to prove too many arrays distinct.
"""

import numpy as np

from scancheck.oracles.jit import jit
from scancheck.oracles.units import TINY, U64

# State entries of one task: the rows of its arrays stay in a core's first caches.
TASK_ENTRIES = 2048
LEAST_LANES, MOST_LANES = 32, 512


def lane_block(groups: int, keys: int, lanes: int) -> int:
    """Lanes per task, so that at least two tasks exist where there are lanes for it."""
    block = min(MOST_LANES, max(LEAST_LANES, TASK_ENTRIES // max(1, keys)))
    if groups < 2:
        half = -(-lanes // 2)
        block = min(block, -(-half // 8) * 8)
    return max(1, min(block, lanes))


@jit()
def _row(x, g, t, k, first, last, buffer):
    """Lanes first..last of x[g, t, k], repeated from one lane where x has one."""
    group = g if x.shape[0] > 1 else 0
    step = t if x.shape[1] > 1 else 0
    key = k if x.shape[2] > 1 else 0
    if x.shape[3] > 1:
        return x[group, step, key, first:last]
    buffer[:] = x[group, step, key, 0]
    return buffer


@jit()
def _drive(k, rk, v, rv, x, rx):
    """x = k v and its radius."""
    for i in range(x.size):
        x[i] = k[i] * v[i]
        rx[i] = abs(k[i]) * rv[i] + rk[i] * (abs(v[i]) + rv[i]) + U64 * abs(x[i]) + TINY


@jit()
def _step(w, rw, x, rx, s, r, p):
    """S <- w S + x with its radius; p keeps w S for the second moment."""
    for i in range(s.size):
        p[i] = w[i] * s[i]
        new = p[i] + x[i]
        r[i] = (
            abs(w[i]) * r[i]
            + rw[i] * (abs(s[i]) + r[i])
            + rx[i]
            + (U64 * (abs(p[i]) + abs(new)) + TINY)
        )
        s[i] = new


@jit()
def _companion_step(w, x, p, s, m, wm, v2):
    """M, W and V one step further, after S."""
    for i in range(m.size):
        size = abs(w[i])
        wm[i] = size * (wm[i] + m[i])
        m[i] = size * m[i] + abs(x[i])
        v2[i] = w[i] * w[i] * v2[i] + p[i] * p[i] + s[i] * s[i]


@jit()
def _read(c, rc, s, r, o, ro, terms):
    """o += c S; `terms` is the number of summands, for the roundings of the sum."""
    for i in range(o.size):
        product = c[i] * s[i]
        o[i] += product
        ro[i] += (
            abs(c[i]) * r[i]
            + rc[i] * (abs(s[i]) + r[i])
            + ((terms + 1) * U64 * abs(product) + TINY)
        )


@jit()
def _companion_read(c, m, wm, v2, om, ow, ov):
    """Readouts of the companions."""
    for i in range(om.size):
        size = abs(c[i])
        om[i] += size * m[i]
        ow[i] += size * wm[i]
        ov[i] += size * size * v2[i]


@jit()
def scan_tile(
    begin,
    stop,
    block,
    w,
    rw,
    v,
    rv,
    k,
    rk,
    r,
    rr,
    has_k,
    has_r,
    s,
    rs,
    extra,
    o,
    ro,
    states,
    radii,
):
    """Runs the tasks begin..stop of a tile; s, rs and extra are replaced.

    s, rs [G, K, L] hold the state, extra [3, G, K, L] the companions or nothing
    [0, ...]. o [1 or 4, G, T, L] receives the readout and those of the companions, ro
    [G, T, L] its radius; both start from zero where has_r. states, radii
    [T + 1, G, K, L] receive every state but the first, unless they are empty.
    """
    groups, keys, lanes = s.shape
    steps = v.shape[1]
    blocks = -(-lanes // block)
    companions, keep = extra.shape[0] == 3, states.shape[0] > 0
    for task in range(begin, stop):
        g = task // blocks
        first = (task % blocks) * block
        last = min(lanes, first + block)
        buffers = np.empty((11, last - first))
        p = buffers[0]
        for t in range(steps):
            vt = _row(v, g, t, 0, first, last, buffers[1])
            rvt = _row(rv, g, t, 0, first, last, buffers[2])
            for i in range(keys):
                wt = _row(w, g, t, i, first, last, buffers[3])
                rwt = _row(rw, g, t, i, first, last, buffers[4])
                x, rx = vt, rvt
                if has_k:
                    kt = _row(k, g, t, i, first, last, buffers[5])
                    rkt = _row(rk, g, t, i, first, last, buffers[6])
                    x, rx = buffers[7], buffers[8]
                    _drive(kt, rkt, vt, rvt, x, rx)
                st, rst = s[g, i, first:last], rs[g, i, first:last]
                _step(wt, rwt, x, rx, st, rst, p)
                if keep:
                    states[t + 1, g, i, first:last] = st
                    radii[t + 1, g, i, first:last] = rst
                if companions:
                    m, wm = extra[0, g, i, first:last], extra[1, g, i, first:last]
                    v2 = extra[2, g, i, first:last]
                    _companion_step(wt, x, p, st, m, wm, v2)
                if has_r:
                    ct = _row(r, g, t, i, first, last, buffers[9])
                    rct = _row(rr, g, t, i, first, last, buffers[10])
                    ot, rot = o[0, g, t, first:last], ro[g, t, first:last]
                    _read(ct, rct, st, rst, ot, rot, keys)
                    if companions:
                        om, ow = o[1, g, t, first:last], o[2, g, t, first:last]
                        _companion_read(ct, m, wm, v2, om, ow, o[3, g, t, first:last])
                else:
                    o[0, g, t, first:last] = st
                    ro[g, t, first:last] = rst
                    if companions:
                        o[1, g, t, first:last] = m
                        o[2, g, t, first:last] = wm
                        o[3, g, t, first:last] = v2


@jit()
def _turn(w, rw, y, ry, here, rhere, out, rout):
    """G_t = carry + y in place, and the next carry w G_t."""
    for i in range(here.size):
        total = here[i] + y[i]
        radius = rhere[i] + ry[i] + U64 * abs(total)
        here[i], rhere[i] = total, radius
        product = w[i] * total
        out[i] = product
        rout[i] = (
            abs(w[i]) * radius
            + rw[i] * (abs(total) + radius)
            + (U64 * abs(product) + TINY)
        )


@jit()
def cotangent_tile(begin, stop, block, w, rw, r, rr, has_r, obar, robar, g, rg):
    """Runs the tasks begin..stop of a tile's adjoint.

    g, rg [T + 1, G, K, L] hold the carry of the tile in their last entry. On return
    entry t + 1 holds G_t = r_t obar_t^T + (carry into t), and entry 0 the carry out.
    """
    _, groups, keys, lanes = g.shape
    steps = obar.shape[1]
    blocks = -(-lanes // block)
    for task in range(begin, stop):
        group = task // blocks
        first = (task % blocks) * block
        last = min(lanes, first + block)
        buffers = np.empty((8, last - first))
        for back in range(steps):
            t = steps - 1 - back
            ot = _row(obar, group, t, 0, first, last, buffers[0])
            rot = _row(robar, group, t, 0, first, last, buffers[1])
            for i in range(keys):
                y, ry = ot, rot
                if has_r:
                    ct = _row(r, group, t, i, first, last, buffers[2])
                    rct = _row(rr, group, t, i, first, last, buffers[3])
                    y, ry = buffers[4], buffers[5]
                    _drive(ct, rct, ot, rot, y, ry)
                wt = _row(w, group, t, i, first, last, buffers[6])
                rwt = _row(rw, group, t, i, first, last, buffers[7])
                _turn(
                    wt,
                    rwt,
                    y,
                    ry,
                    g[t + 1, group, i, first:last],
                    rg[t + 1, group, i, first:last],
                    g[t, group, i, first:last],
                    rg[t, group, i, first:last],
                )
