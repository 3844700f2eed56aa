"""The CPU models as kernels, each with the contract of what it computes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, ErrorModel, Structure, resolve
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.models.algorithm import Algorithm
from scancheck.kernels.models.arithmetic import HAS_EXTENDED_PRECISION, Arithmetic

if TYPE_CHECKING:
    import torch

OPS = ("linear_scan", "selective_scan")
LAYOUTS = {"linear_scan": (), "selective_scan": ("keys=grouped", "keys=constant")}
ALGORITHMS = ("sequential", "hillis_steele", "chunk", "chunk_tree")
VARIANTS = ("plain", "kahan", "full", "log_diff")

_ROUNDED_ONCE = ErrorModel(e0=Arithmetic.FUNCTION_ERROR)
_DOUBLE_WORD = ErrorModel(e0=2.0**-7)
"""exp kept as two words: the rest's own rounding, u**2 <= u 2**-8 for bf16, and the
evaluation's error, at most 0.005 u, in a format of at least fp16's precision."""


def models() -> tuple[Kernel, ...]:
    """Every model that is registered by name."""
    kernels = []
    for op in OPS:
        for algorithm in ALGORITHMS:
            for variant in ("plain", "kahan", "full"):
                kernels.append(model(op, algorithm, variant))
        kernels += [
            model(op, "chunk", "log_diff"),
            model(op, "chunk_tree", "log_diff"),
            model(op, "sequential", "plain", compute="storage"),
            model(op, "hillis_steele", "plain", compute="storage"),
            model(op, "chunk", "plain", compute="storage"),
            # In chunks of 64, bounds of compensated bf16 arithmetic exceed the carry.
            model(op, "chunk", "full", chunk=8, compute="storage"),
            model(op, "sequential", "plain", state="bf16"),
            model(op, "chunk", "plain", state="bf16"),
        ]
    return tuple(kernels)


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

    `chunk` counts for the algorithms chunk and chunk_tree, which round the carried
    state to `state` at chunk edges; sequential does it every `state_every` steps.
    `compute` and `state` are format names or "storage"; fp64 cases are computed in
    fp64 where `compute` is fp32. Raises CaseInvalid for an unknown name or a
    combination that does not exist.
    """
    _check(op, algorithm, variant, chunk, compute, state)
    chunked = algorithm.startswith("chunk")
    if chunked and state is not None:
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
        log="diff" if variant == "log_diff" else "none",
        comp=variant if variant in ("kahan", "full") else "none",
        exp=_DOUBLE_WORD if variant == "full" else _ROUNDED_ONCE,
        softplus=_ROUNDED_ONCE,
        silu=_ROUNDED_ONCE,
        ftz="no",
        range=_range(algorithm, variant),
    )
    return Kernel(
        name=_name(op, algorithm, variant, contract),
        op=op,
        call=_call(op, variant, partial(_resolved, algorithm, variant, contract)),
        contract=contract,
        dtypes=_dtypes(compute),
        chunk=contract.structure.chunk,
        gradients=True,
        layouts=LAYOUTS[op],
        edge_sizes=True,
    )


def _check(
    op: str, algorithm: str, variant: str, chunk: int, compute: str, state: str | None
) -> None:
    for what, known, got in (
        ("op", OPS, op),
        ("algorithm", ALGORITHMS, algorithm),
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
    if variant == "log_diff" and not algorithm.startswith("chunk"):
        raise CaseInvalid(
            f"model: log_diff is computed in chunks; got algorithm {algorithm!r}"
        )
    if algorithm == "hillis_steele" and state is not None:
        raise CaseInvalid(f"model: hillis_steele carries no state; got state={state!r}")


def _structure(algorithm: str, chunk: int) -> Structure:
    match algorithm:
        case "sequential":
            return Structure(kind="sequential")
        case "hillis_steele":
            return Structure(kind="tree", order="hillis_steele")
        case "chunk_tree":
            return Structure(
                kind="chunk", chunk=chunk, inner="tree", order="hillis_steele"
            )
        case _:
            return Structure(kind="chunk", chunk=chunk, order="stepwise")


def _range(algorithm: str, variant: str) -> str:
    if variant == "log_diff":
        return "log"
    return "sequential" if algorithm == "sequential" else "products"


def _name(op: str, algorithm: str, variant: str, contract: Contract) -> str:
    shape = algorithm
    if contract.structure.chunk is not None:
        shape = algorithm.replace("chunk", f"chunk{contract.structure.chunk}")
    parts = ["model", op, shape, variant]
    if contract.compute != Contract().compute:
        parts.append(f"compute_{contract.compute}")
    if contract.state != Contract().state:
        parts.append(f"state_{contract.state}")
        if algorithm == "sequential" and contract.state_every > 1:
            parts.append(f"every_{contract.state_every}")
    return ".".join(parts)


def _dtypes(compute: str) -> tuple[str, ...]:
    """The storage formats whose every value is one of the compute format."""
    match compute:
        case "bf16" | "fp16":
            return (compute,)
        case _:
            fp64 = ("fp64",) if HAS_EXTENDED_PRECISION else ()
            return ("fp32", "fp16", "bf16", *fp64)


def _resolved(
    algorithm: str, variant: str, contract: Contract, dtype: str
) -> tuple[Arithmetic, Algorithm]:
    """What a call on tensors of `dtype` runs."""
    resolved = resolve(contract, dtype)
    return Arithmetic(format_named(resolved.compute)), Algorithm(
        name="chunk" if contract.structure.kind == "chunk" else algorithm,
        variant=variant,
        chunk=contract.structure.chunk,
        inner=contract.structure.inner,
        state=None if contract.state == "compute" else format_named(resolved.state),
        state_every=contract.state_every,
    )


def _call(
    op: str, variant: str, resolved: Callable[[str], tuple[Arithmetic, Algorithm]]
) -> Callable[..., Any]:
    """The callable, whose signature lists what the model takes."""
    if op == "selective_scan":
        return _selective_scan(resolved)
    if variant == "log_diff":
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
