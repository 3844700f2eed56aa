"""Where a finding sits, in words."""

from scancheck.ops import op_named
from scancheck.ops.calling import called, calling_of
from scancheck.ops.normal_form import spec_of
from scancheck.record import Finding


def tensor_label(finding: Finding) -> str | None:
    """The tensor's name, as `da` for the gradient of `a`; None where there is none."""
    if finding.tensor is None:
        return None
    return f"d{finding.tensor}" if finding.check == "gradient" else finding.tensor


def element(op: str, finding: Finding) -> str:
    """The first wrong element with its axes named, for example `h[B=0, T=64, D=3]`."""
    index = finding.first_wrong_index or ()
    axes: tuple[str, ...] = ("",) * len(index)
    if finding.tensor is not None:
        known = called(op_named(op), calling_of(finding.case.get("options", {})))
        axes = spec_of(known, finding.tensor, len(index)).axes
    pairs = zip(axes, index, strict=True)
    inside = ", ".join(f"{axis}={i}" if axis else str(i) for axis, i in pairs)
    return f"{tensor_label(finding) or finding.check}[{inside}]"


def place_words(finding: Finding) -> str:
    """The place in time, for example `token 64: chunk 1, position 0, in the carry`."""
    place = finding.place
    if place is None:
        return ""
    words = f"token {place['token']}"
    if place.get("sequence") is not None:
        words += f", in sequence {place['sequence']}"
    if place.get("chunk") is None:
        return words
    words += f": chunk {place['chunk']}, position {place['position']}"
    match place.get("where"):
        case "carry":
            return f"{words}, in the carry"
        case "local":
            return f"{words}, inside the chunk"
        case _:
            return words
