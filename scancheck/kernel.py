"""A callable that claims to compute an op, with what it says about itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from scancheck.case import Case
from scancheck.contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSizes:
    """Sizes that a kernel's backward takes, where its authors leave some out.

    Its forward may take all: judged without gradients it is given them.
    """

    names: tuple[str, ...]  # of the op's sizes, as K and V
    least: int = 1
    multiple: int = 1
    dtypes: tuple[str, ...] | None = None  # in which that is so; None: in all
    why: str  # as the kernel or its compiler says

    def binds(self, dtype: str) -> bool:
        """Whether sizes are left out in that dtype."""
        return self.dtypes is None or dtype in self.dtypes

    def of(self, case: Case) -> Case:
        """The case with sizes that are taken; small ones that differ still do."""
        if not self.binds(case.dtype):
            return case
        sizes = dict(case.sizes)
        for name in self.names:
            size = sizes[name] + (self.least - 1 if sizes[name] < self.least else 0)
            sizes[name] = -(-size // self.multiple) * self.multiple
        return replace(case, sizes=tuple(sorted(sizes.items())))

    @property
    def left_out(self) -> str:
        """What is not judged, in one line."""
        names = " or ".join(self.names)
        where = "" if self.dtypes is None else f" in {', '.join(self.dtypes)}"
        kinds = []
        if self.least > 1:
            kinds.append(f"below {self.least}")
        if self.multiple > 1:
            kinds.append(f"no multiple of {self.multiple}")
        return f"gradients{where} with {names} {' or '.join(kinds)}: {self.why}"


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
    no_gradients: str | None = None  # why its backward refuses to run here, or None
    gradient_sizes: GradientSizes | None = None  # of its backward; None: all
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
