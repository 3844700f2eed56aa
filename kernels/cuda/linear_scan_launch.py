"""The launches of one linear_scan, forwards and backwards, on checked tensors."""

import torch

from scancheck.kernels.cuda.compile import function, function_with_shared
from scancheck.kernels.cuda.launch import aligned, launch, pointer
from scancheck.kernels.cuda.linear_scan_instances import (
    BACKWARD,
    CARRY_GROUPS,
    CARRY_LANES,
    CARRY_THREADS,
    FORWARD,
    Algorithm,
    Form,
    Tile,
    backward,
    backward_shared,
    backward_tiles,
    carry,
    few_chains,
    forward,
    forward_shared,
    forward_tiles,
    sequential,
    tile_for,
)
from scancheck.kernels.cuda.workspace import IN_TURNS, workspace

Tensor = torch.Tensor


def launch_forward(
    algorithm: Algorithm,
    form: Form,
    gate: Tensor,
    b: Tensor,
    initial: Tensor | None,
    h: Tensor,
    final: Tensor,
    edges: Tensor | None,
) -> None:
    """Fills h, the final state, and edges where they are given (two passes need them).

    No tensor is empty, and the tensors' device is the current one.
    """
    device = torch.cuda.get_device_properties(b.device)
    chunks = _chunks(form, b)
    few = few_chains(b.shape[0], b.shape[2], chunks, device.multi_processor_count)
    tiles = forward_tiles(form, algorithm, few=few)
    tile = tile_for(tiles, lambda count: aligned(count, gate, b))
    tensors = [pointer(x) for x in (gate, b, initial, h, final, edges)]
    sizes = (*b.shape, *_strides(gate, b))
    if not algorithm.passes:
        blocks = _tiles(b, tile) * b.shape[0]
        kernel = function(FORWARD, sequential(form, tile))
        launch(kernel, blocks, (tile.lanes,), (*tensors, *sizes))
        return
    totals = None
    words = _words(form, b) if algorithm.carry is None else None
    if algorithm.carry is not None:
        lanes = b.shape[0] * b.shape[2]
        totals = b.new_empty((_chunks(form, b) - 1) * lanes * 4, dtype=torch.float32)
    shared = forward_shared(form, tile)
    for which in algorithm.passes:
        if which == "EDGES":
            assert totals is not None and edges is not None
            _launch_carry(form, algorithm, b, totals, initial, edges)
        # The total of the last chunk is of no use.
        chunks = _chunks(form, b) - (1 if which == "TOTALS" else 0)
        if chunks:
            instance = forward(form, algorithm, which, tile)
            launch(
                function_with_shared(FORWARD, instance, shared, b.device.index),
                _tiles(b, tile) * b.shape[0] * -(-chunks // tile.chunks),
                (tile.lanes, form.rows),
                (*tensors, pointer(totals), pointer(words), *sizes),
                shared,
            )


def _launch_carry(
    form: Form,
    algorithm: Algorithm,
    b: Tensor,
    totals: Tensor,
    initial: Tensor | None,
    edges: Tensor,
) -> None:
    lanes = b.shape[0] * b.shape[2]
    threads: tuple[int, ...] = (CARRY_THREADS,)
    if algorithm.carry == "carry_by_doubling":
        threads = (CARRY_LANES, CARRY_GROUPS)
    launch(
        function(FORWARD, carry(form.variant, algorithm)),
        -(-lanes // threads[0]),
        threads,
        (pointer(totals), pointer(initial), pointer(edges), _chunks(form, b), lanes),
    )


def launch_backward(
    form: Form,
    gate: Tensor,
    b: Tensor,
    edges: Tensor,
    hbar: Tensor | None,
    final_bar: Tensor | None,
    bars: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """Fills those of the gradients of gate, b and the initial state that are there.

    No tensor is empty, and the tensors' device is the current one.
    """
    tile = tile_for(backward_tiles(form), lambda count: aligned(count, gate, b, hbar))
    tensors = (gate, b, edges, hbar, final_bar, *bars, _words(form, b))
    shared = backward_shared(form, tile)
    launch(
        function_with_shared(BACKWARD, backward(form, tile), shared, b.device.index),
        _tiles(b, tile) * b.shape[0] * _chunks(form, b),
        (tile.lanes, form.backward_rows),
        (*map(pointer, tensors), *b.shape, *_strides(gate, b, hbar)),
        shared,
    )


def _chunks(form: Form, b: Tensor) -> int:
    return -(-b.shape[1] // form.chunk)


def _tiles(b: Tensor, tile: Tile) -> int:
    return -(-b.shape[2] // (tile.count * tile.lanes))


def _words(form: Form, b: Tensor) -> Tensor:
    lanes = b.shape[0] * b.shape[2]
    return workspace(IN_TURNS * form.variant.words * lanes, links=_chunks(form, b))


def _strides(*tensors: Tensor | None) -> list[int]:
    """Of the batch and the time axis of each."""
    return [s for x in tensors for s in ((0, 0) if x is None else x.stride()[:2])]
