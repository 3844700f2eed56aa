"""The oracles' CUDA sources: on the card what the compiled loops give on the CPU.

They run in two ways: compiled for this processor, thread after thread, and on a device.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles import ball_loops, cuda_card, tile_ball
from scancheck.oracles.ball import Ball
from scancheck.oracles.cuda_ball import CudaBall, exact_cuda_ball
from scancheck.oracles.cuda_double_double import CudaDoubleDoubleSystem
from scancheck.oracles.cuda_fp64 import CudaFp64System
from scancheck.oracles.double_double_scan import DoubleDoubleSystem
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.oracles.ladder import certify

FloatArray = NDArray[np.float64]

STRETCH = 2**10  # all steps of a test's case in one tile


def numbers(solution: Solution) -> dict[str, Any]:
    """Outputs and gradients by name, on the CPU."""
    return {
        name: number.like(*map(cuda_card.on_cpu, number.components))
        for name, number in {**solution.outputs, **solution.gradients}.items()
    }


def same_bits(left: Any, right: Any) -> bool:
    """Whether all components are equal, NaN like NaN."""
    pairs = zip(left.components, right.components, strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def assert_certified_alike(left: Ball, right: Ball, name: str) -> None:
    """Values within the sum of the radii, and radii alike but for their roundings."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(left.value - right.value)
        assert not (apart > left.radius + right.radius).any(), name
        slack = 1e-12 * left.radius + 2.0**-1060
        assert not (np.abs(left.radius - right.radius) > slack).any(), name


def hard_decays(seed: int, T: int = 40) -> dict[str, FloatArray]:
    """Decays and values at the ends of the range, NaN and infinities among them."""
    rng = np.random.default_rng(seed)
    shape = 2, T, 33
    ends = [0.0, -0.0, 1.0, -1.0, 1 - 2.0**-53, 2.0**-1022, 5e-324, 1e300, 2.0, -1e150]
    scale = rng.choice([1e-300, 1.0, 1e200, 0.0, 2.0**-1074 * 2**40], shape)
    b = rng.normal(size=shape) * scale
    b[0, T // 2, :3] = np.inf, -np.inf, np.nan
    return {"a": rng.choice(ends, shape), "b": b}


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_double_doubles_equal_the_cpu_bit_by_bit(
    problem: Any, steps: int, card: str, tiles: Callable[..., None]
) -> None:
    """Outputs and gradients of both ops, in tiles of any length.

    On a device log1p starts from another library's value: within the radii there.
    """
    want = numbers(solve(DoubleDoubleSystem(), *problem.arguments))
    tiles(problem, steps)
    got = numbers(solve(CudaDoubleDoubleSystem(), *problem.arguments))
    for name, number in want.items():
        if card == "device" and problem.op is SELECTIVE_SCAN:
            apart = np.abs((number.hi - got[name].hi) + (number.lo - got[name].lo))
            reach = (number.radius + got[name].radius) * 1.001
            assert (apart <= reach + 2.0**-104 * np.abs(number.hi)).all(), name
        elif steps == 1000 or name not in problem.tensors:
            assert same_bits(number, got[name]), name


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_balls_are_those_of_the_cpu(
    problem: Any, steps: int, card: str, tiles: Callable[..., None]
) -> None:
    """Values and radii of outputs and gradients, in tiles of any length."""
    tiles(problem, steps)
    want = numbers(solve(Fp64System(), *problem.arguments))
    got = numbers(solve(CudaFp64System(), *problem.arguments))
    for name, number in want.items():
        assert_certified_alike(number, got[name], name)


def test_scans_of_balls_equal_the_cpu_bit_by_bit(linear: Any, card: str) -> None:
    """Outputs of linear_scan and the cotangents of b, radii and companions too."""
    for problem in (
        linear(3),
        linear(4, T=1),
        replace_tensors(linear(5), hard_decays(5)),
    ):
        cpu, cuda = Fp64System(companions=True), CudaFp64System(companions=True)
        want = numbers(solve(cpu, *problem.arguments))
        got = numbers(solve(cuda, *problem.arguments, stretch=STRETCH))
        for name in want.keys() - {"a"}:
            assert same_bits(want[name], got[name]), name
        forward = problem.op, problem.tensors, problem.switches
        solve(cpu, *forward)
        solve(cuda, *forward, stretch=STRETCH)
        found = cuda_card.on_cpu(cuda.collected)
        assert np.array_equal(cpu.collected, found, equal_nan=True)


def replace_tensors(problem: Any, tensors: dict[str, FloatArray]) -> Any:
    """The problem on other tensors of linear_scan, with cotangents to fit."""
    rng = np.random.default_rng(1)
    B, T, D = tensors["b"].shape
    bars = {"h": rng.normal(size=(B, T, D)), "final_state": rng.normal(size=(B, D))}
    return replace(problem, tensors=tensors, cotangents=bars)


@pytest.mark.parametrize("states", [1, 8, 11, 16])
def test_selective_scans_of_balls_equal_the_cpu_bit_by_bit(
    states: int, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and companions with waiting decays, whatever number of states.

    Both form decays in the scan and functions in compiled loops.
    """
    monkeypatch.setattr(tile_ball, "LARGE", 1)
    rng = np.random.default_rng(states)
    B, D, T = 2, 5, 33
    tensors = {
        "u": rng.normal(size=(B, D, T)),
        "delta": rng.normal(size=(B, D, T)) * 4,
        "A": -rng.uniform(0.01, 16, (D, states)),
        "B": rng.normal(size=(B, states, T)),
        "C": rng.normal(size=(B, states, T)),
        "D": rng.normal(size=D),
        "z": rng.normal(size=(B, D, T)) * 4,
        "delta_bias": rng.normal(size=D),
        "initial_state": rng.normal(size=(B, D, states)),
    }
    case = SELECTIVE_SCAN, tensors, {"delta_softplus": True}
    cpu, cuda = Fp64System(companions=True), CudaFp64System(companions=True)
    want = numbers(solve(cpu, *case))
    got = numbers(solve(cuda, *case, stretch=STRETCH))
    for name, number in want.items():
        if states == 1:  # NumPy's exp: such decays do not wait
            assert_certified_alike(number, got[name], name)
        else:
            assert same_bits(number, got[name]), name
    if states > 1:
        assert np.array_equal(cpu.collected, cuda_card.on_cpu(cuda.collected))


def test_functions_of_balls_equal_the_compiled_loops(card: str) -> None:
    """softplus, sigmoid, sums and products are those of `ball_loops`, to the bit."""
    rng = np.random.default_rng(8)
    x = np.concatenate(
        [rng.normal(size=500) * s for s in (1e-310, 1e-9, 1.0, 30.0, 800.0)]
        + [np.array([0.0, -0.0, np.inf, -np.inf, np.nan])]
    )
    r = np.abs(x) * rng.choice([0.0, 1e-16, 1e-3, 2.0], x.size)
    y, ry = x[::-1].copy(), r[::-1].copy()
    xp = cuda_card.arrays()
    left, right = (CudaBall(xp.asarray(a), xp.asarray(b)) for a, b in ((x, r), (y, ry)))
    exact = exact_cuda_ball(x)
    with np.errstate(all="ignore"):
        for got, loop, operands in (
            (left.softplus(), ball_loops.softplus, (x, r)),
            (left.sigmoid(), ball_loops.sigmoid, (x, r)),
            (exact.softplus(), ball_loops.softplus, (x, np.empty(0))),
            (exact.sigmoid(), ball_loops.sigmoid, (x, np.empty(0))),
            (left + right, ball_loops.add, (x, r, y, ry)),
            (left * right, ball_loops.multiply, (x, r, y, ry)),
            (exact * right, ball_loops.multiply, (x, np.empty(0), y, ry)),
        ):
            value, radius = np.empty_like(x), np.empty_like(x)
            loop(*operands, value, radius)
            known = np.isfinite(value) & np.isfinite(radius)
            other_value, other_radius = map(cuda_card.on_cpu, got.components)
            assert np.array_equal(value[known], other_value[known])
            assert np.array_equal(radius[known], other_radius[known])
            # What is not finite says that nothing is known, in whichever way.
            told = np.isfinite(cuda_card.on_cpu(got.value)) & np.isfinite(
                cuda_card.on_cpu(got.radius)
            )
            assert np.array_equal(known, told)


def test_repeated_axes_are_not_written_out(card: str) -> None:
    """Operations broadcast like NumPy, operands in any layout."""
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=(3, 1, 5)), rng.normal(size=(4, 1))
    left, right = exact_cuda_ball(x), exact_cuda_ball(y)
    product = left.transpose(2, 1, 0) * right
    assert np.array_equal(cuda_card.on_cpu(product.value), x.transpose(2, 1, 0) * y)


def test_the_ladder_climbs_on_the_card(problem: Any, card: str) -> None:
    """References certified on the card contradict none of the CPU's."""
    case = problem.op, problem.tensors, problem.switches, problem.cotangents
    ask = {"h": 2.0**-100, "y": 2.0**-100}
    first = numbers(solve(Fp64System(), *problem.arguments))
    allowance = {
        n: np.full(x.shape, ask.get(n, 2.0**-30)) * np.abs(x.value)
        for n, x in first.items()
    }
    left = certify(*case, allowance).references
    right = certify(*case, allowance, device="cuda").references
    for name, reference in left.items():
        other = right[name]
        apart = np.abs((reference.hi - other.hi) + (reference.lo - other.lo))
        reach = (reference.radius + other.radius) * 1.001
        assert (apart <= reach + 2.0**-104 * np.abs(other.hi)).all(), name
        assert np.array_equal(reference.certified, other.certified), name


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:0"])
def test_another_device_is_refused(device: str, linear: Any) -> None:
    """The message names the argument and what is expected."""
    with pytest.raises(CaseInvalid, match=f"cpu, cuda or cuda:N; got '{device}'"):
        certify(*linear(1).arguments, {}, device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [65536])
def test_long_scans_equal_the_cpu_bit_by_bit(T: int) -> None:
    """65536 steps of slow decays on a device."""
    from scancheck.kernels.cuda.toolkit import unavailable

    if reason := unavailable():
        pytest.skip(reason)
    rng = np.random.default_rng(2)
    tensors = {
        "a": 1 - 2.0 ** -rng.uniform(3, 20, (1, T, 5)),
        "b": rng.normal(size=(1, T, 5)),
    }
    for cpu, cuda in (
        (Fp64System(), CudaFp64System()),
        (DoubleDoubleSystem(), CudaDoubleDoubleSystem()),
    ):
        want = numbers(solve(cpu, LINEAR_SCAN, tensors, {}))
        got = numbers(solve(cuda, LINEAR_SCAN, tensors, {}, stretch=STRETCH))
        assert all(same_bits(want[name], got[name]) for name in want)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("source", cuda_card.EXPRESSIONS)
def test_sources_compile_without_a_driver(source: str, arch: str) -> None:
    """Instances become cubins, without warnings and with few spills.

    Every fourth one: they differ in sizes and in what is left out.
    """
    from scancheck.kernels.cuda.compile import cubin, resources, warnings

    expressions = cuda_card.EXPRESSIONS[source][::4]
    try:
        compiled = cubin(str(cuda_card.SOURCES / source), expressions, arch)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    assert warnings(compiled) == []
    assert all(used.spill_stores <= 128 for used in resources(compiled).values())
