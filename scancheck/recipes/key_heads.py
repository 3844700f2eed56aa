"""Kernels that take as many key heads as value heads, and cases for them.

Others let several value heads share a key head. A caller of the former repeats keys,
and the gradients of what is repeated are summed by the caller, in the tensor's format:
what that rounds is no fault of the kernel.
"""

from dataclasses import replace

from scancheck.case import Case
from scancheck.errors import CaseInvalid
from scancheck.ops.normal_form import Op

ONE_TO_ONE = "one_to_one"
NOT_JUDGED = f"key heads that value heads share: contract heads={ONE_TO_ONE}"


def takes_own_keys(op: Op, heads: str) -> bool:
    """Whether a contract's `heads` says that every value head needs a key head.

    Raises CaseInvalid for an op that has no key heads beside its value heads.
    """
    if heads != ONE_TO_ONE:
        return False
    if "HV" not in op.size_names:
        raise CaseInvalid(
            f"contract heads: expected shared, since {op.name} has the same heads for "
            f"keys and values; got {heads}"
        )
    return True


def with_own_keys(case: Case) -> Case:
    """The case with a key head for each value head."""
    sizes = dict(case.sizes)
    return replace(case, sizes=tuple(sorted((sizes | {"H": sizes["HV"]}).items())))
