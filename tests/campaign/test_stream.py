"""The stream of trials: repeatable, varied, within its domain, and climbing."""

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import settings

from scancheck.campaign.stream import (
    LONGEST,
    VOLUME,
    WIDEST,
    Domain,
    lengths,
    run_round,
)
from scancheck.campaign.trial import Judged, Trial
from scancheck.ops import op_named
from scancheck.ops.calling import ARGUMENTS, op_of
from scancheck.recipes import build
from scancheck.recipes.catalog import accepts_everything, recipes_for
from scancheck.recipes.inputs import case_sizes
from scancheck.verdict import Verdict


def domain(op: str = "linear_scan", **changes: object) -> Domain:
    """Everything that an op has, judged with gradients."""
    fields = {
        "op": op_named(op),
        "dtypes": ("fp32", "bf16"),
        "profile": "quick",
        "gradients": True,
        "accepts": accepts_everything(op),
        "requires": frozenset[str](),
        "chunk": 64,
        "empty": False,
    }
    return Domain(**{**fields, **changes})  # type: ignore[arg-type]


def drawn(where: Domain, seed: int = 0, rounds: int = 1, size: int = 60) -> list[Trial]:
    """The trials of the first rounds, judged by nobody."""
    seen: list[Trial] = []

    def judge(trial: Trial) -> Judged:
        seen.append(trial)
        return Judged(trial=trial, verdict=Verdict.PASS)

    for number in range(rounds):
        run_round(where, seed, number, size, judge)
    return seen


def test_a_seed_gives_the_same_trials_and_another_gives_others() -> None:
    """The stream is a function of its seed, whatever profile Hypothesis has loaded."""
    first = drawn(domain(), seed=3)
    before = settings.get_current_profile_name()
    settings.load_profile("ci")
    try:
        again = drawn(domain(), seed=3)
        other = drawn(domain(), seed=4)
    finally:
        settings.load_profile(before)
    assert first == again
    assert len({*first} & {*other}) < len(first) // 4


def test_a_round_has_the_size_that_was_asked_for_and_repeats_no_trial() -> None:
    """N cases are N different cases."""
    for size in (1, 7, 100):
        found = drawn(domain(), size=size)
        assert len(found) == size
        assert len({(t.case, t.cotangent_kind) for t in found}) == size


@pytest.mark.parametrize("op", ["linear_scan", "selective_scan"])
@pytest.mark.parametrize("profile", ["quick", "full"])
def test_trials_stay_within_the_sizes_of_their_profile(op: str, profile: str) -> None:
    """Lengths reach the longest of the profile, and no tensor is too large."""
    where = domain(op, profile=profile)
    for trial in drawn(where, size=100):
        sizes = dict(trial.case.sizes)
        steps = sizes[where.op.time_axis]
        volume = steps * sizes["B"] * sizes["D"] * sizes.get("N", 1)
        smallest = steps * sizes.get("N", 1) * sizes.get("G", 1)
        assert 1 <= steps <= LONGEST[profile]
        assert 1 <= sizes["D"] <= WIDEST
        assert volume <= max(VOLUME[profile], smallest)
    assert max(map(max, lengths(profile, 64))) == LONGEST[profile]


@pytest.mark.parametrize("op", ["simple_gla", "gla", "ssd", "kda"])
def test_trials_of_ops_with_heads(op: str) -> None:
    """They build, stay within the volume, and value heads share keys where any may."""
    where = domain(op)
    sizes = []
    for trial in drawn(where, size=60):
        sizes.append(case_sizes(trial.case))
        groups, states, lanes = where.op.group_shape(sizes[-1])
        steps = sizes[-1]["T"]
        least = steps * states * groups // sizes[-1]["B"]
        assert steps * groups * states * lanes <= max(VOLUME["quick"], least)
        if steps <= 300:
            assert build(trial.case).tensors
    assert {s["H"] > 1 for s in sizes} == {True, False}
    assert len({s.get("V", s.get("P")) for s in sizes}) > 4
    shared = {s.get("HV", s["H"]) > s.get("G", s["H"]) for s in sizes}
    assert shared == ({False} if op == "gla" else {True, False})


def test_all_recipes_forms_and_cotangents_are_drawn() -> None:
    """A thousand trials leave out no recipe, form, dtype, tail or cotangent."""
    # Hypothesis also draws constants of whatever code is loaded, so these trials differ
    # with every edit; of so many, each recipe has at least a few.
    found = drawn(domain(), rounds=15, size=80)
    recipes = {r.name for form in "ag" for r in recipes_for("linear_scan", form)}
    assert {t.case.recipe for t in found} == recipes
    assert {t.case.dtype for t in found} == {"fp32", "bf16"}
    assert {dict(t.case.options)["form"] for t in found} == {"a", "g"}
    assert len({t.cotangent_kind for t in found}) == 4
    steps = Counter(dict(t.case.sizes)["T"] for t in found)
    assert {63, 64, 65, 131} <= set(steps)
    assert max(steps.values()) < len(found) // 4


def test_only_kernels_that_promise_it_get_empty_trials() -> None:
    """T = 0 and B = 0 come up, and only where they are part of the promise."""
    for empty in (False, True):
        sizes = [dict(t.case.sizes) for t in drawn(domain(empty=empty), rounds=3)]
        assert any(0 in (s["T"], s["B"]) for s in sizes) is empty


def test_the_stream_climbs_toward_larger_ratios() -> None:
    """Late trials of a round have larger ratios than early ones, by what was judged."""
    gains = []
    for number in range(4):
        ratios: list[float] = []

        def judge(trial: Trial, ratios: list[float] = ratios) -> Judged:
            ratio = float(dict(trial.case.sizes)["B"] * trial.case.seed + 1)
            ratios.append(ratio)
            return Judged(trial=trial, verdict=Verdict.PASS, ratios={"h": ratio})

        run_round(domain(), 0, number, 100, judge)
        early, late = ratios[:70], ratios[85:]
        gains.append(math.log2(max(late)) - math.log2(sorted(early)[len(early) // 2]))
    assert sum(gain > 0.0 for gain in gains) >= 3


def test_a_round_ends_when_the_judge_stops() -> None:
    """After None, nothing more is judged."""
    seen = []

    def judge(trial: Trial) -> None:
        seen.append(trial)

    run_round(domain(), 0, 0, 50, judge)
    assert len(seen) == 1


def test_calls_of_several_sequences_are_drawn_and_can_be_built() -> None:
    """Every way that is accepted, with empty sequences and boundaries inside chunks."""
    accepts = accepts_everything("gated_delta_rule") | set(ARGUMENTS)
    trials = drawn(domain("gated_delta_rule", accepts=accepts), rounds=6, size=60)
    ways: Counter[str] = Counter()
    lengths: set[int] = set()
    inside = False
    for trial in trials:
        calling = op_of(trial.case).calling
        if calling is None:
            continue
        if sum(ways.values()) < 20:
            build(trial.case)
        ways.update(calling.arguments)
        if calling.cu_seqlens is not None:
            lengths |= {b - a for a, b in pairwise(calling.cu_seqlens)}
            inside |= any(n % 64 for n in calling.cu_seqlens[1:-1])
    assert set(ways) == set(ARGUMENTS)
    assert {0, 1} <= lengths
    assert inside
    assert 0.1 * len(trials) <= sum(ways.values()) <= 0.6 * len(trials)


def test_kernels_of_one_sequence_get_no_call() -> None:
    """What is not accepted is not drawn."""
    assert all(op_of(trial.case).calling is None for trial in drawn(domain()))
