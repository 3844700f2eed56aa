"""What a chunk makes of the state it starts from, as matrix products.

With `scores`, `read` and `moved` of chunk_decays and S the state carried in:

    nothing erased  O = read(Q, S) + scores(Q, K) V            S' = moved(S; K V)
    delta rule      N = diag(beta) scores(K, K), j < t         T = (I + N)^-1
                    U = T diag(beta) (V - read(K, S))
                    O = read(Q, S) + scores(Q, K) U            S' = moved(S; K U)
    rank one        T = (I - scores(A, B))^-1, A before the update
                    U = T (read(A, S) + scores(A, K) V)
                    O = read(R, S) + scores(R, B) U + scores(R, K) V
                    S' = moved(S; B U, K V)

The delta rule's U is numerics 2.10's: the UT transform of Yang et al., "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length" (2024), with gates as in
"Gated Delta Networks" (2024); the rank-one form is RWKV-7's. All that needs no state is
formed for all chunks at once. A bonus (RWKV-6) adds (sum over keys of r (u k)) v to
what is read before the update.
"""

from typing import Protocol

from scancheck.kernels.models.chunk_decays import ChunkDecays
from scancheck.kernels.models.chunk_inverse import inverse_of_unit_plus
from scancheck.kernels.models.tape import Tape, Variable

Named = dict[str, Variable]  # the fields of Steps that there are, in chunks


class Rule(Protocol):
    """All chunks, but for the state."""

    def step(self, index: int, state: Variable) -> tuple[Variable, Variable]:
        """The outputs of one chunk, [..., C, L], and the state after it."""


class Writing:
    """Nothing is erased."""

    def __init__(self, tape: Tape, decays: ChunkDecays, given: Named) -> None:
        self.tape, self.decays = tape, decays
        reads, keys, values = given["reads"], given["keys"], given["values"]
        before = "bonus" in given
        scores = decays.scores(reads, keys, before=before)
        self.own = tape.matmul(decays.products, scores, values)
        if before:
            boosted = tape.mul(given["bonus"], keys)
            weight = tape.sum(tape.mul(reads, boosted), -1)
            weight = tape.reshaped(weight, *weight.shape, 1)
            self.own = tape.add(self.own, tape.mul(weight, values))
        self.reads = decays.reads(reads, before=before)
        self.kept, self.values = decays.kept(keys), values

    def step(self, index: int, state: Variable) -> tuple[Variable, Variable]:
        """The chunk's own tokens and what they read of the state."""
        tape, decays = self.tape, self.decays
        read = decays.read(index, self.reads, state)
        o = tape.add(read, tape.part(self.own, index))
        values = tape.part(self.values, index)
        return o, decays.moved(index, state, ((self.kept, values),))


class DeltaRule:
    """A key's value is replaced."""

    def __init__(
        self, tape: Tape, decays: ChunkDecays, given: Named, inverse: str
    ) -> None:
        self.tape, self.decays = tape, decays
        reads, keys = given["reads"], given["keys"]
        self.values, self.beta = given["values"], given["beta"]
        lower = tape.mul(self.beta, decays.scores(keys, keys, strict=True))
        self.inverse = inverse_of_unit_plus(tape, decays.products, inverse, lower)
        self.scores = decays.scores(reads, keys)
        self.reads, self.erased = decays.reads(reads), decays.reads(keys)
        self.kept = decays.kept(keys)

    def step(self, index: int, state: Variable) -> tuple[Variable, Variable]:
        """U, what is written, from the errors against the state carried in."""
        tape, decays = self.tape, self.decays
        found = decays.read(index, self.erased, state)
        error = tape.sub(tape.part(self.values, index), found)
        error = tape.mul(tape.part(self.beta, index), error)
        written = tape.matmul(decays.products, tape.part(self.inverse, index), error)
        scores = tape.part(self.scores, index)
        own = tape.matmul(decays.products, scores, written)
        o = tape.add(decays.read(index, self.reads, state), own)
        return o, decays.moved(index, state, ((self.kept, written),))


class RankOne:
    """left (right^T S) is added, the state read before its decay."""

    def __init__(
        self, tape: Tape, decays: ChunkDecays, given: Named, inverse: str
    ) -> None:
        self.tape, self.decays = tape, decays
        reads, keys, left, right = (
            given[name] for name in ("reads", "keys", "left", "right")
        )
        self.values = given["values"]
        products = decays.products
        lower = tape.neg(decays.scores(right, left, before=True))
        self.inverse = inverse_of_unit_plus(tape, products, inverse, lower)
        seen = decays.scores(right, keys, before=True)
        self.seen = tape.matmul(products, seen, self.values)
        self.own = tape.matmul(products, decays.scores(reads, keys), self.values)
        self.scores = decays.scores(reads, left)
        self.reads = decays.reads(reads)
        self.right = decays.reads(right, before=True)
        self.kept_left, self.kept_keys = decays.kept(left), decays.kept(keys)

    def step(self, index: int, state: Variable) -> tuple[Variable, Variable]:
        """U, what is seen of the state at each token of the chunk."""
        tape, decays = self.tape, self.decays
        seen = decays.read(index, self.right, state)
        seen = tape.add(seen, tape.part(self.seen, index))
        seen = tape.matmul(decays.products, tape.part(self.inverse, index), seen)
        own = tape.matmul(decays.products, tape.part(self.scores, index), seen)
        o = tape.add(decays.read(index, self.reads, state), own)
        o = tape.add(o, tape.part(self.own, index))
        values = tape.part(self.values, index)
        writes = (self.kept_left, seen), (self.kept_keys, values)
        return o, decays.moved(index, state, writes)


def rule_of(tape: Tape, decays: ChunkDecays, given: Named, inverse: str) -> Rule:
    """The rule of an op by the steps that it has."""
    if "beta" in given:
        return DeltaRule(tape, decays, given, inverse)
    if "left" in given:
        return RankOne(tape, decays, given, inverse)
    return Writing(tape, decays, given)
