"""Rung R1: the compiled fp64 scan against its definition, and its radii attacked."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.normal_form import Lowered
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.oracles import engine, threads, tile_ball
from scancheck.oracles.ball import Ball, certified_radius, exact_ball
from scancheck.oracles.engine import Solution, solve
from scancheck.oracles.fp64 import Fp64System, solve_fp64
from scancheck.oracles.systems import GenericSystem

FloatArray = NDArray[np.float64]
CONTEXT = mpmath.MPContext()
CONTEXT.prec = 200


class StepByStep(GenericSystem):
    """The definition of the scan, over balls whose products never wait."""

    def constant(self, values: FloatArray) -> Ball:
        """Stored values."""
        return exact_ball(values)


def numbers(solution: Solution) -> dict[str, Ball]:
    """Outputs and gradients by name."""
    return {**solution.outputs, **solution.gradients}


def assert_same(want: Solution, got: Solution) -> None:
    """Values within each other's radii, radii alike up to their own roundings.

    Sums over lanes may associate differently, so that radii may differ by a little.
    """
    assert set(numbers(want)) == set(numbers(got))
    for name, left in numbers(want).items():
        right = numbers(got)[name]
        assert left.shape == right.shape, name
        apart = np.abs(left.value - right.value)
        assert (apart <= np.minimum(left.radius, right.radius) + 2.0**-1070).all(), name
        slack = 0.05 * left.radius + 2.0**-1060
        assert (np.abs(left.radius - right.radius) <= slack).all(), name


def tiles_of(monkeypatch: pytest.MonkeyPatch, problem: Any, steps: int) -> None:
    """Makes the engine cut the problem into tiles of so many steps."""
    sizes: dict[str, int] = {}
    for name, values in problem.tensors.items():
        for spec in problem.op.inputs:
            if spec.name == name:
                for axes in (spec.axes, *(v[0] for v in spec.variants)):
                    if len(axes) == values.ndim:
                        sizes |= dict(zip(axes, values.shape, strict=True))
    groups, keys, lanes = problem.op.group_shape(sizes)
    monkeypatch.setattr(engine, "TILE_ENTRIES", steps * groups * keys * lanes)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 1000])
def test_compiled_scan_is_the_generic_scan(
    problem: Any,
    steps: int,
    compare: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs and gradients are those of the definition, in tiles of any length."""
    whole = solve(StepByStep(), *problem.arguments)
    tiles_of(monkeypatch, problem, steps)
    tiled = solve(Fp64System(), *problem.arguments)
    assert_same(solve(StepByStep(), *problem.arguments), tiled)
    assert compare(whole, tiled) == 0


@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_waiting_decays_change_nothing(
    problem: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decays formed row by row in the scan give the scan of decays formed before."""
    tiles_of(monkeypatch, problem, steps)
    want = solve(StepByStep(), *problem.arguments)
    monkeypatch.setattr(tile_ball, "LARGE", 1)
    assert_same(want, solve(Fp64System(), *problem.arguments))


def test_threads_change_nothing(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work shared between cores gives bit for bit what one core gives."""
    tiles_of(monkeypatch, problem, 4)
    alone = numbers(solve_fp64(*problem.arguments, companions=True))
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(threads, "cores", lambda: 3)
    shared = numbers(solve_fp64(*problem.arguments, companions=True))
    for name, number in alone.items():
        assert np.array_equal(number.value, shared[name].value), name
        assert np.array_equal(number.radius, shared[name].radius), name


def random_ball(rng: np.random.Generator, *shape: int) -> Ball:
    """Normal values with radii of some units."""
    value = rng.normal(size=shape)
    return Ball(value, np.abs(value) * rng.uniform(0, 1e-14, shape))


@pytest.mark.parametrize(
    ("groups", "keys", "lanes"),
    [(1, 1, 1), (3, 1, 31), (1, 4, 32), (2, 3, 33), (1, 2, 70), (2, 1, 200), (1, 9, 5)],
)
@pytest.mark.parametrize("w_keys", [True, False])
@pytest.mark.parametrize("w_lanes", [True, False])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("keys_lanes", [True, False])
def test_any_shape_of_the_normal_form(
    groups: int,
    keys: int,
    lanes: int,
    w_keys: bool,
    w_lanes: bool,
    constant: bool,
    keys_lanes: bool,
) -> None:
    """A tile scans as defined whatever sizes of w, k and r repeat, kept states too."""
    rng = np.random.default_rng(6)
    steps = 5
    factor = groups, 1 if constant else steps, keys, lanes if keys_lanes else 1
    lowered = Lowered(
        w=random_ball(
            rng, groups, steps, keys if w_keys else 1, lanes if w_lanes else 1
        ),
        v=random_ball(rng, groups, steps, lanes),
        k=random_ball(rng, *factor),
        r=random_ball(rng, *factor),
    )
    state = random_ball(rng, groups, keys, lanes)
    want, final, states = StepByStep().forward(lowered, state, 0, steps, True)
    system = Fp64System()
    got, after, kept = system.forward(lowered, system.begin(state), 0, steps, True)
    pairs = [(want, got), (final, system.end(after, steps))]
    pairs += [(states[t], kept[t]) for t in range(steps + 1)]
    for left, right in pairs:
        assert (np.abs(left.value - right.value) <= left.radius).all()
        assert (np.abs(left.radius - right.radius) <= 0.05 * left.radius).all()


# Truth ------------------------------------------------------------------------------

SIZES = st.sampled_from([0.0, 1.0, 2.0**-1074, 2.0**-1060, 1e-310, 1e-160, 1e-20, 1e-3])
DECAYS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 1 - 2.0**-53, 1 + 2.0**-52, 1e-200, 1e30]),
    st.floats(-1.1, 1.1, allow_subnormal=True),
)
DRIVES = st.one_of(
    SIZES, st.floats(-1e60, 1e60), st.floats(-1e-300, 1e-300, allow_subnormal=True)
)


@st.composite
def linear_scans(draw: st.DrawFn) -> dict[str, FloatArray]:
    """a, b [1, T, 1], an initial state and cotangents, adversarial in every entry."""
    steps = draw(st.integers(1, 8))
    column = st.lists(DRIVES, min_size=steps, max_size=steps)
    decays = st.lists(DECAYS, min_size=steps, max_size=steps)
    return {
        "a": np.array(draw(decays)).reshape(1, -1, 1),
        "b": np.array(draw(column)).reshape(1, -1, 1),
        "initial_state": np.array(draw(DRIVES)).reshape(1, 1),
        "h": np.array(draw(column)).reshape(1, -1, 1),
        "final_state": np.array(draw(DRIVES)).reshape(1, 1),
    }


def exact_linear(x: dict[str, FloatArray]) -> dict[str, list[Fraction]]:
    """States and gradients of one chain in rational numbers."""
    f = {n: [Fraction(v) for v in x[n].reshape(-1).tolist()] for n in x}
    states = list(f["initial_state"])
    for a, b in zip(f["a"], f["b"], strict=True):
        states.append(a * states[-1] + b)
    carry, da, db = f["final_state"][0], [], []
    for t in reversed(range(len(f["a"]))):
        total = carry + f["h"][t]
        db.append(total)
        da.append(total * states[t])
        carry = f["a"][t] * total
    return {
        "h": states[1:],
        "final_state": states[-1:],
        "da": da[::-1],
        "db": db[::-1],
        "dinitial_state": [carry],
    }


def solved_linear(x: dict[str, FloatArray]) -> dict[str, Ball]:
    """The fp64 rung on the same data; gradients are named d..."""
    tensors = {n: x[n] for n in ("a", "b", "initial_state")}
    bars = {n: x[n] for n in ("h", "final_state")}
    solution = solve_fp64(LINEAR_SCAN, tensors, {}, bars)
    return solution.outputs | {f"d{n}": g for n, g in solution.gradients.items()}


def escapes(
    got: dict[str, Ball], truth: dict[str, list[Fraction]], shrink: Fraction
) -> int:
    """How many exact values lie outside their radius times `shrink`."""
    count = 0
    for name, exact in truth.items():
        with np.errstate(over="ignore"):
            radius = certified_radius(got[name]).reshape(-1).tolist()
        value = got[name].value.reshape(-1).tolist()
        for centre, bound, number in zip(value, radius, exact, strict=True):
            if np.isfinite(bound):
                count += abs(Fraction(centre) - number) > Fraction(bound) * shrink
    return count


def column(*values: float) -> FloatArray:
    """[1, T, 1]."""
    return np.array(values).reshape(1, -1, 1)


@given(linear_scans())
@settings(max_examples=300, deadline=None)
@example(
    {
        "a": column(2.0**-20 * 1.1, 2.0**-1000, 1.1, 1.0),
        "b": column(1e-310, 1.7 * 2.0**-1074, -1e-310, 1e-20),
        "initial_state": np.array([[1.3]]),
        "h": column(1e-300, -1e-300, 1e-160, 1.0),
        "final_state": np.array([[3e-165]]),
    }
)
def test_radii_hold_the_exact_scan(x: dict[str, FloatArray]) -> None:
    """h, the final state and all gradients lie within their certified radii."""
    assert escapes(solved_linear(x), exact_linear(x), Fraction(1)) == 0


def test_narrow_radii_would_be_seen(linear: Callable[..., Any]) -> None:
    """Radii a hundredth as wide let exact values escape: the test above can fail."""
    rng = np.random.default_rng(9)
    x = {n: rng.normal(size=(1, 40, 1)) for n in ("a", "b", "h")}
    x |= {n: rng.normal(size=(1, 1)) for n in ("initial_state", "final_state")}
    assert escapes(solved_linear(x), exact_linear(x), Fraction(1)) == 0
    assert escapes(solved_linear(x), exact_linear(x), Fraction(1, 100)) > 10


def exact_selective(t: dict[str, FloatArray]) -> list[Any]:
    """y of one batch row, channel by channel and step by step, in 200 bits."""
    number = CONTEXT.mpf
    _, channels, steps = t["u"].shape
    states = t["A"].shape[1]
    y = []
    for d in range(channels):
        h = [number(t["initial_state"][0, d, n]) for n in range(states)]
        for step in range(steps):
            x = number(t["delta"][0, d, step]) + number(t["delta_bias"][d])
            size = CONTEXT.log1p(CONTEXT.exp(x))
            u, z = number(t["u"][0, d, step]), number(t["z"][0, d, step])
            total = number(t["D"][d]) * u
            for n in range(states):
                decay = CONTEXT.exp(size * number(t["A"][d, n]))
                h[n] = decay * h[n] + size * number(t["B"][0, n, step]) * u
                total += number(t["C"][0, n, step]) * h[n]
            y.append(total * z / (1 + CONTEXT.exp(-z)))
    return y


@st.composite
def selective_scans(draw: st.DrawFn) -> dict[str, FloatArray]:
    """One batch row of selective_scan with gates and steps of every size."""
    channels, states, steps = 2, 2, draw(st.integers(1, 4))
    gates = st.floats(-760.0, 760.0) | st.sampled_from([0.0, -20.0, 20.0, 1e-300])
    small = st.floats(-1e4, 1e4) | SIZES

    def array(entries: st.SearchStrategy[float], *shape: int) -> FloatArray:
        size = int(np.prod(shape))
        values = draw(st.lists(entries, min_size=size, max_size=size))
        return np.array(values, dtype=np.float64).reshape(shape)

    return {
        "u": array(small, 1, channels, steps),
        "delta": array(gates, 1, channels, steps),
        "A": array(st.floats(-20.0, 0.5), channels, states),
        "B": array(small, 1, states, steps),
        "C": array(small, 1, states, steps),
        "D": array(small, channels),
        "z": array(gates, 1, channels, steps),
        "delta_bias": array(gates, channels),
        "initial_state": array(small, 1, channels, states),
    }


@pytest.mark.parametrize("large", [1, 2**14])
@given(tensors=selective_scans())
@settings(max_examples=60, deadline=None)
def test_radii_hold_the_exact_selective_scan(
    large: int, tensors: dict[str, FloatArray]
) -> None:
    """y lies within its certified radius, softplus, exp and silu included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_ball, "LARGE", large)
        y = solve_fp64(SELECTIVE_SCAN, tensors, {"delta_softplus": True}).outputs["y"]
    with np.errstate(over="ignore"):
        radius = certified_radius(y).reshape(-1)
    exact = exact_selective(tensors)
    for value, bound, truth in zip(y.value.reshape(-1), radius, exact, strict=True):
        assert np.isinf(bound) or abs(CONTEXT.mpf(value) - truth) <= bound


class Careless(Fp64System):
    """The oracle with the radius of its decays forgotten."""

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[Any, Any, Any]:
        """The scan with exact decays."""
        exact = Lowered(
            w=exact_ball(lowered.w.value), v=lowered.v, k=lowered.k, r=lowered.r
        )
        return super().forward(exact, state, start, total, keep)


def test_a_forgotten_radius_is_detected() -> None:
    """Decays taken as exact let the truth escape, which the right radii do not."""
    rng = np.random.default_rng(12)
    tensors = {
        "u": rng.normal(size=(1, 2, 8)),
        "delta": rng.uniform(0.3, 0.6, (1, 2, 8)),
        "A": np.full((2, 2), -60.0),
        "B": np.zeros((1, 2, 8)),
        "C": rng.normal(size=(1, 2, 8)),
        "D": np.zeros(2),
        "z": np.full((1, 2, 8), 30.0),
        "delta_bias": np.zeros(2),
        "initial_state": rng.normal(size=(1, 2, 2)),
    }
    exact = exact_selective(tensors)
    outside = []
    for system in (Fp64System(), Careless()):
        switches = {"delta_softplus": True}
        y = solve(system, SELECTIVE_SCAN, tensors, switches).outputs["y"]
        value, radius = y.value.reshape(-1), certified_radius(y).reshape(-1)
        error = [abs(CONTEXT.mpf(v) - e) for v, e in zip(value, exact, strict=True)]
        outside.append(sum(e > r for e, r in zip(error, radius, strict=True)))
    assert outside[0] == 0
    assert outside[1] > 0


# Companions -------------------------------------------------------------------------


def companions(
    a: FloatArray, b: FloatArray, first: float
) -> tuple[list[float], list[float], list[float]]:
    """M, W and V of one chain, by the plain loops of numerics 2.14."""
    m, w, v, s = abs(first), 0.0, 0.0, first
    rows: tuple[list[float], list[float], list[float]] = ([], [], [])
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        w = abs(x) * (w + m)
        m = abs(x) * m + abs(y)
        before = s
        s = x * s + y
        v = x * x * v + (x * before) ** 2 + s * s
        for row, value in zip(rows, (m, w, v), strict=True):
            row.append(value)
    return rows


@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_companions_are_the_plain_loops(
    linear: Callable[..., Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M, W and V of linear_scan are those of the plain loops, in tiles of any length.

    All terms are non-negative: n operations leave a relative error below n u.
    """
    problem = linear(3)
    tiles_of(monkeypatch, problem, steps)
    found = solve_fp64(problem.op, problem.tensors, {}, companions=True).companions
    a, b = problem.tensors["a"], problem.tensors["b"]
    for row, lane in np.ndindex(a.shape[0], a.shape[2]):
        first = problem.tensors["initial_state"][row, lane]
        want = companions(a[row, :, lane], b[row, :, lane], first)
        for name, values in zip("MWV", want, strict=True):
            near = np.abs(found[name][row, :, lane] - values) <= 1e-13 * np.abs(values)
            assert near.all(), name


def test_companions_are_read_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Companions of selective_scan are sums over keys of |C| M, |C| W and C^2 V."""
    rng = np.random.default_rng(13)
    B, D, L, N = 2, 3, 11, 4
    tensors = {
        "u": rng.normal(size=(B, D, L)),
        "delta": rng.exponential(size=(B, D, L)),
        "A": -rng.uniform(0.1, 4.0, (D, N)),
        "B": rng.normal(size=(B, N, L)),
        "C": rng.normal(size=(B, N, L)),
        "initial_state": rng.normal(size=(B, D, N)),
    }
    monkeypatch.setattr(engine, "TILE_ENTRIES", 4 * B * D * N)
    found = solve_fp64(SELECTIVE_SCAN, tensors, {}, companions=True).companions
    for row, d in np.ndindex(B, D):
        want = dict.fromkeys("MWV", np.zeros(L))
        for n in range(N):
            step = tensors["delta"][row, d]
            a = np.exp(step * tensors["A"][d, n])
            b = step * tensors["u"][row, d] * tensors["B"][row, n]
            c = np.abs(tensors["C"][row, n])
            m, w, v = companions(a, b, tensors["initial_state"][row, d, n])
            want["M"] = want["M"] + c * m
            want["W"] = want["W"] + c * w
            want["V"] = want["V"] + c * c * v
        for name, values in want.items():
            got = found[name][row, :, d]
            assert (np.abs(got - values) <= 1e-12 * values).all(), name


# Memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["linear", "selective"])
def test_memory_stays_within_tiles(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the outputs, four times the steps take no more memory."""
    monkeypatch.setattr(engine, "TILE_ENTRIES", 2**12)
    rng = np.random.default_rng(14)
    peaks = []
    for steps in (1000, 4000):
        if op == "linear":
            shape = (1, steps, 32)
            tensors = {"a": rng.uniform(size=shape), "b": rng.normal(size=shape)}
            arguments: Any = LINEAR_SCAN, tensors, {}
        else:
            shape = (1, 16, steps)
            tensors = {n: rng.uniform(size=shape) for n in ("u", "delta", "z")}
            tensors |= {n: rng.normal(size=(1, 4, steps)) for n in ("B", "C")}
            tensors["A"] = -rng.uniform(size=(16, 4))
            arguments = SELECTIVE_SCAN, tensors, {"delta_softplus": True}
        solve_fp64(*arguments)
        tracemalloc.start()
        solution = solve_fp64(*arguments)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept = sum(
            part.nbytes
            for number in solution.outputs.values()
            for part in number.components
        )
        peaks.append(peak - kept)
    assert peaks[1] < peaks[0] + 2**14


def test_one_tile_is_run_once(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states are kept for the adjoint, and give the bits of a second pass."""
    passes = []

    def lower(tile: Any, carry: Any) -> Any:
        passes.append(carry)
        return problem.op.lower(tile, carry)

    watched = replace(problem.op, lower=lower)
    found = []
    for alike in (True, False):
        monkeypatch.setattr(Fp64System, "alike_when_kept", alike)
        solution = solve(Fp64System(), watched, *problem.arguments[1:])
        found.append({**solution.outputs, **solution.gradients})
        assert len(passes) == (1 if alike else 1 + 2)
    once, twice = found
    for name, number in once.items():
        pairs = zip(number.components, twice[name].components, strict=True)
        assert all(np.array_equal(*pair, equal_nan=True) for pair in pairs), name
