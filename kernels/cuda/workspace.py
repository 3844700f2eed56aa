"""Memory through which the blocks of one launch hand values to one another.

A workspace holds a ticket word and flagged words, 8 bytes each:

    ticket word    in the upper half the links so far, the lengths of all launches'
                   chains; in the lower half the tickets taken by the present launch
    flagged word   an fp32 value in the lower half, its flag in the upper one: one more
                   than the links before the one that wrote it, in all launches

A block takes its number, and the links so far, by one atomic addition to the ticket
word. The block that takes the last number adds the launch's own links, with no tickets
taken; no block of this launch looks at the word again. The next launch on the stream
starts when this one has ended. So words are cleared once, when they are allocated: what
an earlier launch left has an older flag. Nothing is passed from the host, so a launch
may be replayed.

Two launches that may run at once must not share a workspace. Outside of CUDA graphs
each stream has its own. While a graph is captured, each launch gets its own, cleared by
a node of the graph, because graphs captured on one stream may be replayed on several.

Flags repeat after 2**32 links; the workspace is cleared before. A launch that is
aborted leaves tickets taken, but on CUDA that is the end of its context, and of the
workspace with it.
"""

from threading import Lock

import torch

IN_TURNS = 2
"""Words of each value, which links use in turns (chain.cuh)."""

_MOST_LINKS = 2**32 - 1
_kept: dict[tuple[int, int], "_Kept"] = {}
_lock = Lock()


class _Kept:
    """The workspace of one stream, and the links since it was cleared."""

    __slots__ = ("links", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.links = 0


def workspace(words: int, *, links: int) -> torch.Tensor:
    """A ticket word and at least `words` flagged words for the next launch.

    It is for one launch on torch's current stream of the current device, whose chains
    have at most `links` links: int64, on that device.
    """
    stream = torch.cuda.current_stream()
    if torch.cuda.is_current_stream_capturing():
        return _cleared(words, stream.device)
    key = (stream.device_index, stream.cuda_stream)
    with _lock:
        kept = _kept.get(key)
        if kept is None or kept.memory.numel() <= words:
            kept = _kept[key] = _Kept(_cleared(words, stream.device))
        elif kept.links + links > _MOST_LINKS:
            kept.memory.zero_()
            kept.links = 0
        kept.links += links
        return kept.memory


def _cleared(words: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(words + 1, dtype=torch.int64, device=device)
