"""The CPU models as kernels, each with the contract of what it computes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, ErrorModel, Structure, resolve
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.by_sequence import taking_sequences
from scancheck.kernels.models.chunk_catalog import chunk_models
from scancheck.kernels.models.declared import ROUNDED_ONCE, dtypes_held
from scancheck.kernels.models.step_calls import FAMILIES, step_call

if TYPE_CHECKING:
    import torch

SCANS = ("linear_scan", "selective_scan")
OPS = (*SCANS, *FAMILIES)
LAYOUTS = {"linear_scan": (), "selective_scan": ("keys=grouped", "keys=constant")}
# Of each algorithm: how it is cut, the order inside a piece, the order between pieces.
ALGORITHMS = {
    "sequential": ("sequential", "sequential", "sequential"),
    "hillis_steele": ("hillis_steele", "tree", "sequential"),
    "blelloch": ("blelloch", "tree", "sequential"),
    "chunk": ("chunk", "sequential", "sequential"),
    "chunk_tree": ("chunk", "tree", "sequential"),
    "chunk_warps": ("chunk", "warps", "sequential"),
    "chunk_carry_tree": ("chunk", "sequential", "tree"),
    "chunk_tree_carry_tree": ("chunk", "tree", "tree"),
    "chunk_warps_carry_tree": ("chunk", "warps", "tree"),
    "single_pass": ("single_pass", "sequential", "sequential"),
    "single_pass_tree": ("single_pass", "tree", "sequential"),
    "single_pass_warps": ("single_pass", "warps", "sequential"),
}
COMPENSATIONS = ("plain", "kahan", "full")
# Of each log form, the algorithms whose order its sums may take.
LOG_FORMS = {
    "log_diff": ("chunk", "chunk_tree"),
    "log_segsum": ("chunk", "chunk_tree"),
    "log_factored": ("chunk", "chunk_tree"),
    "log_ratio": ("chunk", "chunk_tree"),
    "log_renorm": ("chunk", "chunk_tree"),
    "log_full": ("sequential", "hillis_steele"),
}
VARIANTS = (*COMPENSATIONS, *LOG_FORMS)
# Of the scans in their usual formats; of ops with heads all do.
TAKING_SEQUENCES = (("sequential", "plain"), ("chunk", "plain"))

_DOUBLE_WORD = ErrorModel(e0=2.0**-7)
"""exp kept as two words: the rest's own rounding, u**2 <= u 2**-8 for bf16, and the
evaluation's error, at most 0.005 u, in a format of at least fp16's precision."""


def models() -> tuple[Kernel, ...]:
    """Every model that is registered by name; `model` makes any other one."""
    kernels = []
    for op in SCANS:
        for algorithm in ("sequential", "hillis_steele", "chunk", "chunk_tree"):
            for variant in COMPENSATIONS:
                kernels.append(model(op, algorithm, variant))
        kernels += [
            model(op, "blelloch", "plain"),
            model(op, "chunk_warps", "plain"),
            model(op, "chunk_carry_tree", "plain"),
            model(op, "single_pass", "plain"),
            model(op, "single_pass_warps", "plain"),
            model(op, "sequential", "plain", compute="storage"),
            model(op, "hillis_steele", "plain", compute="storage"),
            model(op, "chunk", "plain", compute="storage"),
            # In chunks of 64, bounds of compensated bf16 arithmetic exceed the carry.
            model(op, "chunk", "full", chunk=8, compute="storage"),
            model(op, "sequential", "plain", state="bf16"),
            model(op, "chunk", "plain", state="bf16"),
        ]
        for variant, orders in LOG_FORMS.items():
            kernels += [model(op, algorithm, variant) for algorithm in orders]
    kernels += [model(op, "sequential", "plain") for op in FAMILIES]
    return (*kernels, *chunk_models())


def model(
    op: str,
    algorithm: str,
    variant: str,
    *,
    chunk: int = 64,
    compute: str = "fp32",
    state: str | None = None,
    state_every: int = 1,
) -> Kernel:
    """The model of one algorithm and variant.

    `chunk` counts for the algorithms of chunks, which round the carried state to
    `state` at chunk edges; sequential does it every `state_every` steps. `compute` and
    `state` are format names or "storage"; fp64 cases are computed in fp64 where
    `compute` is fp32. Raises CaseInvalid for an unknown name or a combination that does
    not exist.
    """
    _check(op, algorithm, variant, chunk, compute, state)
    if _is_chunked(algorithm) and state is not None:
        if state_every not in (1, chunk):
            raise CaseInvalid(
                f"model state_every: {algorithm} rounds its state at chunk edges, "
                f"every {chunk} steps; got {state_every}"
            )
        state_every = chunk
    contract = Contract(
        compute=compute,
        state=state or "compute",
        state_every=state_every,
        structure=_structure(algorithm, chunk),
        fma="no",
        log=variant.removeprefix("log_") if variant in LOG_FORMS else "none",
        comp=variant if variant in ("kahan", "full") else "none",
        exp=_DOUBLE_WORD if variant == "full" else ROUNDED_ONCE,
        ln=ROUNDED_ONCE,
        softplus=ROUNDED_ONCE,
        silu=ROUNDED_ONCE,
        ftz="no",
        range=_range(algorithm, variant),
    )
    return Kernel(
        name=_name(op, algorithm, variant, contract),
        op=op,
        call=_called(op, algorithm, variant, contract),
        contract=contract,
        dtypes=dtypes_held(compute),
        chunk=contract.structure.chunk,
        gradients=True,
        layouts=LAYOUTS.get(op, ()),
        edge_sizes=True,
        devices=("cpu",),
    )


def _called(
    op: str, algorithm: str, variant: str, contract: Contract
) -> Callable[..., Any]:
    """The callable; most take several sequences in one call as well."""
    call = _call(op, variant, partial(_resolved, algorithm, variant, contract))
    default = Contract()
    formats = contract.compute, contract.state
    ordinary = formats == (default.compute, default.state)
    if op in FAMILIES or ((algorithm, variant) in TAKING_SEQUENCES and ordinary):
        return taking_sequences(op, call)
    return call


def _is_chunked(algorithm: str) -> bool:
    return ALGORITHMS[algorithm][0] in ("chunk", "single_pass")


def _check(
    op: str,
    algorithm: str,
    variant: str,
    chunk: int,
    compute: str,
    state: str | None,
) -> None:
    for what, known, got in (
        ("op", OPS, op),
        ("algorithm", tuple(ALGORITHMS), algorithm),
        ("variant", VARIANTS, variant),
        ("compute", ("storage", *FORMATS), compute),
        ("state", (None, "storage", *FORMATS), state),
    ):
        if got not in known:
            raise CaseInvalid(
                f"model {what}: expected one of {', '.join(map(str, known))}; "
                f"got {got!r}"
            )
    if chunk < 1:
        raise CaseInvalid(f"model chunk: expected at least 1; got {chunk}")
    orders = LOG_FORMS.get(variant, tuple(ALGORITHMS))
    if algorithm not in orders:
        raise CaseInvalid(
            f"model: {variant} is computed with algorithm {' or '.join(orders)}; "
            f"got {algorithm!r}"
        )
    if op in FAMILIES and (algorithm, variant) != ("sequential", "plain"):
        raise CaseInvalid(
            f"model: {op} is computed with algorithm sequential and variant plain, or "
            f"in chunks by chunk_model; got {algorithm!r} and {variant!r}"
        )
    carries = _is_chunked(algorithm) or algorithm == "sequential"
    if state is not None and (not carries or variant == "log_full"):
        raise CaseInvalid(
            f"model: {algorithm} with {variant} carries no state; got state={state!r}"
        )


def _structure(algorithm: str, chunk: int) -> Structure:
    name, inner, carry = ALGORITHMS[algorithm]
    if name == "sequential":
        return Structure(kind="sequential")
    orders = {"sequential": "stepwise", "tree": "hillis_steele"}
    order = orders.get(inner, "any") if carry == "sequential" else "any"
    if not _is_chunked(algorithm):
        return Structure(kind="tree", order="any" if name == "blelloch" else order)
    inner = "sequential" if inner == "sequential" else "tree"
    return Structure(kind="chunk", chunk=chunk, inner=inner, carry=carry, order=order)


def _range(algorithm: str, variant: str) -> str:
    if variant in LOG_FORMS:
        return "products" if variant == "log_ratio" else "log"
    return "sequential" if algorithm == "sequential" else "products"


def _name(op: str, algorithm: str, variant: str, contract: Contract) -> str:
    frame, *_ = ALGORITHMS[algorithm]
    chunk = contract.structure.chunk
    shape = f"{frame}{chunk or ''}{algorithm.removeprefix(frame)}"
    parts = ["model", op, shape, variant]
    if contract.compute != Contract().compute:
        parts.append(f"compute_{contract.compute}")
    if contract.state != Contract().state:
        parts.append(f"state_{contract.state}")
        if algorithm == "sequential" and contract.state_every > 1:
            parts.append(f"every_{contract.state_every}")
    return ".".join(parts)


def _resolved(
    algorithm: str, variant: str, contract: Contract, dtype: str
) -> tuple[Arithmetic, Algorithm]:
    """What a call on tensors of `dtype` runs."""
    resolved = resolve(contract, dtype)
    frame, inner, carry = ALGORITHMS[algorithm]
    return Arithmetic(format_named(resolved.compute)), Algorithm(
        name=frame,
        variant=variant,
        chunk=contract.structure.chunk,
        inner=inner,
        carry=carry,
        state=None if contract.state == "compute" else format_named(resolved.state),
        state_every=contract.state_every,
    )


def _call(
    op: str, variant: str, resolved: Callable[[str], tuple[Arithmetic, Algorithm]]
) -> Callable[..., Any]:
    """The callable, whose signature lists what the model takes."""
    if op in FAMILIES:
        return step_call(op, resolved)
    if op == "selective_scan":
        return _selective_scan(resolved)
    if variant in LOG_FORMS:
        return _linear_scan_of_logs(resolved)
    return _linear_scan(resolved)


def _linear_scan(resolved: Any) -> Callable[..., Any]:
    def linear_scan(
        *,
        a: "torch.Tensor | None" = None,
        g: "torch.Tensor | None" = None,
        b: "torch.Tensor",
        initial_state: "torch.Tensor | None" = None,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        from scancheck.kernels.models.linear_scan import linear_scan

        return linear_scan(resolved, a, g, b, initial_state)

    return linear_scan


def _linear_scan_of_logs(resolved: Any) -> Callable[..., Any]:
    def linear_scan(
        *,
        g: "torch.Tensor",
        b: "torch.Tensor",
        initial_state: "torch.Tensor | None" = None,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        from scancheck.kernels.models.linear_scan import linear_scan

        return linear_scan(resolved, None, g, b, initial_state)

    return linear_scan


def _selective_scan(resolved: Any) -> Callable[..., Any]:
    def selective_scan(
        *,
        u: "torch.Tensor",
        delta: "torch.Tensor",
        A: "torch.Tensor",
        B: "torch.Tensor",
        C: "torch.Tensor",
        D: "torch.Tensor | None" = None,
        z: "torch.Tensor | None" = None,
        delta_bias: "torch.Tensor | None" = None,
        initial_state: "torch.Tensor | None" = None,
        delta_softplus: bool = False,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        from scancheck.kernels.models.selective_scan import selective_scan

        return selective_scan(
            resolved,
            delta_softplus,
            (u, delta, A, B, C, D, z, delta_bias, initial_state),
        )

    return selective_scan
