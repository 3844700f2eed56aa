"""What is measured of a tensor is what its column says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from scancheck.bounds.budget import Allowance
from scancheck.checks.oracle import Request, check_case
from scancheck.contract import Contract
from scancheck.formats import FORMATS, FloatArray, ulp
from scancheck.kernel import Kernel
from scancheck.metrics import measure
from scancheck.oracles.ladder import Reference
from scancheck.study.configurations import Configuration
from scancheck.study.measure import Measured, relative_rms, rows_of
from scancheck.study.plan import Job, case_of
from scancheck.study.row import Row

WAY = Configuration(op="linear_scan", storage="bf16", algorithm="sequential")
SIZES = (("B", 1), ("D", 32), ("T", 40))
JOB = Job(configuration=WAY, recipe="gaussian_slow", sizes=SIZES, form="g", seed=3)


def in_fp64(*, g: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """linear_scan in fp64, each output rounded once."""
    h, states = torch.zeros_like(b[:, 0], dtype=torch.float64), []
    for t in range(b.shape[1]):
        h = torch.exp(g[:, t].double()) * h + b[:, t].double()
        states.append(h)
    return torch.stack(states, 1).to(b.dtype), h.float()


def ten_percent_off(
    *, g: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, wrong from token 30 on."""
    h, final = in_fp64(g=g, b=b)
    h[:, 30:] = (h[:, 30:].double() * 1.1).to(h.dtype)
    return h, final


def rows_for(call: object, job: Job = JOB) -> list[Row]:
    """The rows of a callable on a job's case."""
    kernel = Kernel(name="tested", op="linear_scan", call=call)  # type: ignore[arg-type]
    report = check_case(kernel, case_of(job), Request(contract=Contract()))
    return list(rows_of(report, job, kernel, {}))


def test_exact_answer_has_the_error_of_storing_it() -> None:
    """A kernel that rounds the exact answer once has the floor as its error."""
    h, final = rows_for(in_fp64)
    for row in (h, final):
        assert row.rms_rel is not None
        assert row.floor_rel is not None
        assert math.isclose(row.rms_rel, row.floor_rel, rel_tol=1e-6)
        assert row.max_ulp is not None
        assert 0.3 < row.max_ulp < 0.5001
        assert row.verdict == "PASS"
    assert (h.tensor, final.tensor) == ("h", "final_state")
    assert (h.sequence, final.sequence) == (True, False)


def test_wrong_tokens_are_seen_where_they_are() -> None:
    """The profile of a kernel that is wrong from token 30 on rises there, tenfold."""
    job = replace(JOB, keep=("length", "position"))
    rows = rows_for(ten_percent_off, job)
    assert rows[0].verdict == "FAIL"
    assert "beyond the budget" in rows[0].reason
    assert rows[0].max_ratio is not None
    assert rows[0].max_ratio > 1.0
    profile = [row for row in rows if row.kind == "position"]
    assert [row.token for row in profile] == list(range(40))
    assert {row.tokens for row in profile} == {1}
    before = max(row.rms_rel or 0.0 for row in profile[:30])
    after = min(row.rms_rel or 0.0 for row in profile[30:])
    assert after > 3 * before
    (length,) = [row for row in rows if row.kind == "length"]
    assert replace(length, kind="case") == rows[0]


def test_profile_adds_up_to_the_whole() -> None:
    """The mean square of the buckets, weighted by tokens, is that of the tensor."""
    job = replace(JOB, sizes=(("B", 1), ("D", 32), ("T", 301)), keep=("position",))
    rows = rows_for(in_fp64, job)
    profile = [row for row in rows if row.kind == "position"]
    assert sum(row.tokens or 0 for row in profile) == 301
    total = sum((row.tokens or 0) * (row.rms_rel or 0.0) ** 2 for row in profile)
    assert rows[0].rms_rel is not None
    assert math.isclose(math.sqrt(total / 301), rows[0].rms_rel, rel_tol=1e-12)


def made_up(truth: FloatArray, error: FloatArray) -> Measured:
    """An fp32 output [B, T, D] with this truth and error."""
    zeros = np.zeros_like(truth)
    reference = Reference(
        hi=truth, lo=zeros, radius=zeros, certified=zeros == 0.0, rung="fp64"
    )
    allowance = Allowance(
        error=zeros + 1.0,
        overflows=zeros > 0.0,
        largest=FORMATS["fp32"].largest,
        storage_u=2.0**-24,
        magnitude=np.abs(truth),
    )
    return Measured(
        name="h",
        metrics=measure("h", truth + error, reference, allowance),
        truth=reference,
        fmt=FORMATS["fp32"],
        chains_last=(1, 0, 2),
        magnitude=np.abs(truth),
        probable=None,
    )


def test_no_channel_hides_another() -> None:
    """Scaling one channel and its error changes nothing; a zero channel is left out."""
    source = np.random.default_rng(0)
    truth = source.standard_normal((2, 9, 3))
    error = 2.0**-10 * source.standard_normal(truth.shape)
    scale = np.array([1.0, 2.0**40, 2.0**-40])
    plain = relative_rms(made_up(truth, error), error)
    scaled = relative_rms(made_up(truth * scale, error * scale), error * scale)
    assert plain is not None
    assert scaled is not None
    assert math.isclose(plain, scaled, rel_tol=1e-12)
    quiet = truth * np.array([1.0, 1.0, 0.0])
    two = relative_rms(made_up(quiet, error), error)
    alone = relative_rms(made_up(truth[..., :2], error[..., :2]), error[..., :2])
    assert two is not None
    assert alone is not None
    assert math.isclose(two, alone, rel_tol=1e-12)


def test_relative_rms_of_a_known_error() -> None:
    """A constant error of 0.5 on a constant truth of 2 is 0.25."""
    truth = np.full((1, 4, 2), 2.0)
    error = np.full_like(truth, 0.5)
    assert relative_rms(made_up(truth, error), error) == 0.25
    error[0, 0, 0] = np.nan
    assert relative_rms(made_up(truth, error), error) == 0.25
    assert relative_rms(made_up(truth, error), error * np.nan) is None


def test_values_that_are_not_finite_are_counted() -> None:
    """NaN and infinity give a verdict and a count, and leave the other numbers."""

    def spoilt(
        *, g: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h, final = in_fp64(g=g, b=b)
        h[0, 5, 0], h[0, 6, 1] = torch.nan, torch.inf
        return h, final

    row = rows_for(spoilt)[0]
    assert row.verdict == "NONFINITE"
    assert row.nonfinite == 2
    assert row.rms_rel is not None
    assert row.rms_rel < 0.01


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_largest_error_in_ulp(name: str) -> None:
    """An element that is one ulp off shows; an ulp is at most two roundings of M."""
    job = replace(JOB, configuration=replace(WAY, storage=name))

    def one_ulp_off(
        *, g: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h, final = in_fp64(g=g, b=b)
        value = np.array(float(h[0, 7, 2]))
        h[0, 7, 2] += float(ulp(FORMATS[name], value))
        return h, final

    exact, moved = rows_for(in_fp64, job)[0], rows_for(one_ulp_off, job)[0]
    assert exact.max_ulp is not None
    assert moved.max_ulp is not None
    assert exact.max_ulp <= 0.5001
    assert 0.5 < moved.max_ulp <= 1.5
    assert moved.err_over_uM is not None
    # |S| <= M, and u |S| is at least half an ulp of S.
    assert 0.0 < moved.err_over_uM <= 2.0 * moved.max_ulp
