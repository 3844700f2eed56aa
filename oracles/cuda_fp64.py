"""Rung R1 on the card: the fp64 ball scan and its adjoint as a System of the engine.

A thread has a lane, and runs its steps in order with the operations of the CPU's loops
(fp64_scan.py): values, radii and companions equal those of `Fp64System` to the bit
where the decays do.
"""

from typing import Any

from scancheck.ops.normal_form import Cotangents, Lowered
from scancheck.oracles import cuda_card, rank_one
from scancheck.oracles.cuda_ball import CudaBall, CudaOuterProduct, exact_cuda_ball
from scancheck.oracles.cuda_columns import CARD
from scancheck.oracles.engine import TILE_ENTRIES
from scancheck.oracles.fp64 import contract
from scancheck.oracles.fp64_scan import PARTS
from scancheck.oracles.systems import check_diagonal

SOURCE = "fp64_scan.cu"
KEYS = 8  # states of a thread
IN_ORDER = 16  # keys whose readouts are summed in order
STATE_AXES, LANE_AXES = (0, 2, 3), (0, 1, 3)  # of [G, K, L] and [G, T, L]

# Tiles in units of the engine's: forwards all steps at once where a tile of balls takes
# up to 4 GiB, with an adjoint tiles of 512 MiB, of which it keeps a score.
FORWARD_STRETCH, ADJOINT_STRETCH = 2**28 // TILE_ENTRIES, 2**25 // TILE_ENTRIES


class CudaFp64System:
    """The fp64 ball scan on the card.

    With `companions` a forward pass collects the readouts of M, W and V,
    [3, G, T, L], in `collected`.
    """

    general = False

    def __init__(self, *, companions: bool = False) -> None:
        self.companions = companions
        self.collected: Any = None

    @property
    def alike_when_kept(self) -> bool:
        """Companions are not collected beside kept states."""
        return not self.companions

    def constant(self, values: Any) -> CudaBall:
        """Stored values as balls of radius zero."""
        return exact_cuda_ball(values)

    def begin(self, state: CudaBall) -> Any:
        """S, its radius and, where collected, M = |S|, W = V = 0: [PARTS, G, K, L]."""
        xp = cuda_card.arrays()
        begun = xp.zeros((PARTS, *state.shape))
        begun[0] = state.value
        if not state.exact:
            begun[1] = state.radius
        if self.companions:
            begun[2] = abs(state.value)
        return begun

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        """o, the next state, and all states of the tile when `keep`."""
        if lowered.p is not None:
            return rank_one.forward(
                lowered, state, keep=keep, machine=CARD, kind=CudaBall
            )
        check_diagonal(lowered)
        moved, companions = state.copy(), self.companions and not keep
        if lowered.k is None and lowered.r is None:
            out, states = _scan_lanes(lowered, moved, companions, keep)
        else:
            out, states = _scan_keys(lowered, moved, companions, keep)
        if companions:
            self._collect(out[2:], start, total)
        return CudaBall(out[0], out[1]), moved, states

    def _collect(self, found: Any, start: int, total: int) -> None:
        """Keeps the companions of a tile, which may be the whole."""
        if found.shape[2] == total:
            self.collected = found
            return
        if start == 0:
            shape = (*found.shape[:2], total, found.shape[3])
            self.collected = cuda_card.arrays().empty(shape)
        self.collected[:, :, start : start + found.shape[2]] = found

    def end(self, state: Any, total: int) -> CudaBall:
        """The final state; a rank-one transition leaves one radius for a column."""
        xp = cuda_card.arrays()
        return CudaBall(state[0], xp.broadcast_to(state[1], state[0].shape))

    def begin_adjoint(self, state: CudaBall) -> CudaBall:
        """The cotangent of the final state."""
        return state

    def adjoint(
        self,
        lowered: Lowered,
        states: CudaBall,
        obar: CudaBall,
        carry: CudaBall,
        start: int,
        total: int,
    ) -> tuple[Cotangents, Any]:
        """Cotangents of the tile; products and sums over the scanned G_t."""
        if lowered.p is not None:
            return rank_one.adjoint(lowered, states, obar, carry, CARD, CudaBall)
        groups, keys, lanes = carry.shape
        steps = obar.shape[1]
        xp = cuda_card.arrays()
        moved = CudaBall(*(part.copy() for part in carry.components))
        g = xp.empty((2, groups, steps, keys, lanes))
        cuda_card.launch(
            SOURCE,
            "scan_cotangents",
            groups * keys * lanes,
            [
                _operand(lowered.w),
                _operand(lowered.r),
                cuda_card.operand(obar.parts, LANE_AXES),
                cuda_card.flag(lowered.r is not None),
                cuda_card.room(moved.components, STATE_AXES),
                cuda_card.room(g),
                cuda_card.count(groups, steps, keys, lanes),
            ],
        )
        return contract(lowered, states, obar, CudaBall(*g)), moved

    def end_adjoint(self, carry: CudaBall) -> CudaBall:
        """The cotangent of the initial state."""
        value, radius = carry.components
        return CudaBall(value, cuda_card.arrays().broadcast_to(radius, value.shape))

    def reduced(self, number: CudaBall, terms: int) -> CudaBall:
        """Sums over tiles carry their own roundings."""
        return number


def _operand(x: CudaBall | None) -> cuda_card.Argument:
    """A ball [G, T, K, L] of the tile."""
    return cuda_card.operand((None, None) if x is None else x.parts)


def _rooms(out: Any, parts: int, axes: tuple[int, ...]) -> cuda_card.Argument:
    """Room for PARTS parts, of which those beyond `parts` are not written."""
    given = [out[i] if i < parts else None for i in range(PARTS)]
    return cuda_card.room(given, axes)


def _name(kernel: str, *options: bool | int) -> str:
    return f"{kernel}<{', '.join(str(option).lower() for option in options)}>"


def _scan_lanes(
    lowered: Lowered, state: Any, companions: bool, keep: bool
) -> tuple[Any, CudaBall | None]:
    """A scan whose readout is its one state: all parts, and S_0 .. S_T if kept."""
    groups, _, lanes = state.shape[1:]
    steps, parts = lowered.v.shape[1], PARTS if companions else 2
    exact = lowered.w.exact and lowered.v.exact
    whole = cuda_card.arrays().empty((parts, groups, steps + keep, lanes))
    out = whole[:, :, 1:] if keep else whole
    if keep:
        whole[:, :, 0] = state[:parts, :, 0]
    ahead = (16 if exact else 8) // (2 if companions else 1)
    cuda_card.launch(
        SOURCE,
        _name("scan_lanes", exact, companions, ahead),
        groups * lanes,
        [
            _operand(lowered.w),
            cuda_card.operand(lowered.v.parts, LANE_AXES),
            _rooms(state, parts, STATE_AXES),
            _rooms(out, parts, LANE_AXES),
            cuda_card.count(groups, steps, 1, lanes),
        ],
    )
    return out, CudaBall(*whole[:, :, :, None]) if keep else None


def _scan_keys(
    lowered: Lowered, state: Any, companions: bool, keep: bool
) -> tuple[Any, CudaBall | None]:
    """A scan of several states per lane: all parts, and S_0 .. S_T if kept."""
    groups, keys, lanes = state.shape[1:]
    steps, parts = lowered.v.shape[1], PARTS if companions else 2
    xp, w = cuda_card.arrays(), lowered.w
    waits = isinstance(w, CudaOuterProduct) and w.raised
    one = exact_cuda_ball(xp.ones((1, 1, 1, 1)))
    k, r = lowered.k or one, lowered.r or one
    rates = w.rates if waits else one
    exact = _side_by_side(k, keys) and _side_by_side(r, keys) and rates.exact
    out = xp.empty((parts, groups, steps, lanes))
    whole = xp.empty((2, groups, steps + 1, keys, lanes)) if keep else None
    if whole is not None:
        whole[:, :, 0] = state[:2]
    for first, some, shares in key_passes(keys, KEYS):
        room = out if shares == 1 else xp.empty((shares, *out.shape))
        cuda_card.launch(
            SOURCE,
            _name("scan_keys", some, waits, companions, exact),
            shares * groups * lanes,
            [
                _operand(w.times if waits else w),
                _operand(rates),
                cuda_card.operand(lowered.v.parts, LANE_AXES),
                _operand(k),
                _operand(r),
                _rooms(state, parts, STATE_AXES),
                _rooms(room if shares == 1 else room[0], parts, LANE_AXES),
                _kept_room(whole),
                cuda_card.count(groups, steps, keys, lanes),
                cuda_card.count(first, shares, out.size),
            ],
        )
        if shares > 1:
            out = room.sum(0)  # radii are those of sums in any order
    return out, None if whole is None else CudaBall(*whole)


def _side_by_side(x: CudaBall, keys: int) -> bool:
    """Whether all keys of a step lie side by side, for all lanes, without radii."""
    value = x.value
    close = keys == 1 or value.strides[2] == value.itemsize
    return x.exact and x.shape[2:] == (keys, 1) and close


def _kept_room(whole: Any) -> cuda_card.Argument:
    """Room for S_1 .. S_T."""
    parts = (None, None) if whole is None else whole[:, :, 1:]
    return cuda_card.room(parts)


def key_passes(
    keys: int, most: int, shared: int | None = None
) -> list[tuple[int, int, int]]:
    """First key, keys of a thread, and threads side by side of each pass.

    Up to IN_ORDER keys are taken one after the other, so that sums have the order of
    the CPU. More are shared between threads: where states are matrices there are few
    lanes to keep a card busy, in passes of `shared` keys where those are others than
    `most`. What is left over comes after them.
    """
    if keys <= IN_ORDER:
        return [(first, some, 1) for first, some in key_ranges(keys, most)]
    each = shared or most
    whole = keys // each
    rest = key_ranges(keys - whole * each, most)
    return [(0, each, whole), *((whole * each + first, n, 1) for first, n in rest)]


def key_ranges(keys: int, most: int) -> list[tuple[int, int]]:
    """First key and number of keys of each pass: powers of two, so none is idle."""
    ranges, first = [], 0
    while first < keys:
        some = min(most, 1 << (keys - first).bit_length() - 1)
        ranges.append((first, some))
        first += some
    return ranges


def cuda_stretch(gradients: bool) -> int:
    """How much longer tiles are on the card than on the CPU."""
    return ADJOINT_STRETCH if gradients else FORWARD_STRETCH


__all__ = ["CudaFp64System", "cuda_stretch", "key_passes", "key_ranges"]
