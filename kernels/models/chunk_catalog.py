"""The models in chunks of matrix products, each with the contract of what it computes.

`chunk_model` makes any of them; `chunk_models` are those registered by name.
"""

from functools import partial

from scancheck.contract import (
    CHOICES,
    CONTRACT_FORMATS,
    Contract,
    ErrorModel,
    Structure,
    resolve,
)
from scancheck.errors import CaseInvalid
from scancheck.formats import Format, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.models.arithmetic import Arithmetic
from scancheck.kernels.models.chunk_frame import ChunkForm
from scancheck.kernels.models.declared import ROUNDED_ONCE, dtypes_held
from scancheck.kernels.models.step_calls import FAMILIES, step_call

# Of each op, what decays: none, one number per head, or one per key.
GATES = {
    "linear_attention": "none",
    "simple_gla": "head",
    "retention": "head",
    "lightning_attention": "head",
    "ssd": "head",
    "gla": "key",
    "rwkv6": "key",
    "delta_rule": "none",
    "gated_delta_rule": "head",
    "kda": "key",
    "rwkv7": "key",
}
# Of each kind of gate, the variants, and how each forms decays inside a chunk.
VARIANTS = {
    "none": {"plain": "products"},
    "head": {
        "plain": "products",
        "log_diff": "diff",
        "log_segsum": "segsum",
        "log_factored": "factored",
    },
    "key": {"log_diff": "diff", "log_factored": "factored"},
}
RANK_ONE = ("delta_rule", "gated_delta_rule", "kda", "rwkv7")
CONSTANT_GATES = ("retention", "lightning_attention")
# Chunk forms take no gates of values.
WITHOUT = {"gla": ("gv",)}
# Two exponentials and their product, in place of one exponential.
_OF_TWO_FACTORS = ErrorModel(e0=2 * Arithmetic.FUNCTION_ERROR + 1.01)


def chunk_models() -> tuple[Kernel, ...]:
    """Every chunk model that is registered by name."""
    kernels = [
        chunk_model("linear_attention", "plain"),
        chunk_model("retention", "plain"),
        chunk_model("retention", "log_diff"),
        chunk_model("lightning_attention", "log_diff"),
    ]
    for op in ("simple_gla", "ssd"):
        kernels += [chunk_model(op, variant) for variant in VARIANTS["head"]]
        kernels += [
            chunk_model(op, "log_diff", operands="storage"),
            chunk_model(op, "log_diff", operands="tf32", accumulate="truncate"),
            chunk_model(op, "log_diff", operands="storage", state="bf16"),
        ]
    for op in ("gla", "rwkv6"):
        kernels += [
            chunk_model(op, "log_diff"),
            chunk_model(op, "log_diff", block=16),
            chunk_model(op, "log_factored"),
            chunk_model(op, "log_diff", block=16, operands="storage"),
        ]
    for op in RANK_ONE:
        variant = "plain" if GATES[op] == "none" else "log_diff"
        kernels += [
            *(chunk_model(op, variant, inverse=way) for way in CHOICES["inverse"]),
            chunk_model(op, variant, inverse="block", operands="storage"),
        ]
    kernels.append(chunk_model("kda", "log_diff", block=16))
    return tuple(kernels)


def chunk_model(
    op: str,
    variant: str,
    *,
    chunk: int = 64,
    block: int | None = None,
    inverse: str = "substitution",
    operands: str = "compute",
    accumulate: str = "nearest",
    state: str = "compute",
) -> Kernel:
    """The model of one op in chunks of `chunk` tokens.

    `variant` says how decays are formed: by products (plain) or in a log form. With a
    `block`, chunks have two levels of log differences. `inverse` counts for rank-one
    transitions. Operands of matrix products are rounded to `operands`, their sums to
    nearest or truncated, the state carried from chunk to chunk to `state`. Computed in
    fp32, fp64 cases in fp64. Raises CaseInvalid for an unknown name or a combination
    that does not exist.
    """
    _check(op, variant, chunk, block, inverse, operands, accumulate, state)
    log = variant.removeprefix("log_") if variant != "plain" else "none"
    gated = GATES[op] != "none" and op not in CONSTANT_GATES
    contract = Contract(
        state=state,
        state_every=chunk if state != "compute" else 1,
        structure=Structure(kind="chunk", chunk=chunk),
        fma="no",
        log=log,
        gate_gradient="reverse_cumsum" if gated and log != "none" else "direct",
        exp=ROUNDED_ONCE if block is None else _OF_TWO_FACTORS,
        ln=ROUNDED_ONCE,
        softplus=ROUNDED_ONCE,
        silu=ROUNDED_ONCE,
        ftz="no",
        operands=operands,
        accumulate=accumulate,
        inverse=inverse,
        range="products" if log == "none" else "log",
    )
    without = WITHOUT.get(op, ())
    resolved = partial(_resolved, GATES[op], variant, block, contract)
    dtypes = dtypes_held(contract.compute, operands)
    # Budgets of rank-one chunks do not reach down to the subnormals of fp64.
    if operands != "compute" or op in RANK_ONE:
        dtypes = tuple(name for name in dtypes if name != "fp64")
    return Kernel(
        name=_name(op, variant, block, contract),
        op=op,
        call=step_call(op, resolved, without),
        contract=contract,
        dtypes=dtypes,
        chunk=chunk,
        gradients=True,
        edge_sizes=True,
        devices=("cpu",),
    )


def _check(
    op: str,
    variant: str,
    chunk: int,
    block: int | None,
    inverse: str,
    operands: str,
    accumulate: str,
    state: str,
) -> None:
    formats = tuple(sorted(CONTRACT_FORMATS))
    for what, known, got in (
        ("op", tuple(FAMILIES), op),
        ("variant", tuple(VARIANTS[GATES.get(op, "none")]), variant),
        ("inverse", CHOICES["inverse"], inverse),
        ("operands", ("compute", "storage", *formats), operands),
        ("accumulate", CHOICES["accumulate"], accumulate),
        ("state", ("compute", "storage", *formats), state),
    ):
        if got not in known:
            raise CaseInvalid(
                f"chunk_model {what} of {op}: expected one of {', '.join(known)}; "
                f"got {got!r}"
            )
    if chunk < 1:
        raise CaseInvalid(f"chunk_model chunk: expected at least 1; got {chunk}")
    if inverse != "substitution" and op not in RANK_ONE:
        raise CaseInvalid(
            f"chunk_model inverse: {op} inverts nothing; got inverse={inverse!r}"
        )
    if block is None:
        return
    if GATES[op] != "key" or variant != "log_diff":
        raise CaseInvalid(
            "chunk_model block: expected log_diff of an op with a gate per key; "
            f"got block={block} for {op} and {variant!r}"
        )
    if not 1 <= block < chunk:
        raise CaseInvalid(
            f"chunk_model block: expected 1 to {chunk - 1} tokens in a chunk of "
            f"{chunk}; got {block}"
        )


def _name(op: str, variant: str, block: int | None, contract: Contract) -> str:
    blocks = "" if block is None else f"_blocks{block}"
    parts = ["model", op, f"chunk{contract.structure.chunk}{blocks}", variant]
    default = Contract()
    for field in ("inverse", "operands", "accumulate", "state"):
        value = getattr(contract, field)
        if value != getattr(default, field):
            parts.append(f"{field}_{value}")
    return ".".join(parts)


def _resolved(
    gates: str, variant: str, block: int | None, contract: Contract, dtype: str
) -> tuple[Arithmetic, ChunkForm]:
    """What a call on tensors of `dtype` runs."""
    resolved = resolve(contract, dtype)
    assert contract.structure.chunk is not None
    return Arithmetic(format_named(resolved.compute)), ChunkForm(
        chunk=contract.structure.chunk,
        gates=gates,
        decays=VARIANTS[gates][variant],
        block=block,
        inverse=contract.inverse,
        operands=_short(contract.operands, resolved.operands),
        truncate=contract.accumulate == "truncate",
        state=_short(contract.state, resolved.state),
    )


def _short(declared: str, resolved: str) -> Format | None:
    return None if declared == "compute" else CONTRACT_FORMATS[resolved]
