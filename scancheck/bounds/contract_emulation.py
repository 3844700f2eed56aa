"""What a contract's roundings do to chunks of a rank-one recurrence, by drawing them.

Second moments have no short recurrence where a transition is not diagonal. So the fp64
chunk algorithm runs a few times with each declared rounding drawn, a factor of
1 + 0.736 u U[-1, 1] whose root mean square is that of a rounding to nearest, 0.425 u
(numerics 2.8); the root mean square of what comes of that is what rho divides by. This
is Monte Carlo arithmetic (Parker, "Monte Carlo arithmetic", 1997) at the level of a
contract, not of a program: it says how large errors are, not which they are.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.bias import bias_of, rounded_functions
from scancheck.bounds.budget import storage_dtype
from scancheck.bounds.chunk_inverse import BLOCK, substituted
from scancheck.bounds.chunk_parts import ChunkParts, parts_of
from scancheck.bounds.chunk_scores import Matrix, Weights, summed_over_keys
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.products import Products, turned
from scancheck.bounds.rank_one_chunk_system import RankOneChunkSystem
from scancheck.bounds.rules import Rules, rules_for, storage_error
from scancheck.bounds.step_emulation import (
    DRAWS,
    REACH,
    SEED,
    EmulatedSteps,
    drawn_noise,
    of_draws,
)
from scancheck.contract import CONTRACT_FORMATS, Contract, resolve
from scancheck.formats import FP32, Format, round_array
from scancheck.ops.normal_form import Lowered, Op
from scancheck.oracles.engine import solve

FloatArray = NDArray[np.float64]


def emulated_for(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    contract: Contract,
    dtype: str,
) -> dict[str, FloatArray] | None:
    """sqrt(v) of every output by name, as `moments_for` has it elsewhere.

    An element's is the root mean square of DRAWS draws, in units of that of one
    rounding of size 1, and beside it what more functions may be off by, all in one
    direction (`bias`). It is meant for means over many elements, as rho takes them: a
    single one may be small by chance. None for diagonal transitions, for structures
    other than chunks and steps in order, for computation shorter than fp32, and where
    sums that truncate, which err in one direction, have the largest roundings.
    """
    rules = rules_for(contract, dtype)
    short = rules.compute.precision < FP32.precision
    biased = rules.sum_u > rules.u and rules.operand_cast is None
    kind = rules.structure.kind
    independent = rounded_functions(rules)
    if op.diagonal or op.reads_before or short or biased:
        return None
    if kind not in ("chunk", "sequential") or rules.comp != "none":
        return None
    if kind == "sequential":
        found = solve(EmulatedSteps(independent), op, tensors, switches)
    else:
        operands = CONTRACT_FORMATS[resolve(contract, dtype).operands]
        system = EmulatedChunks(independent, contract.log, op.name, operands)
        found = solve(system, op, tensors, switches, multiple=system.chunk)
    roots = {name: _root(op, name, x, dtype) for name, x in found.outputs.items()}
    exact = {name: number.value for name, number in found.outputs.items()}
    bias = bias_of(rules, op, tensors, switches, exact)
    return {name: np.hypot(root, bias[name]) for name, root in roots.items()}


def _root(op: Op, name: str, number: ErrorNumber, dtype: str) -> FloatArray:
    """sqrt(v) after the store into the tensor's format."""
    store = storage_error(storage_dtype(op, name, dtype, len(number.shape)))
    own = (store.u * number.value) ** 2 + (store.eta / (math.sqrt(3.0) * _RMS)) ** 2
    return np.sqrt((number.error / _RMS) ** 2 + own)


_RMS = REACH / math.sqrt(3.0)  # 0.425


class DrawnState(NamedTuple):
    """The state without roundings, and with each draw's, [1 + DRAWS, G, K, L]."""

    values: FloatArray


class EmulatedChunks(RankOneChunkSystem):
    """Runs the chunks of an op; the `error` of its numbers is a root mean square."""

    def __init__(self, rules: Rules, log: str, op: str, operands: Format) -> None:
        super().__init__(rules, log, op)
        self.draw = Draws(rules, operands)

    def begin(self, state: ErrorNumber) -> Any:
        """The same state for all."""
        return DrawnState(np.repeat(state.value[None], 1 + DRAWS, 0))

    def forward(
        self, lowered: Lowered, state: Any, start: int, total: int, keep: bool
    ) -> tuple[ErrorNumber, Any, Any]:
        """o [G, T, L] and the state after the tile."""
        self._check(lowered, start)
        groups, lanes = state.values.shape[1], state.values.shape[3]
        products = Products(self.rules, groups)
        rows = [np.zeros((1 + DRAWS, groups, 0, lanes))]
        for part in self._chunks(lowered):
            parts = parts_of(products, self.rules, self.log, part)
            o, values = self.draw.chunk(parts, state.values)
            rows.append(o)
            state = DrawnState(values)
        return of_draws(self.rules, np.concatenate(rows, 2)), state, None

    def end(self, state: Any, total: int) -> ErrorNumber:
        """The final state."""
        return of_draws(self.rules, state.values)


class Draws:
    """Roundings of 1 + DRAWS runs at once, the first of which has none."""

    def __init__(self, rules: Rules, operands: Format) -> None:
        self.rules = rules
        self.source = np.random.default_rng(SEED)
        self.format = operands if rules.operand_cast is not None else None

    def noise(self, size: FloatArray) -> FloatArray:
        """`size` times a rounding of size 1, [1 + DRAWS, ...]; none for the first."""
        return drawn_noise(self.source, size)

    def cast(self, x: FloatArray) -> FloatArray:
        """Operands; those that the format holds as they are stay."""
        if self.format is None:
            return x
        held = round_array(self.format, x[0]) == x[0]
        size = self.format.unit_roundoff * np.abs(x)
        return x + np.where(held, 0.0, self.noise(size))

    def product(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """A B of cast operands, summed in order.

        The partial sums of n terms t have squares that add up to about n / 2 times the
        sum of t^2 where signs vary, and n / 3 times the square of the sum where not.
        """
        a, b = self.cast(a), self.cast(b)
        found, n = a @ b, a.shape[-1]
        squares = (n / 2.0) * ((a * a) @ (b * b)) + (n / 3.0) * found * found
        return found + self.noise(self.rules.sum_u * np.sqrt(squares))

    def chunk(
        self, parts: ChunkParts, state: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """O [1 + DRAWS, G, C, L] and the state after the chunk."""
        inputs, rules = parts.inputs, self.rules

        def drawn(x: FloatArray) -> FloatArray:
            return np.repeat(x[None], 1 + DRAWS, 0)

        def decayed(name: str) -> FloatArray:
            rows = getattr(inputs, name).value
            decay = parts.from_start["p" if name == "k" else name]
            error = self.noise(drawn(np.abs(rows) * decay.error))
            return drawn(rows * decay.value) + error

        b, v = drawn(inputs.b.value), drawn(inputs.v.value)

        def formed(scores: Matrix | None, row: str, column: str) -> FloatArray:
            assert scores is not None
            weights = parts.by_read if row == "read" else parts.by_r
            x, y = getattr(inputs, row).value, getattr(inputs, column).value
            return drawn(scores.value) + self.noise(
                drawn(self._of_scores(weights, x, y, scores.value))
            )

        lower = formed(parts.lower, "read", "p")
        inverse = self._inverse(-inputs.sigma * b * lower)
        read, r, p = decayed("read"), decayed("r"), decayed("p")
        z = v
        if parts.lower_k is not None:
            z = self.product(formed(parts.lower_k, "read", "k"), v)
        u = self.cast(self.product(inverse, b * z))
        w = self.product(inverse, b * read)
        x = u + inputs.sigma * self.product(w, state)
        o = self.product(r, state) + self.product(formed(parts.scores, "r", "p"), x)
        gate = drawn(parts.whole.value) + self.noise(drawn(parts.whole.error))
        after = gate * state + self.product(turned(p), x)
        if inputs.k is not None:
            o = o + self.product(formed(parts.scores_k, "r", "k"), v)
            after = after + self.product(turned(decayed("k")), v)
        after = after + self.noise((rules.u + rules.state_u) * np.abs(after))
        return o + self.noise(rules.u * np.abs(o)), after

    def _of_scores(
        self, weights: Weights, x: FloatArray, y: FloatArray, value: FloatArray
    ) -> FloatArray:
        """Sizes of the roundings of scores: sums, decays, casts of what is not held."""
        d, off = weights.decay
        alike, keys = d.shape[1] == 1, x.shape[2]
        squares = summed_over_keys(d * d, x * x, y * y)
        total = self.rules.sum_u**2 * (keys / 2.0 * squares + keys / 3.0 * value**2)
        if alike:
            total = total + (off[:, 0] * (x @ turned(y))) ** 2
        else:
            total = total + summed_over_keys(off * off, x * x, y * y)
        if self.format is not None:
            held = all((round_array(self.format, z) == z).all() for z in (x, y))
            if not (alike and held):
                total = total + 2.0 * self.format.unit_roundoff**2 * squares
        below = np.tri(value.shape[-1])
        found: FloatArray = np.sqrt(total) * below
        return found

    def _inverse(self, lower: FloatArray) -> FloatArray:
        """(I + lower)^-1 by the contract's method."""
        chunk = lower.shape[-1]
        eye = np.broadcast_to(np.eye(chunk), lower.shape)
        if self.rules.inverse == "neumann":
            power, reach = -lower, 2
            found = eye + power
            while reach < chunk:
                power = self.product(power, power)
                found = found + self.product(found, power)
                reach *= 2
            return found
        if self.rules.inverse == "block":
            place = np.arange(chunk) // BLOCK
            inside = place[:, None] == place
            lower = np.where(inside, lower, self.cast(lower))
        found = substituted(eye + lower, eye)
        # L T is the identity but for the roundings of the sums.
        squares = chunk / 2.0 * ((lower * lower) @ (found * found))
        return found + found @ self.noise(self.rules.sum_u * np.sqrt(squares))
