"""What to do about parts of an op that a run could not see."""

BLIND_ADVICE = (
    "more and longer cases: --profile full; smaller budgets: declare the order of "
    "operations, as in --contract structure=sequential"
)

_CALLS = "did a call of that kind pass, with sequences of several tokens?"
_BY_KIND = {
    "carry": "declare the chunk size with --contract 'structure=chunk(C)', so that "
    "cases cross its edges",
    "first": "check that the kernel takes lengths above 1",
    "last": "check that the kernel takes lengths above 1",
    "input": "does the kernel use them, and are its results above their rounding?",
    "output": "is it large enough against its rounding in any case that passes?",
    "gradient": "is it ever large enough against its rounding, and not cut off?",
    "boundaries": _CALLS,
    "direction": _CALLS,
    "padding": _CALLS,
}


def blind_advice(part: str) -> str:
    """What to do about an unseen part, named as in `RunRecord.unseen`."""
    return _BY_KIND[part.split()[0]]
