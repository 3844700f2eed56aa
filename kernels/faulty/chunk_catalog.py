"""The planted bugs of ops with heads in chunks, and the control of the same parts.

A kernel's module, and torch with it, is imported when the kernel is first called.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scancheck.contract import Contract, parse_contract
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import ALL_SHORT, FOLDER, PlantedBug
from scancheck.kernels.models.step_calls import signature_of

CHUNK = 16
ERASING = ("delta_rule", "gated_delta_rule", "kda")
ATTENTION = ("simple_gla", *ERASING)
CHUNK_OPS = (*ATTENTION, "rwkv6")
LOOP = "chunk_form_torch"

CHUNK_BUGS = (
    PlantedBug(
        module="upper_triangle_not_masked",
        ops=("simple_gla", "gated_delta_rule"),
        symptom="masked_overflow",
        hazard="exp of all differences of log decays is taken before the upper "
        "triangle is masked, so that 0 meets infinity.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="inverse_cut_short",
        ops=ERASING,
        symptom="inverse_cut",
        hazard="Neumann's product for the inverse of a chunk ends after two doublings.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="inclusive_gate_for_exclusive",
        ops=("rwkv6",),
        symptom="carried_read",
        hazard="The carried state is read with the token's own decay already in it.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="carried_state_decayed_twice",
        ops=("simple_gla", "gated_delta_rule", "kda"),
        symptom="carried_read",
        hazard="The carried state is decayed once more at a chunk's start before it "
        "is read.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="state_of_last_chunk_only",
        ops=ATTENTION,
        symptom="carry_forgets",
        hazard="A chunk starts from what the chunk before it made of a zero state.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="no_state_between_chunks",
        ops=ATTENTION,
        symptom="carry_dropped",
        hazard="Every chunk after the first starts from a zero state.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="heads_taken_for_tokens",
        ops=ATTENTION,
        symptom="axes_swapped",
        hazard="Tensors with as many tokens as heads are taken to have heads first.",
        chunk=CHUNK,
    ),
)


def chunk_faulty() -> tuple[Kernel, ...]:
    """One kernel per bug and op: faulty.gated_delta_rule.<hazard>."""
    return tuple(
        Kernel(
            name=f"faulty.{op}.{bug.module}",
            op=op,
            call=_call(op, bug.module),
            contract=contract_of(op),
            dtypes=bug.dtypes,
            chunk=bug.chunk,
            gradients=True,
            hazard=bug.hazard,
            symptom=bug.symptom,
        )
        for bug in CHUNK_BUGS
        for op in bug.ops
    )


def chunk_controls() -> tuple[Kernel, ...]:
    """The fault-free chunks of each op: control.simple_gla.chunk_form_torch."""
    return tuple(
        Kernel(
            name=f"control.{op}.{LOOP}",
            op=op,
            call=_call(op, LOOP),
            contract=contract_of(op),
            # Budgets of chunks that erase do not reach down to fp64's subnormals.
            dtypes=ALL_SHORT if op in ERASING else (*ALL_SHORT, "fp64"),
            chunk=CHUNK,
            gradients=True,
            edge_sizes=True,
        )
        for op in CHUNK_OPS
    )


def contract_of(op: str) -> Contract:
    """Chunks with decays by differences of sums of logs, where there are gates."""
    if op == "delta_rule":
        return parse_contract(f"structure=chunk({CHUNK})")
    return parse_contract(
        f"structure=chunk({CHUNK}),log=diff,gate_gradient=reverse_cumsum"
    )


def _call(op: str, module: str) -> Callable[..., Any]:
    """The module's FORM in the calling form of `op`."""
    signature = signature_of(op)

    def call(**arguments: Any) -> Any:
        given = signature.bind(**arguments).arguments
        present = {name: x for name, x in given.items() if x is not None}
        chunks = import_module(f"{FOLDER}.{LOOP}")
        return chunks.attention(import_module(f"{FOLDER}.{module}").FORM, present)

    call.__name__ = call.__qualname__ = op
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
