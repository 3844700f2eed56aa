"""What models declare in common: storage formats, and functions rounded once."""

from scancheck.contract import Contract, ErrorModel
from scancheck.formats import FORMATS, Format, format_named
from scancheck.kernels.models.arithmetic import HAS_EXTENDED_PRECISION, Arithmetic

ROUNDED_ONCE = ErrorModel(e0=Arithmetic.FUNCTION_ERROR)


def dtypes_held(compute: str, operands: str = "compute") -> tuple[str, ...]:
    """The storage formats whose every value is one of the compute format.

    A model that computes in its storage format, or rounds operands of its products to
    it, does not do so in 8 bits: no value would be ten times as large as its budget.
    """
    held = list(FORMATS)
    if compute != "storage":
        wide = format_named("fp64" if compute == Contract().compute else compute)
        held = [name for name in held if _holds(wide, FORMATS[name])]
    if "storage" in (compute, operands):
        held = [name for name in held if FORMATS[name].bits > 8]
    if not HAS_EXTENDED_PRECISION:
        held = [name for name in held if name != "fp64"]
    return tuple(held)


def _holds(outer: Format, inner: Format) -> bool:
    return (
        inner.precision <= outer.precision
        and inner.smallest_subnormal >= outer.smallest_subnormal
        and inner.largest <= outer.largest
    )
