"""Numba compilation for the oracles, and for the bounds, which call their loops."""

from pathlib import Path

from scancheck import errors
from scancheck.jit import jit_of

# For functions that allocate nothing: views of arrays are not counted as references,
# which costs more than a short row of arithmetic.
NO_ALLOCATION = {"_nrt": False}

jit = jit_of("numba", (Path(__file__).parent, Path(errors.__file__).parent / "bounds"))

__all__ = ["NO_ALLOCATION", "jit"]
