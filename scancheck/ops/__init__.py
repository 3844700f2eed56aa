"""What is to be computed: one file per op on the normal form."""

from scancheck.errors import CaseInvalid
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Op
from scancheck.ops.selective_scan import SELECTIVE_SCAN

OPS = {op.name: op for op in (LINEAR_SCAN, SELECTIVE_SCAN)}


def op_named(name: str) -> Op:
    """The registered op; raises CaseInvalid that lists the known ones."""
    if name not in OPS:
        raise CaseInvalid(f"op {name!r} is unknown; expected one of {', '.join(OPS)}")
    return OPS[name]
