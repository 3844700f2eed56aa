"""A contract turned into the coefficients of a bound, for one storage dtype."""

import math
from dataclasses import dataclass, replace

from scancheck.contract import CONTRACT_FORMATS, Contract, Structure, resolve
from scancheck.formats import FORMATS, TF32, Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What one rounding into a format may do to a value."""

    u: float  # unit roundoff
    eta: float  # absolute error below the normal range
    largest: float  # largest finite value
    normal: float = 0.0  # smallest normal value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Coefficients of the rounding error model (numerics 2.1)."""

    compute: Format  # format of every operation
    flush: bool  # whether operands and results below the normal range may become zero
    u: float  # unit roundoff of the computation
    eta: float  # absolute error of one product that underflows
    add_eta: float  # absolute error of one sum that underflows: 0 unless flushed
    overflow: float  # largest finite value of the compute format
    vanish: float  # 1 / overflow: what 1 / (1 + exp(-x)) may be when exp overflows
    state_u: float  # unit roundoff of the state's storage; 0 when it is `u`'s format
    state_eta: float  # absolute error of one state store
    state_largest: float  # largest finite value of the state's format
    state_every: int  # the state is stored before every so many steps
    trees: bool  # roundings scale with sums of magnitudes, for any order
    structure: Structure  # order of combination
    fma: bool  # whether a product and a sum are sure to round once
    comp: str  # none, kahan, full
    exp: tuple[float, float]  # relative error e0 + e1 |x|
    ln: tuple[float, float]  # error e0 |ln x| + e1
    softplus: tuple[float, float]
    silu: tuple[float, float]
    gate_gradient: str  # direct, reverse_cumsum, chunk_sums
    decay_cast: Store | None  # a cast of the decay
    drive_cast: Store | None  # a cast of the value written
    operands: Format  # format of the operands of matrix products
    operand_cast: Store | None  # a cast of every one of them, where that is shorter
    part_cast: Store | None  # of parts of a gradient before they are added up
    saved_cast: Store | None  # of the states that gradients are made of
    sum_u: float  # unit roundoff of sums of matrix products: 2 u where they truncate
    inverse: str  # substitution, block, neumann
    partial_products: bool  # whether products of decays must stay in range
    in_products: bool = False  # whether chunks are matrix products, summed in any order

    @property
    def state_store(self) -> Store:
        """A store of the state; it rounds nothing where the state is as computed."""
        return Store(u=self.state_u, eta=self.state_eta, largest=self.state_largest)


def rules_for(contract: Contract, dtype: str, *, underflow: bool = True) -> Rules:
    """The coefficients of a contract on a storage dtype.

    With `underflow` False all absolute terms are zero: the bound that would hold if
    the exponent range had no lower end.
    """
    contract = resolve(contract, dtype)
    compute = CONTRACT_FORMATS[contract.compute]
    state = CONTRACT_FORMATS[contract.state]
    u = compute.unit_roundoff
    flush = contract.ftz != "no"
    scale = 1.0 if underflow else 0.0
    # Input and output of an operation may be flushed: numerics 2.4 has 2 lam.
    eta = 2 * compute.smallest_normal if flush else compute.eta
    rounded = state.precision < compute.precision or state.emin > compute.emin
    operands = CONTRACT_FORMATS[contract.operands]
    casts = dict(contract.casts)
    sequential = contract.structure.kind == "sequential"

    def stored(place: str) -> Store | None:
        shorter = CONTRACT_FORMATS[dtype] if place == "storage" else compute
        return _operand_cast(shorter, compute, contract, scale, flush)

    return Rules(
        compute=compute,
        flush=flush and underflow,
        u=u,
        eta=scale * eta,
        add_eta=scale * eta if flush else 0.0,
        overflow=compute.largest,
        vanish=scale / compute.largest,
        state_u=state.unit_roundoff if rounded else 0.0,
        state_eta=scale * _floor(state, flush) if rounded else 0.0,
        state_largest=state.largest,
        state_every=contract.state_every,
        trees=not sequential,
        structure=contract.structure,
        fma=contract.fma == "yes",
        comp=contract.comp,
        exp=(u * contract.exp.e0, u * contract.exp.e1),
        ln=(u * contract.ln.e0, u * contract.ln.e1),
        softplus=(u * contract.softplus.e0, u * contract.softplus.e1),
        silu=(u * contract.silu.e0, u * contract.silu.e1),
        gate_gradient=contract.gate_gradient,
        decay_cast=_cast(casts.get("decay"), scale, flush),
        drive_cast=_cast(casts.get("drive"), scale, flush),
        operands=operands,
        operand_cast=_operand_cast(operands, compute, contract, scale, flush),
        part_cast=stored(contract.gradient_parts),
        saved_cast=stored(contract.gradient_state),
        sum_u=2 * u if contract.accumulate == "truncate" else u,
        inverse=contract.inverse,
        partial_products=contract.range == "products" and not sequential,
    )


def _floor(fmt: Format, flush: bool) -> float:
    """Absolute error of a store into `fmt` below its normal range."""
    return fmt.smallest_normal if flush else fmt.eta


def _operand_cast(
    fmt: Format, compute: Format, contract: Contract, scale: float, flush: bool
) -> Store | None:
    """A rounding of an operand, unless its format holds whatever is computed.

    Units that truncate their sums read tf32 operands off the first bits of fp32 ones.
    What flushes subnormal numbers of `compute` keeps those of shorter exponents.
    """
    if fmt.precision >= compute.precision and fmt.emax >= compute.emax:
        return None
    cast = _cast(fmt.name, scale, flush and fmt.emin <= compute.emin)
    assert cast is not None
    truncated = fmt is TF32 and contract.accumulate == "truncate"
    return replace(cast, u=2 * cast.u) if truncated else cast


def _cast(name: str | None, scale: float, flush: bool) -> Store | None:
    if name is None:
        return None
    fmt = CONTRACT_FORMATS[name]
    return Store(
        u=fmt.unit_roundoff,
        eta=scale * _floor(fmt, flush),
        largest=fmt.largest,
        normal=fmt.smallest_normal,
    )


def of_matrix_products(rules: Rules) -> Rules:
    """The rules of an op whose chunks are matrix products.

    Those add up a chunk's terms in an order of their own, forward and back.
    """
    # However a contract's chunks are scanned: a chain has the most additions.
    chain = replace(rules.structure, inner="sequential")
    return replace(rules, structure=chain, in_products=True)


def additions(structure: Structure, steps: int) -> int:
    """The largest number of additions on a term's path after `steps` steps.

    Any order: t, for the initial state is one more term. Trees: an up and a down sweep.
    Chunks: those of the term's own chunk total, one for each chunk edge it crosses, and
    those of the last chunk, which a second pass scans from the carried state. (A first
    pass whose states are joined to the carry afterwards makes no more.)
    """
    if steps <= 0:
        return 0
    match structure.kind:
        case "tree":
            return tree_depth(steps + 1)
        case "chunk":
            assert structure.chunk is not None
            edges, place = divmod(steps - 1, structure.chunk)
            inside = tree_depth if structure.inner == "tree" else _chain
            between = tree_depth if structure.carry == "tree" else _chain
            count = inside(place + 2)
            if edges:
                count += inside(structure.chunk) + between(edges + 1)
            return min(steps, count)
        case _:
            return steps


def additions_age(rules: Rules) -> bool:
    """Whether a term's additions come one with each step of its age.

    So they do in chunks that are scanned and carried one after another: a term that is
    n steps old has passed at most n additions inside chunks, in the pass for the totals
    before its last edge and in the second pass after it. In a matrix product the latest
    term may be the first to be added, and the adjoint's is in the usual order.
    """
    structure = rules.structure
    orders = structure.inner, structure.carry
    return structure.kind == "chunk" and not rules.in_products and "tree" not in orders


def ageless_additions(structure: Structure, steps: int) -> int:
    """Additions beyond those of age: the term's own, the join, and one an edge."""
    assert structure.chunk is not None
    return min(steps, 2 + max(0, steps - 1) // structure.chunk) if steps > 0 else 0


def reverse_additions(structure: Structure, total: int) -> int:
    """Additions of reverse mode through `total` steps, beyond those of both its scans.

    The gradient of w_t meets the additions of S_{t-1} on one side and of G_t on the
    other. Wherever a result is used twice its cotangents are added: in a tree once at
    each level, which the scan G counts already; the carry of a chunk is used by each of
    its steps. G_t is counted as if chunks started at the end; a grid that starts at the
    beginning cuts it at one more place, within the same number.
    """
    return 2 + min(structure.chunk or 0, total)


def tree_depth(terms: int) -> int:
    """Levels of an up and a down sweep over n terms; never more than n - 1."""
    return min(terms - 1, 2 * math.ceil(math.log2(terms)))


def _chain(terms: int) -> int:
    """Additions of n terms one after another."""
    return terms - 1


def storage_error(dtype: str) -> Store:
    """What a store into the storage format `dtype` may do."""
    fmt = FORMATS[dtype]
    return Store(u=fmt.unit_roundoff, eta=fmt.eta, largest=fmt.largest)
