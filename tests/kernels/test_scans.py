"""The scan algorithms against scalar loops written from their definitions."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
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
    states_again,
)
from scancheck.kernels.models.arithmetic import Arithmetic, Array

# Name, order inside a chunk, order between chunks.
Shape = tuple[str, str, str]
SHAPES: list[Shape] = [
    ("sequential", "sequential", "sequential"),
    ("hillis_steele", "sequential", "sequential"),
    ("blelloch", "sequential", "sequential"),
    ("chunk", "sequential", "sequential"),
    ("chunk", "tree", "sequential"),
    ("chunk", "warps", "sequential"),
    ("chunk", "sequential", "tree"),
    ("chunk", "warps", "tree"),
    ("single_pass", "sequential", "sequential"),
    ("single_pass", "tree", "sequential"),
    ("single_pass", "warps", "sequential"),
]
CHUNKED = ("chunk", "single_pass")
every_shape = pytest.mark.parametrize("shape", SHAPES, ids="-".join)
VARIANTS = ["plain", "kahan", "full"]
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 24)
chunks = st.integers(1, 9)

Step = tuple[Fraction, Fraction]


def shaped(
    shape: Shape, variant: str, *, chunk: int, state: Format | None = None
) -> Algorithm:
    """The algorithm of this shape."""
    name, inner, carry = shape
    return Algorithm(
        name=name, variant=variant, chunk=chunk, inner=inner, carry=carry, state=state
    )


def run(
    fmt: Format, algorithm: Algorithm, a: FloatArray, b: FloatArray, s0: FloatArray
) -> FloatArray:
    """The states in float64."""
    arithmetic = Arithmetic(fmt)
    steps = Steps(drive=arithmetic.lift(b), decay=arithmetic.lift(a))
    scanned = scan(arithmetic, algorithm, steps, arithmetic.lift(s0))
    states = scanned.states
    again = states_again(arithmetic, algorithm, steps, scanned.edges)
    assert np.array_equal(again, states, equal_nan=True)
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


@every_shape
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25)
@given(seed=seeds, length=lengths, chunk=chunks)
def test_fp64_within_the_bound_of_any_order(
    shape: Shape, variant: str, seed: int, length: int, chunk: int
) -> None:
    """In fp64 every algorithm is within gamma_n M of the rational states.

    n counts t products, at most 2 t + 1 additions and, when compensated, the final one
    (Higham 2002, lemma 3.1).
    """
    a, b, s0 = random_steps(FP64, seed, length)
    algorithm = shaped(shape, variant, chunk=chunk)
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


def scalar_warps(
    rounded: Callable[[Fraction], Fraction], steps: list[Step]
) -> list[Step]:
    """Doubling in warps of 32, over the warps' totals, then every later warp joined."""
    warps = [scalar_tree(rounded, steps[k : k + 32]) for k in range(0, len(steps), 32)]
    if not warps:
        return []
    # A last warp that is not full hands nothing on.
    totals = scalar_tree(rounded, [warp[-1] for warp in warps])
    joined = warps[0]
    for total, warp in zip(totals, warps[1:], strict=False):
        joined = joined + [scalar_combine(rounded, total, step) for step in warp]
    return joined


def scalar_in_order(
    rounded: Callable[[Fraction], Fraction], steps: list[Step]
) -> list[Step]:
    """Each step combined with all before it, one after another."""
    prefixes = steps[:1]
    for step in steps[1:]:
        prefixes.append(scalar_combine(rounded, prefixes[-1], step))
    return prefixes


SCALAR_PREFIXES = {
    "sequential": scalar_in_order,
    "tree": scalar_tree,
    "warps": scalar_warps,
}


def scalar_begun(
    rounded: Callable[[Fraction], Fraction], inner: str, steps: list[Step], s: Fraction
) -> list[Fraction]:
    """The initial state joins the first step, which is then a constant map."""
    if not steps:
        return []
    first = (Fraction(0), scalar_sequential(rounded, steps[:1], s)[0])
    prefixes = SCALAR_PREFIXES[inner](rounded, [first, *steps[1:]])
    return [drive for _, drive in prefixes]


def scalar_chunked(
    rounded: Callable[[Fraction], Fraction],
    shape: Shape,
    steps: list[Step],
    s: Fraction,
    chunk: int,
    stored: Callable[[Fraction], Fraction],
) -> list[Fraction]:
    """The state each chunk starts from, then each chunk from it."""
    name, inner, carry = shape
    parts = [steps[k : k + chunk] for k in range(0, len(steps), chunk)]
    prefixes = [SCALAR_PREFIXES[inner](rounded, part) for part in parts]
    totals = [prefix[-1] for prefix in prefixes[:-1]]
    edges = [s]
    if carry == "tree":
        edges += [stored(x) for x in scalar_begun(rounded, "tree", totals, s)]
    else:
        for total in totals:
            edges.append(stored(scalar_sequential(rounded, [total], edges[-1])[0]))
    states = []
    for edge, part, prefix in zip(edges, parts, prefixes, strict=False):
        if name == "single_pass":
            for step in prefix:
                states += scalar_sequential(rounded, [step], edge)
        else:
            states += scalar_begun(rounded, inner, part, edge)
    return states


def scalar_blelloch(
    rounded: Callable[[Fraction], Fraction], steps: list[Step], s: Fraction
) -> list[Fraction]:
    """Recursively: a block's left half starts where it starts, the right half from
    there through the total of the left half; totals are those of halves.
    """
    if not steps:
        return []
    size = 1
    while size < len(steps):
        size *= 2
    full = steps + [(Fraction(1), Fraction(0))] * (size - len(steps))

    def total(block: list[Step]) -> Step:
        if len(block) == 1:
            return block[0]
        half = len(block) // 2
        return scalar_combine(rounded, total(block[:half]), total(block[half:]))

    def states(block: list[Step], start: Fraction) -> list[Fraction]:
        if len(block) == 1:
            return scalar_sequential(rounded, block, start)
        half = len(block) // 2
        middle = scalar_sequential(rounded, [total(block[:half])], start)[0]
        return states(block[:half], start) + states(block[half:], middle)

    return states(full, s)[: len(steps)]


def scalar_states(
    rounded: Callable[[Fraction], Fraction],
    shape: Shape,
    steps: list[Step],
    s: Fraction,
    chunk: int,
    stored: Callable[[Fraction], Fraction],
) -> list[Fraction]:
    """The states of one lane by the scalar definition of a shape."""
    match shape[0]:
        case "hillis_steele":
            return scalar_begun(rounded, "tree", steps, s)
        case "blelloch":
            return scalar_blelloch(rounded, steps, s)
        case "sequential":
            states: list[Fraction] = []
            for step in steps:
                carried = stored(states[-1]) if states else s
                states += scalar_sequential(rounded, [step], carried)
            return states
        case _:
            return scalar_chunked(rounded, shape, steps, s, chunk, stored)


def assert_bitwise(
    shape: Shape, fmt: Format, state: str | None, seed: int, length: int, chunk: int
) -> None:
    """The model rounds exactly where the scalar definition rounds, and does so again
    when the states are recomputed from those at chunk edges.
    """
    a, b, s0 = random_steps(fmt, seed, length)
    stored_format = None if state is None else FORMATS[state]
    algorithm = shaped(shape, "plain", chunk=chunk, state=stored_format)
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
        expected = scalar_states(rounded, shape, steps, s, chunk, stored)
        assert [Fraction(x) for x in states[:, lane]] == expected


@every_shape
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("state", [None, "bf16"])
@settings(max_examples=12)
@given(seed=seeds, length=lengths, chunk=chunks)
def test_bitwise_as_scalar_loops(
    shape: Shape, fmt: Format, state: str | None, seed: int, length: int, chunk: int
) -> None:
    """Every algorithm rounds exactly where its scalar definition rounds."""
    assert_bitwise(shape, fmt, state, seed, length, chunk)


@every_shape
@pytest.mark.parametrize("length", [1, 32, 33, 97, 130])
@pytest.mark.parametrize("chunk", [33, 65, 1024])
def test_bitwise_at_warps_and_odd_tails(shape: Shape, length: int, chunk: int) -> None:
    """So it does with chunks of several warps, longer than the scan, and odd tails."""
    assert_bitwise(shape, FP32, None, length, length, chunk)


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


@every_shape
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32, FP64], ids=lambda fmt: fmt.name)
def test_exact_on_dyadic_data(shape: Shape, variant: str, fmt: Format) -> None:
    """With decays 0, 1/2, 1 and small integers no operation rounds: all agree bitwise.

    Lengths and chunk sizes around powers of two, and a warp and more.
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
    for length in (0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 40):
        for chunk in (1, 2, 3, 5, 8, 9, 34) if shape[0] in CHUNKED else (1,):
            algorithm = shaped(shape, variant, chunk=chunk)
            states = run(fmt, algorithm, a[:length], b[:length], s0)
            assert np.array_equal(states, exact[:length])


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


@every_shape
@pytest.mark.parametrize("variant", ["kahan", "full"])
@settings(max_examples=25)
@given(seed=seeds, length=st.integers(1, 40), chunk=chunks)
def test_compensation_in_every_order(
    shape: Shape, variant: str, seed: int, length: int, chunk: int
) -> None:
    """In any order, compensated, what is left beside u |S| is of second order.

    Each of at most 3 t + 3 operations on a path leaves an error of u M in the rests,
    whose own at most 4 roundings per operation err by u each. With decays that are
    powers of two products are exact, and compensating the addition alone is enough.
    """
    a, b, s0 = random_steps(FP32, seed, length)
    if variant == "kahan":
        a = np.sign(a) * 0.5
    algorithm = shaped(shape, variant, chunk=chunk)
    states = run(FP32, algorithm, a, b, s0)
    exact, sizes = exact_states(a, b, s0), exact_states(a, b, s0, absolute=True)
    u = Fraction(1, 2**24)
    for lane in range(b.shape[1]):
        for t in range(length):
            second = (4 * (3 * (t + 1) + 3) * u) ** 2 * sizes[lane][t]
            error = abs(Fraction(states[t, lane]) - exact[lane][t])
            assert error <= u * (abs(exact[lane][t]) + second) + second


@every_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_adjoint_is_the_transpose(shape: Shape, variant: str) -> None:
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
        algorithm = shaped(shape, variant, chunk=4)
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
