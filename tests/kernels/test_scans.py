"""The scan algorithms against scalar loops written from their definitions."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.formats import (
    BF16,
    FORMATS,
    FP16,
    FP32,
    FP64,
    FloatArray,
    Format,
    round_array,
    round_exact,
)
from scancheck.kernels.models.algorithm import (
    Algorithm,
    Steps,
    adjoint_scan,
    exponential_steps,
    scan,
)
from scancheck.kernels.models.arithmetic import Arithmetic, Array

SHAPES = [
    ("sequential", "sequential"),
    ("hillis_steele", "sequential"),
    ("chunk", "sequential"),
    ("chunk", "tree"),
]
VARIANTS = ["plain", "kahan", "full"]
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 24)
chunks = st.integers(1, 9)

Step = tuple[Fraction, Fraction]


def run(
    fmt: Format, algorithm: Algorithm, a: FloatArray, b: FloatArray, s0: FloatArray
) -> FloatArray:
    """The states in float64."""
    arithmetic = Arithmetic(fmt)
    steps = Steps(drive=arithmetic.lift(b), decay=arithmetic.lift(a))
    states = scan(arithmetic, algorithm, steps, arithmetic.lift(s0)).states
    assert states.shape == b.shape
    assert states.dtype == arithmetic.dtype
    return states.astype(np.float64)


def random_steps(
    fmt: Format, seed: int, length: int, lanes: int = 2
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Decays of both signs around one, drives and initial states, in the format."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(0.5, 1.25, (length, lanes)) * rng.choice(
        [1, 1, -1], (length, lanes)
    )
    b, s0 = rng.normal(size=(length, lanes)), rng.normal(size=lanes)
    return round_array(fmt, a), round_array(fmt, b), round_array(fmt, s0)


def exact_states(
    a: FloatArray, b: FloatArray, s0: FloatArray, absolute: bool = False
) -> list[list[Fraction]]:
    """The states of each lane in rational arithmetic, or their sums of magnitudes."""
    size = abs if absolute else Fraction
    lanes = []
    for lane in range(b.shape[1]):
        state, states = size(Fraction(s0[lane])), []
        for x, y in zip(a[:, lane], b[:, lane], strict=True):
            state = size(Fraction(x)) * state + size(Fraction(y))
            states.append(state)
        lanes.append(states)
    return lanes


@pytest.mark.parametrize(("name", "inner"), SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@given(seed=seeds, length=lengths, chunk=chunks)
def test_fp64_within_the_bound_of_any_order(
    name: str, inner: str, variant: str, seed: int, length: int, chunk: int
) -> None:
    """In fp64 every algorithm is within gamma_n M of the rational states.

    n counts t products, at most 2 t + 1 additions and, when compensated, the final one
    (Higham 2002, lemma 3.1).
    """
    a, b, s0 = random_steps(FP64, seed, length)
    algorithm = Algorithm(name=name, variant=variant, chunk=chunk, inner=inner)
    states = run(FP64, algorithm, a, b, s0)
    exact, sizes = exact_states(a, b, s0), exact_states(a, b, s0, absolute=True)
    for lane in range(b.shape[1]):
        for t in range(length):
            n = 3 * (t + 1) + 2
            gamma = Fraction(n, 2**53 - n)
            error = abs(Fraction(states[t, lane]) - exact[lane][t])
            assert error <= gamma * sizes[lane][t]


def scalar_sequential(
    rounded: Callable[[Fraction], Fraction], steps: list[Step], s: Fraction
) -> list[Fraction]:
    """One step after another, each operation rounded."""
    states = []
    for a, b in steps:
        s = rounded(rounded(a * s) + b)
        states.append(s)
    return states


def scalar_combine(
    rounded: Callable[[Fraction], Fraction], left: Step, right: Step
) -> Step:
    """left, then right, each operation rounded."""
    return (
        rounded(right[0] * left[0]),
        rounded(rounded(right[0] * left[1]) + right[1]),
    )


def scalar_tree(
    rounded: Callable[[Fraction], Fraction], steps: list[Step]
) -> list[Step]:
    """Hillis and Steele's doubling on a list."""
    reach = 1
    while reach < len(steps):
        steps = [
            step if t < reach else scalar_combine(rounded, steps[t - reach], step)
            for t, step in enumerate(steps)
        ]
        reach *= 2
    return steps


def scalar_hillis_steele(
    rounded: Callable[[Fraction], Fraction], steps: list[Step], s: Fraction
) -> list[Fraction]:
    """The initial state joins the first step, then the tree."""
    if not steps:
        return []
    a, b = steps[0]
    first = (Fraction(0), rounded(rounded(a * s) + b))
    return [drive for _, drive in scalar_tree(rounded, [first, *steps[1:]])]


def scalar_chunked(
    rounded: Callable[[Fraction], Fraction],
    steps: list[Step],
    s: Fraction,
    chunk: int,
    tree: bool,
    stored: Callable[[Fraction], Fraction],
) -> list[Fraction]:
    """Chunk by chunk: its states from the carry, then the carry over its total."""
    states = []
    for start in range(0, len(steps), chunk):
        inside = steps[start : start + chunk]
        scan_inside = scalar_hillis_steele if tree else scalar_sequential
        states += scan_inside(rounded, inside, s)
        if tree:
            total = scalar_tree(rounded, inside)[-1]
        else:
            total = inside[0]
            for step in inside[1:]:
                total = scalar_combine(rounded, total, step)
        s = stored(rounded(rounded(total[0] * s) + total[1]))
    return states


@pytest.mark.parametrize(("name", "inner"), SHAPES)
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("state", [None, "bf16"])
@given(seed=seeds, length=lengths, chunk=chunks)
def test_bitwise_as_scalar_loops(
    name: str,
    inner: str,
    fmt: Format,
    state: str | None,
    seed: int,
    length: int,
    chunk: int,
) -> None:
    """Every algorithm rounds exactly where its scalar definition rounds."""
    a, b, s0 = random_steps(fmt, seed, length)
    stored_format = None if state is None else FORMATS[state]
    algorithm = Algorithm(
        name=name, variant="plain", chunk=chunk, inner=inner, state=stored_format
    )
    states = run(fmt, algorithm, a, b, s0)

    def rounded(x: Fraction) -> Fraction:
        return Fraction(round_exact(fmt, x))

    def stored(x: Fraction) -> Fraction:
        return x if stored_format is None else Fraction(round_exact(stored_format, x))

    for lane in range(b.shape[1]):
        steps = [
            (Fraction(x), Fraction(y))
            for x, y in zip(a[:, lane], b[:, lane], strict=True)
        ]
        s = Fraction(s0[lane])
        if name == "hillis_steele":
            expected = scalar_hillis_steele(rounded, steps, s)
        elif name == "chunk":
            expected = scalar_chunked(rounded, steps, s, chunk, inner == "tree", stored)
        else:
            expected = []
            for step in steps:
                carried = stored(expected[-1]) if expected else s
                expected += scalar_sequential(rounded, [step], carried)
        assert [Fraction(x) for x in states[:, lane]] == expected


@given(seed=seeds, length=lengths, every=st.integers(1, 5))
def test_sequential_state_is_stored_every_so_often(
    seed: int, length: int, every: int
) -> None:
    """The carried state is rounded before steps k, 2k, ..., the returned one never."""
    a, b, s0 = random_steps(FP32, seed, length, lanes=1)
    algorithm = Algorithm(
        name="sequential", variant="plain", state=FP16, state_every=every
    )
    states = run(FP32, algorithm, a, b, s0)
    s = np.float32(s0[0])
    for t in range(length):
        if t > 0 and t % every == 0:
            s = np.float32(np.float16(s))
        s = np.float32(a[t, 0]) * s + np.float32(b[t, 0])
        assert states[t, 0] == s


@pytest.mark.parametrize(("name", "inner"), SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32, FP64], ids=lambda fmt: fmt.name)
def test_exact_on_dyadic_data(name: str, inner: str, variant: str, fmt: Format) -> None:
    """With decays 0, 1/2, 1 and small integers no operation rounds: all agree bitwise.

    Every length up to 40 with every chunk size up to 9.
    """
    rng = np.random.default_rng(7)
    a = rng.choice([0.0, 0.5, 1.0], (40, 8), p=[0.4, 0.1, 0.5])
    # A reset in time keeps the states short enough for eight bits.
    a[::4] = 0.0
    b = rng.integers(-3, 4, (40, 8)).astype(np.float64)
    s0 = rng.integers(-3, 4, 8).astype(np.float64)
    exact, s = np.empty_like(b), s0
    for t in range(40):
        s = a[t] * s + b[t]
        exact[t] = s
    for length in range(41):
        for chunk in range(1, 10) if name == "chunk" else (1,):
            algorithm = Algorithm(name=name, variant=variant, chunk=chunk, inner=inner)
            states = run(fmt, algorithm, a[:length], b[:length], s0)
            assert np.array_equal(states, exact[:length])


@pytest.mark.parametrize("inner", ["sequential", "tree"])
def test_log_difference_is_exact_on_dyadic_data(inner: str) -> None:
    """With log decays 0 and -1024 the differences are exact and so are the states."""
    rng = np.random.default_rng(8)
    g = rng.choice([0.0, -1024.0], (40, 8), p=[0.7, 0.3])
    b = rng.integers(-3, 4, (40, 8)).astype(np.float64)
    s0 = rng.integers(-3, 4, 8).astype(np.float64)
    exact, s = np.empty_like(b), s0
    for t in range(40):
        s = np.exp(g[t]) * s + b[t]
        exact[t] = s
    arithmetic = Arithmetic(FP32)
    for length in range(41):
        for chunk in range(1, 10):
            algorithm = Algorithm(
                name="chunk", variant="log_diff", chunk=chunk, inner=inner
            )
            steps = exponential_steps(
                arithmetic,
                algorithm,
                arithmetic.lift(g[:length]),
                arithmetic.lift(b[:length]),
            )
            states = scan(arithmetic, algorithm, steps, arithmetic.lift(s0)).states
            assert np.array_equal(states, exact[:length])


@pytest.mark.parametrize("inner", ["sequential", "tree"])
@given(seed=seeds, length=lengths, chunk=chunks)
def test_log_difference_within_its_bound(
    inner: str, seed: int, length: int, chunk: int
) -> None:
    """In fp64 the log form is within the exponents' errors of the multiplied decays.

    A decay's exponent c_t - c_j errs by at most (2 n + 1) u G, with n additions in a
    sum of G = sum |g|; one chunk crossing has its own, and their G add up.
    """
    rng = np.random.default_rng(seed)
    g = -rng.exponential(1.0, (length, 2))
    b, s0 = rng.normal(size=(length, 2)), rng.normal(size=2)
    arithmetic = Arithmetic(FP64)
    algorithm = Algorithm(name="chunk", variant="log_diff", chunk=chunk, inner=inner)
    steps = exponential_steps(arithmetic, algorithm, g, b)
    states = scan(arithmetic, algorithm, steps, s0).states
    wide = np.longdouble
    s, size = s0.astype(wide), np.abs(s0).astype(wide)
    for t in range(length):
        a = np.exp(g[t].astype(wide))
        s, size = a * s + b[t], a * size + np.abs(b[t])
        total = np.sum(-g[: t + 1], axis=0)
        # 4 roundings a step beside the exponents: exp, product, addition, crossing.
        count = (2 * chunk + 1) * total + 4 * (t + 1)
        assert (np.abs(states[t] - s) <= 1.1 * count * FP64.unit_roundoff * size).all()


def worst_error(variant: str, decay: str) -> float:
    """The largest error in u |S| over 4096 steps of decay 1 - 1e-3, fp32 sequential."""
    rng = np.random.default_rng(3)
    arithmetic = Arithmetic(FP32)
    algorithm = Algorithm(name="sequential", variant=variant)
    b = rng.uniform(0.5, 1.5, (4096, 32)).astype(np.float32)
    s0 = np.zeros(32, np.float32)
    gates = rng.uniform(0.5, 1.5, (4096, 32)) * 1e-3
    if decay == "given":
        a = (1.0 - gates).astype(np.float32)
        steps, exact = Steps(drive=b, decay=a), a.astype(np.float64)
    else:
        g = (-gates).astype(np.float32)
        steps = exponential_steps(arithmetic, algorithm, g, b)
        exact = np.exp(g.astype(np.float64))
    states = scan(arithmetic, algorithm, steps, s0).states
    s, worst = np.zeros(32), 0.0
    for t in range(4096):
        s = exact[t] * s + b[t]
        worst = max(worst, float(np.max(np.abs(states[t] - s) / s)))
    return worst / FP32.unit_roundoff


def test_only_full_compensation_helps() -> None:
    """Numerics 2.6: full stays at 1 u |S|; plain and addition-only lose tens of u."""
    worst = {variant: worst_error(variant, "given") for variant in VARIANTS}
    assert worst["full"] <= 1.1
    assert 10 <= worst["kahan"] < worst["plain"]


def test_full_compensation_of_log_gates() -> None:
    """With the low word of exp, full compensation holds for log gates as well."""
    assert worst_error("full", "log") <= 1.1
    assert worst_error("plain", "log") >= 10


@pytest.mark.parametrize(("name", "inner"), SHAPES)
@pytest.mark.parametrize("variant", ["kahan", "full"])
@given(seed=seeds, length=st.integers(1, 40), chunk=chunks)
def test_compensation_in_every_order(
    name: str, inner: str, variant: str, seed: int, length: int, chunk: int
) -> None:
    """In any order, compensated, what is left beside u |S| is of second order.

    Each of at most 3 t + 3 operations on a path leaves an error of u M in the rests,
    whose own at most 4 roundings per operation err by u each. With decays that are
    powers of two products are exact, and compensating the addition alone is enough.
    """
    a, b, s0 = random_steps(FP32, seed, length)
    if variant == "kahan":
        a = np.sign(a) * 0.5
    algorithm = Algorithm(name=name, variant=variant, chunk=chunk, inner=inner)
    states = run(FP32, algorithm, a, b, s0)
    exact, sizes = exact_states(a, b, s0), exact_states(a, b, s0, absolute=True)
    u = Fraction(1, 2**24)
    for lane in range(b.shape[1]):
        for t in range(length):
            second = (4 * (3 * (t + 1) + 3) * u) ** 2 * sizes[lane][t]
            error = abs(Fraction(states[t, lane]) - exact[lane][t])
            assert error <= u * (abs(exact[lane][t]) + second) + second


@pytest.mark.parametrize(("name", "inner"), SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_adjoint_is_the_transpose(name: str, inner: str, variant: str) -> None:
    """<ybar, S(b)> + <gbar, S_T> = <G, b> + <dS_0, S_0>, exactly on dyadic data."""
    rng = np.random.default_rng(11)
    arithmetic = Arithmetic(FP64)

    def integers(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(np.float64)

    for length in range(12):
        a = rng.choice([0.5, 1.0, -1.0, 2.0], (length, 3))
        b, ybar, s0, gbar = (
            integers(length, 3),
            integers(length, 3),
            integers(3),
            integers(3),
        )
        algorithm = Algorithm(name=name, variant=variant, chunk=4, inner=inner)
        steps = Steps(drive=b, decay=a)
        states = scan(arithmetic, algorithm, steps, s0).states
        final = states[-1] if length else s0
        adjoint, initial_bar = adjoint_scan(arithmetic, algorithm, steps, ybar, gbar)
        left = np.sum(ybar * states, axis=0) + gbar * final
        right = np.sum(adjoint * b, axis=0) + initial_bar * s0
        assert np.array_equal(left, right)


@pytest.mark.parametrize("variant", ["kahan", "full"])
def test_an_infinite_state_stays_infinite(variant: str) -> None:
    """The rest of an infinite sum, which is no number, does not reach the output."""
    algorithm = Algorithm(name="sequential", variant=variant)
    a, b = np.ones((3, 1)), np.array([[1.0], [np.inf], [1.0]])
    with np.errstate(all="ignore"):
        states = run(FP32, algorithm, a, b, np.zeros(1))
    assert states[:, 0].tolist() == [1.0, np.inf, np.inf]
