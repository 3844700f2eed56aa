"""What a campaign asks a kernel's process to judge, and what comes back."""

from dataclasses import dataclass, field

from scancheck.case import Case
from scancheck.formats import FloatArray
from scancheck.ops.calling import op_of
from scancheck.recipes.inputs import Inputs
from scancheck.record import Finding
from scancheck.verdict import Verdict

# Elements that share p, fixed so that a case is judged alike in a short campaign, a
# long one and a replay; 2**40 of them make lambda a sixth larger than 2**20 would.
ELEMENTS = 2**40
FALSE_ALARM_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case to judge; `inputs` and `cotangents` replace those of its recipe."""

    case: Case
    cotangent_kind: str | None = None  # None: gradients are not judged
    inputs: Inputs | None = None
    cotangents: dict[str, FloatArray] | None = None
    in_full: bool = False  # whether the finding and the tensors are wanted too


def steps_of(trial: Trial) -> int:
    """Tokens of the trial's case."""
    return dict(trial.case.sizes)[op_of(trial.case).time_axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial is red; trials with the same key fail for the same cause."""

    verdict: Verdict
    cause: str  # key of diagnosis.CAUSES
    key: str  # the cause; for failed calls also how and where they failed
    reason: str  # one sentence
    ended: str = ""  # "crashed" or "hung" where the kernel took its process along


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A failure in full: its finding, and the tensors that show it."""

    finding: Finding
    inputs: Inputs
    cotangents: dict[str, FloatArray] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The outcome of a trial."""

    trial: Trial
    verdict: Verdict | None  # None: outside the domain of the contract, not judged
    failure: Failure | None = None  # for red verdicts
    detail: Detail | None = None  # for red verdicts judged in full
    reason: str = ""  # for RANGE and UNCERTIFIED
    passing: dict[str, bool] | None = None  # wider contracts that outputs would pass
    returned: tuple[str, ...] = ()  # outputs that the kernel gave back
    seen: tuple[str, ...] = ()  # parts that a fault in would have shown (BLIND)
    elements: int = 0
    vacuous: int = 0
    ratios: dict[str, float] = field(default_factory=dict)  # worst error / budget
    rhos: dict[str, float] = field(default_factory=dict)
    why_on_cpu: str | None = None  # judged there, where the kernel ran on CUDA
