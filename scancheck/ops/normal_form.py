"""The one recurrence behind every op, and what an op has to say about itself.

    S_t = (w_t + p_t q_t^T) S_{t-1} diag(z_t) + k_t v_t^T        S is K x L per group
    o_t = r_t^T S_t, or r_t^T S_{t-1} where it reads before the update

A group is whatever shares keys and readouts (a batch row, or a batch row and head); its
L lanes are value columns or channels. Sizes of 1 broadcast. `w` multiplies elementwise,
so that a decay per key (K x 1), per head (1 x 1) or per key and channel (K x L,
selective_scan) is one case.

An op writes its lowering, epilogue and their pullbacks once, over any Number: the
oracles and the error bounds are the same code run over other numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scancheck.errors import CaseInvalid

if TYPE_CHECKING:
    from scancheck.ops.calling import Calling


@runtime_checkable
class Number(Protocol):
    """An array of numbers of one kind: balls, double-doubles, mpmath, error bounds.

    Arithmetic broadcasts like NumPy; structural methods act on every component.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __add__(self, other: Self) -> Self: ...
    def __mul__(self, other: Self) -> Self: ...
    def __neg__(self) -> Self: ...
    def __getitem__(self, index: Any) -> Self: ...
    def one_minus(self) -> Self: ...
    def exp(self) -> Self: ...
    def softplus(self) -> Self: ...
    def sigmoid(self) -> Self: ...
    def silu(self) -> Self: ...
    def silu_slope(self) -> Self: ...
    def reciprocal(self) -> Self: ...
    def maximum(self, other: Self) -> Self: ...
    def exceeds(self, other: Self) -> Self: ...  # 1 or 0; both where it is open
    def held(self) -> Self: ...  # its value as if it were given
    def sum(self, axis: int | tuple[int, ...]) -> Self: ...
    def transpose(self, *axes: int) -> Self: ...
    def reshape(self, *shape: int) -> Self: ...
    def joined(self, other: Self, axis: int) -> Self: ...
    def as_operand(self) -> Self: ...
    def as_part(self) -> Self: ...
    def losing(self, count: Callable[[], Any]) -> Self: ...


FloatArray = NDArray[np.float64]
Tensors = Mapping[str, Any]  # name -> Number, in the op's own layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of an op."""

    name: str
    axes: tuple[str, ...]  # size names, for example ("B", "T", "D")
    kind: str = "storage"  # storage: the case's dtype; state: fp32 (fp64 when fp64)
    required: bool = True
    variants: tuple[tuple[tuple[str, ...], str], ...] = ()  # other (axes, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A tile of an op in normal form; None stands for ones (k, r) or absence."""

    w: Any  # [G, T, K or 1, L or 1]: elementwise decay
    v: Any  # [G, T, L]: values written
    k: Any = None  # [G, T or 1, K, L or 1]: keys
    r: Any = None  # [G, T or 1, K, L or 1]: readout
    log_w: Any = None  # log of w where w = exp(log_w), same shape
    p: Any = None  # [G, T, K, 1]: rank-one transition, left
    q: Any = None  # [G, T, K, 1]: rank-one transition, right; with p or not at all
    erases_decayed: bool = False  # q = w k, p = -beta k: a delta rule's k, from w S
    # k [G, T, K, 1] and beta [G, T, 1, 1] of it, which q and p leave open where w is
    # zero; what chunks make of such a step is bounded with them only.
    key: Any = None
    strength: Any = None
    z: Any = None  # [G, T, 1, L]: value-side decay
    log_z: Any = None  # log of z where z = exp(log_z); left where w has z in it
    reads_before: bool = False  # o_t reads S_{t-1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cotangents:
    """Cotangents of a lowered tile, shaped as its fields; that of w is [G, T, K, L]."""

    w: Any
    v: Any
    k: Any = None
    r: Any = None
    log_w: Any = None  # where it is not formed from that of w
    p: Any = None
    q: Any = None
    z: Any = None
    log_z: Any = None  # likewise, [G, T, 1, L]


def gate_cotangent(lowered: Lowered, cotangents: Cotangents) -> Any:
    """The cotangent of log_w: w wbar, formed directly, unless one is given."""
    if cotangents.log_w is not None:
        return cotangents.log_w
    return lowered.w * cotangents.w


def value_gate_cotangent(lowered: Lowered, cotangents: Cotangents) -> Any:
    """That of log z: z zbar, unless one is given."""
    if cotangents.log_z is not None:
        return cotangents.log_z
    return lowered.z * cotangents.z


def one_step(sizes: Mapping[str, int]) -> int:
    """An op that moves its state once for each token."""
    return 1


def no_constants(sizes: Mapping[str, int]) -> dict[str, FloatArray]:
    """An op that needs no number beside its inputs."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Numbers of each token that hang on all tokens before it, and are no state.

    They are found once, from all inputs, and stand in every tile, each [B, T, H].
    `final` makes the parts of the final state from those that `state_out` gives, and
    `final_pullback(everything, bars)` gives the cotangents of those, and those of
    running numbers by name. `pullback(everything, bars)` goes from the cotangents of
    running numbers, and whatever else a tile gives under `names`, to gradients.
    """

    names: tuple[str, ...]  # of all of them and their cotangents
    find: Callable[[Tensors], dict[str, Any]]
    pullback: Callable[[Tensors, dict[str, Any]], dict[str, Any]]
    final: Callable[[Tensors, tuple[Any, ...]], tuple[Any, ...]]
    final_pullback: Callable[
        [Tensors, tuple[Any, ...]], tuple[tuple[Any, ...], dict[str, Any]]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What is to be computed, with no word on precision.

    `lower(tile, carry) -> (Lowered, carry)` takes a time slice of the inputs.
    `epilogue(tile, o)` gives the sequence output in the op's layout from
    o [G, T, L]; `epilogue_pullback(tile, o, ybar) -> (obar, gradients)` and
    `lower_pullback(tile, lowered, cotangents) -> gradients` go back. `state_in` and
    `state_out` convert the op's state tensor to S [G, K, L] and back; where a state has
    further tensors, such as the normaliser of a ratio, they take and give all of them.
    `constants` names numbers that follow from the sizes, such as a scale, as fp64 holds
    them; they stand beside the inputs in every tile and have no gradient.
    """

    name: str
    time_axis: str  # the size name that counts tokens: T or L
    size_names: tuple[str, ...]  # all size names, batch first
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]  # sequence output first, then the final state
    state: str  # input name of the initial state
    further_state: tuple[str, ...] = ()  # of further parts, in the order of outputs[2:]
    normalisers: int = 0  # lanes of S behind those of the values
    forms: tuple[frozenset[str], ...]  # input sets of which exactly one is given
    switches: tuple[str, ...]  # boolean keyword arguments, False by default
    lower: Callable[[Tensors, Any], tuple[Lowered, Any]]
    epilogue: Callable[[Tensors, Any], Any]
    epilogue_pullback: Callable[[Tensors, Any, Any], tuple[Any, dict[str, Any]]]
    lower_pullback: Callable[[Tensors, Lowered, Cotangents], dict[str, Any]]
    state_in: Callable[..., Any]  # (part, ..., sizes) -> S [G, K, L]
    state_out: Callable[[Any, Mapping[str, int]], Any]  # S, sizes -> a part, or parts
    group_shape: Callable[[Mapping[str, int]], tuple[int, int, int]]  # sizes -> G, K, L
    reads_before: bool = False  # outputs read the state before its update
    diagonal: bool = True  # whether the transition has no rank-one part
    factored: bool = False  # no lowered field has both keys and lanes
    spread_by: tuple[str, ...] = ()  # inputs that make an exception to that
    matrix_products: bool = False  # chunks are products of keys, queries and values
    algebraic: bool = False  # sums and products of stored values and constants alone
    constants: Callable[[Mapping[str, int]], dict[str, FloatArray]] = no_constants
    substeps: Callable[[Mapping[str, int]], int] = one_step  # steps of a tile per token
    calling: "Calling | None" = None  # several sequences in one call, or in reverse
    running: Running | None = None  # what a lowering needs of the tokens before its own


def state_inputs(op: Op) -> tuple[str, ...]:
    """The inputs that are the initial state, in the order of `state_outputs`."""
    return op.state, *op.further_state


def state_outputs(op: Op) -> tuple[TensorSpec, ...]:
    """The outputs that are the final state."""
    return op.outputs[1:]


def state_tensors(op: Op) -> frozenset[str]:
    """The names of all that holds a state, before or after."""
    return frozenset(state_inputs(op)) | {spec.name for spec in state_outputs(op)}


def outputs_with_chains(op: Op) -> frozenset[str]:
    """Outputs whose channels round apart from each other (numerics 2.8).

    Further parts of a state have one entry where a state has its lanes. A running
    number, of which a head has one, is in every part of a state that is in its units,
    and adds up the same few terms: its roundings are not independent either.
    """
    sequence, state, *_ = (spec.name for spec in op.outputs)
    return frozenset({sequence} if op.running is not None else {sequence, state})


def value_lanes(op: Op, sizes: Mapping[str, int]) -> int:
    """Lanes of a group that hold values; the normalisers of a ratio are not counted."""
    _, _, lanes = op.group_shape(sizes)
    return lanes - op.normalisers


def has_plain_decays(op: Op, tensors: Mapping[str, Any]) -> bool:
    """Whether decays are inputs themselves, `a`, and not exponentials of any."""
    return frozenset({"a"}) in op.forms and "a" in tensors


def is_algebraic(op: Op, tensors: Mapping[str, Any]) -> bool:
    """Whether these tensors make sums and products alone, without exponentials."""
    return op.algebraic or has_plain_decays(op, tensors)


def spec_of(op: Op, name: str, rank: int | None = None) -> TensorSpec:
    """The spec of an input or output, in the variant that has `rank` axes.

    Raises CaseInvalid when the op has no such tensor, or not of that rank.
    """
    for spec in op.inputs + op.outputs:
        if spec.name == name:
            if rank is None or rank == len(spec.axes):
                return spec
            for axes, kind in spec.variants:
                if rank == len(axes):
                    return replace(spec, axes=axes, kind=kind, variants=())
            raise CaseInvalid(
                f"{op.name}: {name} has axes {list(spec.axes)}; got {rank} axes"
            )
    names = ", ".join(spec.name for spec in op.inputs + op.outputs)
    raise CaseInvalid(f"{op.name} has no tensor {name!r}; expected one of {names}")
