"""The stream of trials: what Hypothesis draws, and where it climbs to.

Only sizes, recipes, seeds and options are drawn, never tensors. A campaign is a row of
rounds, each a Hypothesis run of its own with a seed made from the campaign's and the
number of the round: whoever runs them, in whatever order, they hold the same trials.
That is so while the same code is loaded: Hypothesis also draws constants from it.
Hypothesis looks for larger ratios late in a run, so rounds are short.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from hypothesis import (
    HealthCheck,
    Phase,
    Verbosity,
    given,
    reject,
    seed,
    settings,
    target,
)
from hypothesis import strategies as st

from scancheck.campaign.calls import drawn_call
from scancheck.campaign.trial import Judged, Trial
from scancheck.case import Case, make_case
from scancheck.kernel import Kernel
from scancheck.ops.normal_form import Op, value_lanes
from scancheck.recipes.draw import cases
from scancheck.recipes.inputs import COTANGENT_KINDS, case_sizes
from scancheck.recipes.op_rules import rules_of
from scancheck.recipes.taken_sizes import ALL_SIZES, TakenSizes
from scancheck.verdict import RED

ROUND = 100  # trials of a round; the last quarter climbs
CHUNKS = (64, 128, 256, 32, 16)  # aimed at where a kernel does not tell its own
WIDEST = 64  # channels
SHORT, MEDIUM = 512, 4096
LONGEST = {"quick": 65_536, "full": 2**18}
VOLUME = {"quick": 2**15, "full": 2**19}  # entries of all states
EMPTY_IN = 50  # one trial in so many has no tokens, or no batch rows
OFTEN = 20  # lengths of a few chunks for each long one
LEAST_RATIO = 2.0**-60  # an exact result has no logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Which trials a kernel can be given."""

    op: Op
    dtypes: tuple[str, ...]
    profile: str
    gradients: bool
    accepts: frozenset[str]  # as for case_list
    requires: frozenset[str]
    chunk: int | None  # the kernel's, where known
    empty: bool  # whether T = 0 and B = 0 belong to its promise
    taken: TakenSizes = ALL_SIZES


def domain_of(
    kernel: Kernel,
    op: Op,
    *,
    dtypes: tuple[str, ...],
    profile: str,
    gradients: bool,
    accepted: frozenset[str],
    required: frozenset[str],
    chunk: int | None,
    taken: TakenSizes,
) -> Domain:
    """The trials of a kernel with these parameters."""
    return Domain(
        op=op,
        dtypes=dtypes,
        profile=profile,
        gradients=gradients,
        accepts=accepted | set(kernel.layouts),
        requires=required,
        chunk=chunk,
        empty=kernel.edge_sizes,
        taken=taken,
    )


def run_round(
    domain: Domain,
    campaign_seed: int,
    number: int,
    size: int,
    judge: Callable[[Trial], Judged | None],
) -> None:
    """Gives `size` trials to `judge`, one after the other, none of them twice.

    Hypothesis' settings are all given here: in a CI environment its own defaults make
    no two runs differ. There is no database, which would change what a seed draws.
    Once `judge` gives None, the rest of the round is not judged.
    """
    known: dict[tuple[Case, str | None], Judged] = {}
    stopped = False

    def one(trial: Trial) -> None:
        nonlocal stopped
        key = (trial.case, trial.cotangent_kind)
        judged = known.get(key)
        if judged is None and not stopped and len(known) < size:
            judged = judge(trial)
            stopped = judged is None
        if judged is None:
            return
        known[key] = judged
        # What is red already is found; climbing on it would find it again.
        if judged.verdict not in RED:
            for label, ratio in _heights(judged).items():
                target(ratio, label=label)

    for attempt in count():
        if stopped or len(known) >= size:
            return
        _searched(domain, one, size, f"{campaign_seed} round {number} {attempt}")


def _searched(
    domain: Domain, one: Callable[[Trial], None], size: int, key: str
) -> None:
    """One run of Hypothesis over the trials, random first and then climbing."""
    digest = hashlib.sha256(f"scancheck campaign {key}".encode()).digest()
    seed(int.from_bytes(digest[:8]))(
        settings(
            max_examples=size + size // 2 + 1,
            phases=(Phase.generate, Phase.target),
            derandomize=False,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            backend="hypothesis",
        )(given(trials(domain))(one))
    )()


def _heights(judged: Judged) -> dict[str, float]:
    """log2 of the worst finite ratio of outputs, and of gradients."""
    found: dict[str, float] = {}
    for name, ratio in judged.ratios.items():
        label = "gradients" if name.startswith("d ") else "outputs"
        if math.isfinite(ratio):
            height = math.log2(max(ratio, LEAST_RATIO))
            found[label] = max(found.get(label, height), height)
    return found


@st.composite
def trials(draw: st.DrawFn, domain: Domain) -> Trial:
    """Trials over all recipes, options, layouts and sizes of the domain."""
    chunk = domain.chunk or draw(st.sampled_from(CHUNKS))
    case = draw(
        cases(
            domain.op.name,
            dtypes=domain.dtypes,
            chunk=chunk,
            accepts=domain.accepts,
            requires=domain.requires,
        )
    )

    def chosen(name: str, kinds: Sequence[Sequence[int]]) -> int:
        """One of the numbers of one of the kinds.

        Hypothesis likes first choices and copies of earlier ones; what it draws is
        turned by an amount that hangs on the case's seed, so that these differ too,
        while small steps from one case stay small.
        """
        kind = kinds[_turned(draw, f"{case.seed} {name} kind", len(kinds))]
        return kind[_turned(draw, f"{case.seed} {name}", len(kind))]

    sizes = dict(case.sizes)
    steps = chosen("steps", lengths(domain.profile, chunk))
    # Groups that each need a channel, and how many of them the size of lanes counts.
    lanes = rules_of(case.op).lanes
    of_row = case_sizes(case) | {"B": 1}
    groups, states, _ = domain.op.group_shape(of_row)
    counted = sizes[lanes] // value_lanes(domain.op, of_row)
    room = VOLUME[domain.profile] // max(1, steps * states)
    sizes["B"] = min(sizes["B"], max(1, room // groups))
    widest = min(WIDEST, max(1, room // sizes["B"]))
    sizes[lanes] = counted * chosen("channels", widths(max(1, widest // groups)))
    sizes[domain.op.time_axis] = steps
    if domain.empty and chosen("empty", [range(EMPTY_IN)]) == 0:
        sizes[draw(st.sampled_from((domain.op.time_axis, "B")))] = 0
    called, options = drawn_call(
        chosen,
        domain.accepts,
        batch=sizes["B"],
        steps=sizes[domain.op.time_axis],
        chunk=chunk,
    )
    kind = draw(st.sampled_from(COTANGENT_KINDS)) if domain.gradients else None
    drawn = make_case(
        case.op,
        sizes | called,
        dtype=case.dtype,
        recipe=case.recipe,
        seed=case.seed,
        options=dict(case.options) | options,
    )
    taken = domain.taken.of(drawn)
    return Trial(case=reject() if taken is None else taken, cotangent_kind=kind)


def _turned(draw: st.DrawFn, key: str, count: int) -> int:
    digest = hashlib.sha256(key.encode()).digest()
    turn = int.from_bytes(digest[:8])
    return (draw(st.integers(0, count - 1)) + turn) % count


def widths(widest: int) -> list[Sequence[int]]:
    """Kinds of numbers of channels: enough for rho (16), a few, now and then many."""
    few = range(1, min(4, widest) + 1)
    some = range(1, min(17, widest) + 1)
    return [some[-1:], some, some, few, few, range(1, widest + 1)]


def lengths(profile: str, chunk: int) -> list[Sequence[int]]:
    """Kinds of lengths: mostly a few chunks and their tails, now and then long ones."""
    edges = [chunks * chunk + tail for chunks in (1, 2, 3, 4) for tail in (-1, 0, 1, 3)]
    edged = [n for n in edges if 0 < n <= max(SHORT, 3 * chunk + 3)]
    small = range(1, min(2 * chunk, SHORT) + 1)
    often = [edged, small, range(1, SHORT + 1)] * OFTEN
    medium = range(SHORT + 1, MEDIUM + 1)
    return [*often, medium, medium, _long(LONGEST[profile])]


def _long(longest: int) -> list[int]:
    """Around the powers of two up to the longest, tails included."""
    powers = [2**k for k in range(13, longest.bit_length())]
    around = [power + tail for power in powers for tail in (-1, 0, 1, 17)]
    return [n for n in around if n <= longest]
