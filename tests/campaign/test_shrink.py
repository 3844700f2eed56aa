"""Shrinking: as small as the failure allows, and never another failure."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from scancheck.campaign.shrink import MOST_TRIALS, NO_RECIPE, shrunk
from scancheck.campaign.trial import Detail, Failure, Judged, Trial
from scancheck.case import make_case
from scancheck.ops import op_named
from scancheck.ops.normal_form import spec_of
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.verdict import Verdict

FAILURE = Failure(verdict=Verdict.FAIL, cause="carry", key="carry", reason="wrong")


def linear(steps: int = 200, batch: int = 3, channels: int = 17) -> Trial:
    """A trial of linear_scan with gradients."""
    case = make_case(
        "linear_scan",
        {"B": batch, "T": steps, "D": channels},
        recipe="gaussian_slow",
        seed=1,
        options={"form": "a", "initial_state": True},
    )
    return Trial(case=case, cotangent_kind="dense")


def judge_by(fails: Callable[[Trial], str | None]) -> Callable[[Trial], Judged]:
    """A judge that calls the trials red for which `fails` names a cause."""

    def judge(trial: Trial) -> Judged:
        cause = fails(trial)
        if cause is None:
            return Judged(trial=trial, verdict=Verdict.PASS)
        failure = Failure(verdict=Verdict.FAIL, cause=cause, key=cause, reason="wrong")
        return Judged(trial=trial, verdict=Verdict.FAIL, failure=failure)

    return judge


def sizes_of(judged: Judged) -> dict[str, int]:
    """The sizes, after a look whether all tensors have them."""
    trial = judged.trial
    op, sizes = op_named(trial.case.op), {"G": 1} | dict(trial.case.sizes)
    assert trial.inputs is not None
    for name, values in {**trial.inputs.tensors, **(trial.cotangents or {})}.items():
        axes = spec_of(op, name, values.ndim).axes
        assert values.shape == tuple(sizes[axis] for axis in axes)
    return sizes


def started(trial: Trial) -> Judged:
    """The failing trial that shrinking begins with."""
    return Judged(trial=trial, verdict=Verdict.FAIL, failure=FAILURE)


@pytest.mark.parametrize("least", [1, 2, 65, 129])
def test_length_batch_and_channels_become_the_fewest(least: int) -> None:
    """A failure that needs so many tokens is left with these and one lane."""

    def fails(trial: Trial) -> str | None:
        return "carry" if dict(trial.case.sizes)["T"] >= least else None

    smallest = shrunk(judge_by(fails), started(linear()), FAILURE)
    sizes = sizes_of(smallest)
    assert (sizes["T"], sizes["B"], sizes["D"]) == (least, 1, 1)


def test_values_become_zeros_ones_and_powers_of_two() -> None:
    """Values that do not matter are zero, and those that do are plain."""

    def fails(trial: Trial) -> str | None:
        assert trial.inputs is not None
        return "carry" if (trial.inputs.tensors["b"] != 0.0).any() else None

    smallest = shrunk(judge_by(fails), started(linear(steps=8)), FAILURE)
    inputs = smallest.trial.inputs
    assert inputs is not None
    assert smallest.trial.case.recipe == NO_RECIPE
    assert (inputs.tensors["a"] == 0.0).all()
    assert (inputs.tensors["b"] == 1.0).all()
    assert smallest.trial.cotangents is not None
    assert all((bar == 0.0).all() for bar in smallest.trial.cotangents.values())


def test_powers_of_two_stay_in_their_format() -> None:
    """Where zeros and ones pass, magnitudes go down to a power of two, signs kept."""

    def fails(trial: Trial) -> str | None:
        assert trial.inputs is not None
        below = (trial.inputs.tensors["b"] <= 1.0 / 1024).all()
        return "carry" if below and (trial.inputs.tensors["b"] != 0.0).all() else None

    case = replace(linear(steps=4, batch=1, channels=4).case, dtype="bf16")
    inputs = build(case)
    inputs.tensors["b"] = -np.abs(inputs.tensors["b"])
    detail = Detail(finding=None, inputs=inputs, cotangents=None)  # type: ignore[arg-type]
    full = Judged(
        trial=Trial(case=case), verdict=Verdict.FAIL, failure=FAILURE, detail=detail
    )
    smallest = shrunk(judge_by(fails), full, FAILURE)
    assert smallest.trial.inputs is not None
    after = smallest.trial.inputs.tensors["b"]
    assert after.size == 1
    assert after.item() < 0.0
    assert np.frexp(after)[0].item() == -0.5


def test_another_cause_or_verdict_is_not_taken() -> None:
    """What is smaller but fails for another cause is left alone."""

    def fails(trial: Trial) -> str:
        return "carry" if dict(trial.case.sizes)["T"] >= 40 else "local"

    smallest = shrunk(judge_by(fails), started(linear()), FAILURE)
    assert sizes_of(smallest)["T"] == 40
    assert smallest.failure is not None
    assert smallest.failure.key == "carry"


def test_groups_are_cut_as_a_whole() -> None:
    """Grouped B and C lose a group with its channels, and stay consistent."""
    case = make_case(
        "selective_scan",
        {"B": 2, "D": 6, "L": 20, "N": 3, "G": 2},
        recipe="gaussian_slow",
        seed=5,
        options={"keys": "grouped"},
    )

    def fails(trial: Trial) -> str | None:
        assert trial.inputs is not None
        build_like = dict(trial.case.sizes)
        assert build_like["D"] % build_like["G"] == 0
        return "carry"

    smallest = shrunk(judge_by(fails), started(Trial(case=case)), FAILURE)
    sizes = sizes_of(smallest)
    assert [sizes[n] for n in ("B", "D", "L", "N", "G")] == [1, 1, 1, 1, 1]


def test_nothing_smaller_that_fails_leaves_the_trial_itself() -> None:
    """Shrinking ends, and gives back what it began with."""
    tried = []

    def fails(trial: Trial) -> None:
        tried.append(trial)

    full = started(linear())
    assert shrunk(judge_by(fails), full, FAILURE) is full
    assert 0 < len(tried) <= MOST_TRIALS


def test_the_tensors_as_run_are_what_is_cut() -> None:
    """A trial judged in full gives its own tensors, not those of the recipe."""
    trial = linear(steps=6)
    inputs = build(trial.case)
    inputs.tensors["b"] *= 2.0
    bars = cotangents(trial.case, "dense", 9)

    def fails(candidate: Trial) -> str | None:
        assert candidate.inputs is not None and candidate.cotangents is not None
        kept = candidate.inputs.tensors["b"]
        doubled = np.isin(kept, inputs.tensors["b"]).all()
        return "carry" if doubled and candidate.case.recipe != NO_RECIPE else None

    full = started(trial)
    detail = Detail(finding=None, inputs=inputs, cotangents=bars)  # type: ignore[arg-type]
    full = Judged(
        trial=full.trial, verdict=full.verdict, failure=FAILURE, detail=detail
    )
    assert sizes_of(shrunk(judge_by(fails), full, FAILURE))["T"] == 1


def test_a_hang_is_not_shrunk() -> None:
    """Each attempt would take as long as a hang is waited for."""
    hung = Failure(
        verdict=Verdict.ERROR, cause="call", key="call hung", reason="", ended="hung"
    )
    full = Judged(trial=linear(), verdict=Verdict.ERROR, failure=hung)

    def never(trial: Trial) -> Judged:
        raise AssertionError("tried")

    assert shrunk(never, full, hung) is full


@pytest.mark.parametrize(
    ("op", "sizes", "least"),
    [
        ("simple_gla", {"H": 2, "HV": 6, "K": 5, "V": 3}, {"H": 1, "HV": 2}),
        ("ssd", {"G": 2, "H": 6, "N": 5, "P": 3}, {"G": 1, "H": 2}),
        ("rwkv6", {"H": 4, "K": 5, "V": 3}, {"H": 2}),
    ],
)
def test_heads_keys_and_values_become_the_fewest(
    op: str, sizes: dict[str, int], least: dict[str, int]
) -> None:
    """A failure of two value heads keeps the keys that they share, of size 1."""
    case = make_case(
        op, {"B": 2, "T": 9, **sizes}, recipe="gaussian_slow", seed=1, options={}
    )
    heads = "HV" if "HV" in sizes else "H"

    def fails(trial: Trial) -> str | None:
        return "carry" if dict(trial.case.sizes)[heads] >= 2 else None

    trial = Trial(case=case, cotangent_kind="dense")
    found = sizes_of(shrunk(judge_by(fails), started(trial), FAILURE))
    assert found == dict.fromkeys({"B", "T", "G", *sizes}, 1) | least


def called(sizes: dict[str, int], **calling: object) -> Trial:
    """A trial of simple_gla with gradients, called like this."""
    case = make_case(
        "simple_gla",
        {"H": 1, "HV": 2, "K": 3, "V": 2} | sizes,
        recipe="gaussian_slow",
        seed=4,
        options={"initial_state": True, **calling},
    )
    return Trial(case=case, cotangent_kind="dense")


def test_packed_sequences_are_taken_away_one_by_one() -> None:
    """What leaks into a sequence of two tokens needs that one and the one before."""
    trial = called({"B": 1, "T": 60}, cu_seqlens=(0, 20, 20, 37, 39, 39, 60))
    first = build(trial.case).tensors["q"][0, 37:39]

    def fails(trial: Trial) -> str | None:
        assert trial.inputs is not None
        offsets = dict(trial.case.options)["cu_seqlens"]
        q = trial.inputs.tensors["q"][0]
        assert offsets[-1] == len(q) == dict(trial.case.sizes)["T"]
        assert len(trial.inputs.tensors["initial_state"]) == len(offsets) - 1
        found = (
            stop - start == 2 and start > 0 and np.array_equal(q[start:stop], first)
            for start, stop in pairwise(offsets)
        )
        return "boundary" if any(found) else None

    failure = replace(FAILURE, cause="boundary", key="boundary")
    full = Judged(trial=trial, verdict=Verdict.FAIL, failure=failure)
    smallest = shrunk(judge_by(fails), full, failure).trial.case
    assert dict(smallest.options)["cu_seqlens"] == (0, 1, 3)
    assert dict(smallest.sizes)["T"] == 3


def test_padded_rows_keep_their_lengths() -> None:
    """Lengths go with rows and tokens: the last row, with one token of padding."""
    trial = called({"B": 3, "T": 9}, lengths=(9, 3, 8))

    def fails(trial: Trial) -> str | None:
        steps, lengths = (
            dict(trial.case.sizes)["T"],
            dict(trial.case.options)["lengths"],
        )
        assert len(lengths) == dict(trial.case.sizes)["B"]
        assert all(0 <= length <= steps for length in lengths)
        return "carry" if any(length == steps - 1 >= 1 for length in lengths) else None

    smallest = shrunk(judge_by(fails), started(trial), FAILURE).trial.case
    assert dict(smallest.options)["lengths"] == (1,)
    assert dict(smallest.sizes)["T"] == 2
