"""Value-side decays in one elementwise decay, where the transition is diagonal.

diag(w) S diag(z) multiplies entry (i, j) by w_i z_j. Systems whose loops know one decay
an entry get that product. Its log is the sum of both, so that a cotangent of that log,
where a system has one, is summed over lanes for log w and over keys for log z.
"""

from dataclasses import replace

from scancheck.ops.normal_form import Cotangents, Lowered


def is_foldable(lowered: Lowered) -> bool:
    """Whether there is a value-side decay beside a diagonal transition."""
    return lowered.z is not None and lowered.p is None


def folded(lowered: Lowered) -> Lowered:
    """The tile with w z in place of w; of its logs log_z stays, to tell of them."""
    return replace(lowered, w=lowered.w * lowered.z, z=None, log_w=None)


def unfolded(cotangents: Cotangents, lowered: Lowered) -> Cotangents:
    """Cotangents of w and z from that of w z, [G, T, K, L].

    That of its log, where one is given, is that of both their logs.
    """
    both, gates = cotangents.w, cotangents.log_w
    of_z = (both * lowered.w).sum(2)[:, :, None, :]
    log_z = None if gates is None else gates.sum(2)[:, :, None, :]
    return replace(cotangents, w=both * lowered.z, z=of_z, log_z=log_z)
