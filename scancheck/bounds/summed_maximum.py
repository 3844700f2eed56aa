"""The running maximum of the mLSTM as chunks of log sums have it.

Step by step m_t = max(l_t + m_{t-1}, i_t), with l the log forget gates. A chunk that
begins after m_0 has their running sums c and takes

    m_t = max(c_t + m_0, max over j <= t of (c_t - c_j + i_j))

c_t and c_j are off by at most n u times the sum of |l| in the chunk, n of its tokens,
in any order, and the sums and the difference round once more each. So the two parts are
off by e_0 + r and r, with

    r = (2 n + 3) u sum |l| + 2 u |m_t|

and m_t by r, or by what lifts the first one over the second, e_0 + r less its distance.
To that comes what gates are off by, as in the steps. (What loses the maximum, however
far below, is not in it: its rounding is no larger than its distance, but for u |m_t|.)
Source: the chunkwise form of Beck et al., "Tiled Flash Linear Attention" (2025).
"""

from typing import Any

import numpy as np

from scancheck.bounds.rules import Rules
from scancheck.oracles.units import U64


def with_chunk_sums(rules: Rules, running: dict[str, Any]) -> dict[str, Any]:
    """The running numbers, `m` [B, T, H] with the error of sums of `log_forget`."""
    m, gates = running["m"], running["log_forget"]
    value, magnitude, error, peak = m.components
    size = np.abs(gates.value) + gates.error
    steps = size.shape[1]
    more = np.zeros_like(error)
    start = running["held_before"].value[:, :1]
    before = np.zeros_like(start)
    u = rules.u + U64
    for first in range(0, steps, rules.structure.chunk or steps):
        span = slice(first, first + (rules.structure.chunk or steps))
        sums = np.cumsum(size[:, span], 1)
        rounded = (2 * sums.shape[1] + 3) * u * sums + 2 * u * np.abs(value[:, span])
        below = value[:, span] - (start + np.cumsum(gates.value[:, span], 1))
        lifted = before + rounded - below.clip(0.0) * (1.0 - 4 * U64)
        more[:, span] = np.fmax(rounded, lifted)
        start, before = value[:, span][:, -1:], more[:, span][:, -1:]
    return running | {"m": m.like(value, magnitude, error + more, peak)}
