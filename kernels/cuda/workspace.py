"""Memory through which the blocks of one launch hand values to one another.

A workspace holds a ticket word and `words` flagged words, 8 bytes each:

    ticket word    epoch in the upper half, tickets taken in the lower one
    flagged word   an fp32 value in the lower half; in the upper half the flag, one more
                   than the epoch of the launch that wrote it

A block takes its number and the epoch by one atomic addition to the ticket word. The
block that takes the last number sets the word to the next epoch with no tickets taken;
no block of this launch looks at it again. The next launch on the stream starts when
this one has ended. So words are cleared once, when they are allocated: what an earlier
launch left has an older flag. Nothing is passed from the host, so a launch may be
replayed.

Two launches that may run at once must not share a workspace. Outside of CUDA graphs
each stream has its own. While a graph is captured, each launch gets its own, cleared by
a node of the graph, because graphs captured on one stream may be replayed on several.

A flag repeats after 2**32 - 1 launches; the workspace is cleared before. A launch that
is aborted leaves tickets taken, but on CUDA that is the end of its context, and of the
workspace with it.
"""

from threading import Lock

import torch

_MOST_LAUNCHES = 2**32 - 2
_kept: dict[tuple[int, int], "_Kept"] = {}
_lock = Lock()


class _Kept:
    """The workspace of one stream, and how often it was used since it was cleared."""

    __slots__ = ("launches", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.launches = 0


def workspace(words: int) -> torch.Tensor:
    """A ticket word and at least `words` flagged words for the next launch.

    It is for one launch on torch's current stream of the current device: int64, on
    that device.
    """
    stream = torch.cuda.current_stream()
    if torch.cuda.is_current_stream_capturing():
        return _cleared(words, stream.device)
    key = (stream.device_index, stream.cuda_stream)
    with _lock:
        kept = _kept.get(key)
        if kept is None or kept.memory.numel() <= words:
            kept = _kept[key] = _Kept(_cleared(words, stream.device))
        elif kept.launches == _MOST_LAUNCHES:
            kept.memory.zero_()
            kept.launches = 0
        kept.launches += 1
        return kept.memory


def _cleared(words: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(words + 1, dtype=torch.int64, device=device)
