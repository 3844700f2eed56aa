"""A callable that claims to compute an op, with what it says about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scancheck.contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One implementation of one op.

    `call` takes the op's tensors as torch keyword arguments and returns one tensor,
    or a tuple in the order of the op's outputs.
    """

    name: str  # registered name, or TARGET as the user wrote it
    op: str  # op name
    call: Callable[..., Any]  # the implementation
    contract: Contract | None = None  # None: judged under the defaults
    dtypes: tuple[str, ...] = ("fp32",)  # storage formats it declares
    chunk: int | None = None  # its chunk size where known; recipes aim at its edges
    gradients: bool = False  # whether it says that it is differentiable
    supports: tuple[str, ...] | None = None  # op parameters; None: the signature says
    layouts: tuple[str, ...] = ()  # further layouts it takes: keys=grouped, ...
    edge_sizes: bool = False  # whether T = 0 and B = 0 are part of its promise
    hazard: str | None = None  # for planted bugs: what is wrong with it
    symptom: str | None = None  # for planted bugs: the cause it must be named with
    unavailable: str | None = None  # why it cannot run here, or None
    longest: int | None = None  # tokens it can be given in reasonable time
    packages: tuple[str, ...] = ()  # distributions it is in, the likelier one first
    note: str | None = None  # what its listing says of it where it can run
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it runs; the first by default
    elsewhere: Callable[..., Any] | None = None  # executes it in another process
