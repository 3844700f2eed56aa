"""The sizes that a kernel says it takes, and cases that have them.

Kernels may want a key head for every value head. Others let value heads share one: a
caller of the former repeats keys, and the gradients of what is repeated are summed by
the caller, in the tensor's format: what that rounds is no fault of the kernel. Kernels
of matrix products may want widths that are multiples of their blocks, and a backward
may take fewer sizes than the forward.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from scancheck.case import Case
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid
from scancheck.kernel import GradientSizes, Kernel
from scancheck.ops.normal_form import Op
from scancheck.recipes.catalog import RECIPES
from scancheck.recipes.op_rules import rules_of

ONE_TO_ONE = "one_to_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSizes:
    """Which sizes; by default all."""

    one_to_one: bool = False  # a key head for every value head
    widths: tuple[tuple[str, int], ...] = ()  # size name, and of what a multiple
    of_gradients: GradientSizes | None = None  # of the backward, where it is judged

    def of(self, case: Case) -> Case | None:
        """The case with sizes that are taken; None where its recipe permits none."""
        sizes = dict(case.sizes)
        if self.one_to_one:
            sizes["H"] = sizes["HV"]
        recipe = RECIPES.get(case.recipe)
        exact = recipe is not None and recipe.exact
        for name, multiple in self.widths:
            sizes[name] = -(-sizes[name] // multiple) * multiple
            if exact and name == rules_of(case.op).scaled_by:
                # Its root scales the output, and must be exact.
                if multiple.bit_count() > 1:
                    return None
                while sizes[name].bit_length() % 2 == 0 or sizes[name].bit_count() > 1:
                    sizes[name] += multiple
        taken = replace(case, sizes=tuple(sorted(sizes.items())))
        return taken if self.of_gradients is None else self.of_gradients.of(taken)

    def left_out(self, dtypes: Iterable[str]) -> Iterator[str]:
        """What is not judged, a line each."""
        if self.one_to_one:
            yield f"key heads that value heads share: contract heads={ONE_TO_ONE}"
        for name, multiple in self.widths:
            yield (
                f"{name} that is no multiple of {multiple}: contract "
                f"widths={name}:{multiple}"
            )
        if self.of_gradients and any(map(self.of_gradients.binds, dtypes)):
            yield self.of_gradients.left_out


ALL_SIZES = TakenSizes()


def taken_sizes(
    kernel: Kernel, op: Op, contract: Contract, *, gradients: bool
) -> TakenSizes:
    """What a kernel and the contract that it is judged by say.

    Raises CaseInvalid where the contract speaks of heads or sizes that the op has not.
    """
    one_to_one = contract.heads == ONE_TO_ONE
    if one_to_one and "HV" not in op.size_names:
        raise CaseInvalid(
            f"contract heads: expected shared, since {op.name} has the same heads for "
            f"keys and values; got {contract.heads}"
        )
    known = [name for name in op.size_names if name not in ("B", op.time_axis)]
    for name, _ in contract.widths:
        if name not in known:
            raise CaseInvalid(
                f"contract widths: expected a size of {op.name} ({', '.join(known)}); "
                f"got {name}"
            )
    return TakenSizes(
        one_to_one=one_to_one,
        widths=contract.widths,
        of_gradients=kernel.gradient_sizes if gradients else None,
    )
