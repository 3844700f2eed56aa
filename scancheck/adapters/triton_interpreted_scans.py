"""tl.associative_scan in Triton's interpreter, a block at a time.

The interpreter combines element by element in Python: 2048 tokens of one channel take
0.1 s. Combined as Hillis and Steele do (1986), every element with the one 1, 2, 4, ...
places before it, it is one call of the combine function on whole blocks for each power
of two. That is another order; compiled code has one of its own, too, and a kernel may
count on none.
"""

import ast
import inspect
import textwrap
from functools import cache, wraps
from typing import Any

_BRANCHES = (ast.If, ast.IfExp, ast.While)  # which ask for a single truth value


def scan_by_blocks() -> None:
    """From here on scans in the interpreter take whole blocks."""
    from triton.runtime.interpreter import ScanOps

    original = ScanOps.generic_scan

    @wraps(original)
    def generic_scan(self: Any, blocks: Any) -> Any:
        if _branches(self.combine_fn.fn):
            return original(self, blocks)
        return _hillis_steele(self, blocks)

    ScanOps.generic_scan = generic_scan


@cache
def _branches(combine: Any) -> bool:
    """Whether a combine function decides by an element's value."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(combine)))
    return any(isinstance(node, _BRANCHES) for node in ast.walk(tree))


def _hillis_steele(scan: Any, blocks: Any) -> list[Any]:
    import numpy as np

    axis, found = scan.axis, [block.handle.data for block in blocks]
    width = found[0].shape[axis]
    shape = [1] * found[0].ndim
    shape[axis] = width
    place = np.arange(width).reshape(shape)
    distance = 1
    while distance < width:
        before = _tensors(scan, [np.roll(x, distance, axis) for x in found], blocks)
        combined = scan.combine_fn.fn(*before, *_tensors(scan, found, blocks))
        parts = combined if isinstance(combined, tuple) else (combined,)
        found = [
            np.where(place >= distance, part.handle.data, x).astype(x.dtype)
            for part, x in zip(parts, found, strict=True)
        ]
        distance *= 2
    return _tensors(scan, found, blocks)


def _tensors(scan: Any, arrays: list[Any], like: Any) -> list[Any]:
    """Arrays as the interpreter's tensors, of the types of others."""
    return [
        scan.to_tensor(x, block.dtype) for x, block in zip(arrays, like, strict=True)
    ]
