"""One measured row of a study, the only thing that a report is made from."""

from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, get_args

SCHEMA_VERSION = 2
LATER_COLUMNS = ("bits",)  # not in files none of whose rows has them
KINDS = ("case", "position", "in_chunk", "length", "step")
FORM_WORDS: dict[str | None, str] = {"g": "{op}, log gates g", "a": "{op}, decays a"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor of one kernel on one case, or a part of it.

    kind "case": the whole tensor. "position": the tokens token .. token + tokens - 1.
    "in_chunk": the same, counted from the start of every chunk. "length": the whole
    tensor, with its bounds. "step": one token of a failure, shrunk.

    Errors called rel are per chain (all tokens of one channel of one batch row) over
    the RMS of the true chain, then root mean square over chains, so that a large
    channel does not hide a small one. A number that is not finite, or does not apply,
    is None.
    """

    kind: str  # one of KINDS
    section: str  # part of the page that it was measured for
    job: str  # key of the job that it came from
    op: str  # op name
    kernel: str  # name of the model
    algorithm: str  # name in the catalog of models
    variant: str  # of the arithmetic: plain, kahan, full, a log form
    storage: str  # format of the op's tensors
    compute: str  # format of every operation
    state: str  # format of the carried state
    chunk: int | None  # tokens per chunk; None where there are no chunks
    T: int  # tokens
    B: int  # batch rows
    D: int  # channels
    N: int | None  # states per channel of selective_scan
    recipe: str  # input family, or captured
    form: str | None  # of linear_scan's decays: a or g
    seed: int  # of the case
    cotangent: str | None  # cotangent kind where gradients were asked for
    case_id: str
    tensor: str  # output name, or d and the name of an input for its gradient
    sequence: bool  # whether it is the op's sequence output
    verdict: str  # of this tensor
    reason: str  # why, where the verdict is not PASS
    values: int  # elements measured
    max_ratio: float | None = None  # largest error / budget
    rms_rel: float | None = None  # RMS error, relative
    floor_rel: float | None = None  # the same for the exact answer, stored once
    max_rel: float | None = None  # largest error over the RMS of its true chain
    max_ulp: float | None = None  # largest error in ulp of the tensor's format
    rms_ulp: float | None = None  # RMS error in ulp at the RMS of the true chain
    err_over_uM: float | None = None  # largest error / (u M), u of the storage format
    effective_bits: float | None = None  # -log2 of RMS error over RMS truth
    vacuous_share: float | None = None  # elements whose budget is at least their size
    nonfinite: int = 0  # elements without a finite error
    rho: float | None = None  # RMS error over the predicted one, where it applies
    max_budget_rel: float | None = None  # largest budget over RMS of its true chain
    probable_rel: float | None = None  # largest lambda u sqrt(v), the same way
    log_decay: float | None = None  # mean over tokens and chains
    strongest_log_decay: float | None = None  # mean over tokens, of the fastest chain
    token: int | None = None  # first token of the bucket, or that of the step
    tokens: int | None = None  # tokens in the bucket
    step_a: float | None = None  # decay of the step
    step_b: float | None = None  # what it adds to the state
    wanted: float | None = None  # true output of the step
    got: float | None = None  # the kernel's
    bits: str | None = None  # digest of the tensor's values, in a sweep on a device

    @property
    def subject(self) -> str:
        """The op, and which of its forms where it has several."""
        return FORM_WORDS.get(self.form, "{op}").format(op=self.op)


def column_types() -> dict[str, tuple[type, bool]]:
    """Type and whether it may be None, by field name."""
    found: dict[str, tuple[type, bool]] = {}
    for field in fields(Row):
        annotation: Any = field.type
        optional = isinstance(annotation, UnionType)
        plain = get_args(annotation)[0] if optional else annotation
        found[field.name] = (plain, optional)
    return found
