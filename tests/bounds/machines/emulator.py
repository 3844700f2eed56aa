"""Small rounded machines that the bounds are tried on: written apart from the models.

A `Machine` rounds every operation of a program. Real ones round to a format by
`formats.round_array`, with gradual underflow or flushing inputs and outputs.
Adversarial ones move each exact result by up to u, in a direction of their choice: they
obey the model that the bounds are proved for, and nothing else. Programs are written
over tape entries, so that each also has the reverse pass that an autograd would run,
every accumulation rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.formats import Format, round_array, round_double_double

Array = NDArray[Any]
WIDE = np.longdouble


@dataclass(slots=True, kw_only=True)
class Machine:
    """How every operation of a program rounds.

    `direction`: "nearest" rounds into `fmt`; "away", "zero", "random" and "uniform"
    scale the exact result by 1 + u, 1 - u, one of both, or anything between; "exact"
    leaves it as it is, in extended precision.
    `exp_error` (e0, e1 in unit roundoffs) is what an adversarial exp may be off.
    """

    fmt: Format
    direction: str = "nearest"
    flush: bool = False  # results below the normal range become zero
    flush_inputs: bool = False  # operands below the normal range count as zero
    exp_error: tuple[float, float] = (1.0, 0.0)
    softplus_error: tuple[float, float] = (1.0, 0.0)
    ln_error: tuple[float, float] = (1.01, 0.0)  # relative, absolute
    generator: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(0)
    )

    @property
    def exact(self) -> bool:
        """Whether results are formed exactly before they are moved."""
        return self.direction != "nearest"

    def operand(self, x: Array) -> Array:
        """What an operation sees of a value."""
        if not self.flush_inputs:
            return x
        return np.where(np.abs(x) < self.fmt.smallest_normal, 0.0 * x, x)

    def rounded(self, x: Array, limit: float | Array | None = None) -> Array:
        """One rounding; an adversary moves by `limit` (relative) at most."""
        if not self.exact:
            return round_array(self.fmt, np.asarray(x, dtype=float), flush=self.flush)
        u = self.fmt.unit_roundoff if limit is None else limit
        return np.asarray(x * (1.0 + u * self._signs(np.shape(x))), dtype=WIDE)

    def _signs(self, shape: tuple[int, ...]) -> Array | float:
        match self.direction:
            case "away":
                return 1.0
            case "zero":
                return -1.0
            case "exact":
                return 0.0
            case "random":
                return self.generator.choice([-1.0, 1.0], size=shape)
            case _:
                return self.generator.uniform(-1.0, 1.0, size=shape)

    def mul(self, x: Array, y: Array) -> Array:
        """x y; exact in float64 before rounding for all formats up to fp32."""
        return self.rounded(self.operand(x) * self.operand(y))

    def add(self, x: Array, y: Array) -> Array:
        """x + y for operands of the format.

        Float64's own rounding before is harmless: 53 >= 2 p + 2 for p <= 24 (Figueroa,
        "When is double rounding innocuous?", SIGNUM Newsletter 30, 1995).
        """
        return self.rounded(self.operand(x) + self.operand(y))

    def fma(self, x: Array, y: Array, z: Array) -> Array:
        """x y + z, rounded once."""
        x, y, z = self.operand(x), self.operand(y), self.operand(z)
        if self.exact:
            return self.rounded(x * y + z)
        product = np.asarray(x * y)
        total = product + z
        rounded = round_double_double(self.fmt, total, _sum_error(product, z, total))
        return self.rounded(rounded) if self.flush else rounded

    def function(
        self, f: Callable[[Array], Array], x: Array, error: tuple[float, float]
    ) -> Array:
        """f(x) with the relative error that (e0, e1) allow, in unit roundoffs."""
        e0, e1 = error
        value = f(np.asarray(self.operand(x), dtype=WIDE))
        limit = (e0 + e1 * np.where(value == 0, 0, np.abs(x))) * self.fmt.unit_roundoff
        if self.exact:
            return self.rounded(value, limit)
        # A real library: an error below the limit less one rounding, then rounded.
        u = self.fmt.unit_roundoff
        room = np.maximum(limit - 1.01 * u, 0.0) / (1.0 + u)
        wobble = self.generator.choice([-1.0, 1.0], size=np.shape(value))
        return self.rounded(value * (1.0 + room * wobble))

    def exp(self, x: Array) -> Array:
        """exp(x) with the machine's error model."""
        with np.errstate(over="ignore", under="ignore"):
            return self.function(np.exp, x, self.exp_error)

    def log(self, x: Array) -> Array:
        """ln x, relative and absolute error of `ln_error`; -infinity for 0."""
        return self._logarithm(np.log, x)

    def log1p(self, x: Array) -> Array:
        """ln(1 + x), with the same error."""
        return self._logarithm(np.log1p, x)

    def _logarithm(self, f: Callable[[Array], Array], x: Array) -> Array:
        e0, e1 = self.ln_error
        u = self.fmt.unit_roundoff
        with np.errstate(divide="ignore"):
            value = f(np.asarray(self.operand(x), dtype=WIDE))
        size = np.where(np.isfinite(value), np.abs(value), 0.0)
        if self.exact:
            off = self._signs(np.shape(value)) * u * (e0 * size + e1)
            return np.asarray(value + off, WIDE)
        room = u * (max(e0 - 1.01, 0.0) * size + e1 / (1.0 + u))
        return self.rounded(value + room * self.generator.choice([-1, 1], size.shape))

    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), with an error of `softplus_error`."""

        def f(x: Array) -> Array:
            return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))

        return self.function(f, x, self.softplus_error)

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), every operation rounded."""
        return self.rounded(1 / self.add(np.ones_like(x), self.exp(-x)))

    def stored(self, fmt: Format, x: Array) -> Array:
        """A store into another format."""
        if not self.exact:
            return round_array(fmt, np.asarray(x, dtype=float))
        return self.rounded(x, fmt.unit_roundoff)


def _sum_error(x: Array, y: Array, total: Array) -> Array:
    """The exact error of a float64 addition (Knuth)."""
    seen = total - x
    with np.errstate(invalid="ignore"):
        rest = (x - (total - seen)) + (y - seen)
    return np.where(np.isfinite(total), rest, 0.0).astype(float)


@dataclass(slots=True)
class Entry:
    """A value on the tape, and the contributions to its cotangent so far."""

    tape: "Tape"
    value: Array
    parents: tuple[tuple["Entry", Callable[[Array], Array]], ...] = ()
    bar: Array | None = None

    def __add__(self, other: "Entry") -> "Entry":
        value = self.tape.machine.add(self.value, other.value)
        return self.tape.entry(value, (self, _same), (other, _same))

    def __mul__(self, other: "Entry") -> "Entry":
        mul = self.tape.machine.mul
        return self.tape.entry(
            mul(self.value, other.value),
            (self, lambda bar: mul(bar, other.value)),
            (other, lambda bar: mul(bar, self.value)),
        )

    def exp(self) -> "Entry":
        """exp(x); its pullback uses the rounded result."""
        machine = self.tape.machine
        value = machine.exp(self.value)
        return self.tape.entry(value, (self, lambda bar: machine.mul(bar, value)))

    def softplus(self) -> "Entry":
        """log(1 + exp(x))."""
        m = self.tape.machine
        return self.tape.entry(
            m.softplus(self.value),
            (self, lambda bar: m.mul(bar, m.sigmoid(self.value))),
        )

    def silu(self) -> "Entry":
        """x / (1 + exp(-x)); the slope is s (1 + x (1 - s))."""
        m = self.tape.machine
        one = np.ones_like(self.value)

        def slope(bar: Array) -> Array:
            s = m.sigmoid(self.value)
            inner = m.add(one, m.mul(self.value, m.add(one, -s)))
            return m.mul(bar, m.mul(s, inner))

        shrunk = m.add(one, m.exp(-self.value))
        return self.tape.entry(m.rounded(self.value / shrunk), (self, slope))

    def stored(self, fmt: Format) -> "Entry":
        """The value in another format; the cotangent passes unchanged."""
        return self.tape.entry(self.tape.machine.stored(fmt, self.value), (self, _same))


def _same(bar: Array) -> Array:
    return bar


class Tape:
    """A program as it runs on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.entries: list[Entry] = []

    def entry(self, value: Array, *parents: Any) -> Entry:
        """A new value with its parents and their pullbacks."""
        made = Entry(self, value, tuple(parents))
        self.entries.append(made)
        return made

    def inputs(self, values: Array) -> list[Entry]:
        """The leading axis as separate values."""
        wide = WIDE if self.machine.exact else float
        return [self.entry(np.asarray(row, dtype=wide)) for row in values]

    def backward(self, seeds: list[tuple[Entry, Array]]) -> None:
        """Reverse mode: fills `bar` of every entry that the seeds depend on."""
        for entry, bar in seeds:
            self._accumulate(entry, np.asarray(bar))
        for entry in reversed(self.entries):
            if entry.bar is None:
                continue
            for parent, pullback in entry.parents:
                self._accumulate(parent, pullback(entry.bar))

    def _accumulate(self, entry: Entry, bar: Array) -> None:
        add = self.machine.add
        entry.bar = bar if entry.bar is None else add(entry.bar, bar)


Pair = tuple[Entry | None, Entry]  # (A, B); A is None for a state


def combine(left: Pair, right: Pair) -> Pair:
    """First `left`, then `right`: A = Ar Al, B = Ar Bl + Br."""
    ar, br = right
    al, bl = left
    assert ar is not None
    return None if al is None else ar * al, ar * bl + br


Scan = Callable[[list[Entry], list[Entry], Entry], list[Entry]]


def sequential(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
    """One step after another."""
    out = []
    for x, y in zip(a, b, strict=True):
        s = x * s + y
        out.append(s)
    return out


def hillis_steele(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
    """Doubling; the initial state joins the first step."""
    pairs: list[Pair] = list(zip(a, b, strict=True))
    pairs[0] = combine((None, s), pairs[0])
    return [pair[1] for pair in doubled(pairs)]


def doubled(pairs: list[Pair]) -> list[Pair]:
    """Inclusive prefixes by Hillis and Steele."""
    reach = 1
    while reach < len(pairs):
        pairs = pairs[:reach] + [
            combine(pairs[i - reach], pairs[i]) for i in range(reach, len(pairs))
        ]
        reach *= 2
    return pairs


def blelloch(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
    """Up-sweep of totals, then down-sweep of prefixes from the initial state."""
    pairs: list[Pair] = list(zip(a, b, strict=True))
    return [
        combine(p, x)[1]
        for p, x in zip(exclusive((None, s), pairs), pairs, strict=True)
    ]


def exclusive(start: Pair, pairs: list[Pair]) -> list[Pair]:
    """What stands before each pair, by an up- and a down-sweep over a binary tree."""
    if len(pairs) == 1:
        return [start]
    joined = [combine(pairs[i], pairs[i + 1]) for i in range(0, len(pairs) - 1, 2)]
    odd = pairs[-1:] if len(pairs) % 2 else []
    prefixes = exclusive(start, joined + odd)
    out: list[Pair] = []
    for i in range(len(pairs)):
        if i % 2 == 0:
            out.append(prefixes[i // 2])
        else:
            out.append(combine(prefixes[i // 2], pairs[i - 1]))
    return out


def random_trees(seed: int) -> Scan:
    """Every output by a random tree; equal ranges of steps are combined once."""

    def scan(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        generator = np.random.default_rng(seed)
        leaves: list[Pair] = [(None, s), *zip(a, b, strict=True)]
        known: dict[tuple[int, int], Pair] = {}

        def total(first: int, last: int) -> Pair:
            if last - first == 1:
                return leaves[first]
            if (first, last) not in known:
                middle = int(generator.integers(first + 1, last))
                known[first, last] = combine(total(first, middle), total(middle, last))
            return known[first, last]

        return [total(0, t + 2)[1] for t in range(len(a))]

    return scan


def chunked(
    size: int,
    inner: str = "sequential",
    carry: str = "sequential",
    state: Format | None = None,
    *,
    restart: bool = True,
) -> Scan:
    """Totals of chunks, their carry, then every chunk from its carried state.

    With `restart` False chunks are scanned from zero and joined to the carry by one
    product and one sum a token.
    """

    def scan(a: list[Entry], b: list[Entry], s: Entry) -> list[Entry]:
        pairs: list[Pair] = list(zip(a, b, strict=True))
        chunks = [pairs[i : i + size] for i in range(0, len(pairs), size)]
        local = [
            doubled(chunk) if inner == "tree" else _running(chunk) for chunk in chunks
        ]
        totals = [prefixes[-1] for prefixes in local]
        if carry == "tree":
            carries = [pair[1] for pair in exclusive((None, s), totals)]
        else:
            carries = [s]
            for total in totals[:-1]:
                joined = combine((None, carries[-1]), total)[1]
                carries.append(joined if state is None else joined.stored(state))
        out: list[Entry] = []
        for chunk, prefixes, start in zip(chunks, local, carries, strict=True):
            if not restart:
                out += [combine((None, start), p)[1] for p in prefixes]
            elif inner == "tree":
                first = combine((None, start), chunk[0])
                out += [p[1] for p in doubled([first, *chunk[1:]])]
            else:
                out += sequential(*map(list, zip(*chunk, strict=True)), start)
        return out

    return scan


def _running(pairs: list[Pair]) -> list[Pair]:
    out = [pairs[0]]
    for pair in pairs[1:]:
        out.append(combine(out[-1], pair))
    return out
