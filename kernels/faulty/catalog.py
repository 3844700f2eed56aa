"""The planted bugs, and the fault-free control built from the same parts, as kernels.

A kernel's module, and torch with it, is imported when the kernel is first called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from scancheck.kernel import Kernel

CHUNK = 64
FOLDER = "scancheck.kernels.faulty"
ALL_SHORT = ("fp32", "bf16", "fp16")
LINEAR = ("linear_scan",)
BOTH = ("linear_scan", "selective_scan")
LAYOUTS = {"linear_scan": (), "selective_scan": ("keys=grouped", "keys=constant")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """One module of this folder, and what a judge has to say about it."""

    module: str  # its file, named by the hazard
    ops: tuple[str, ...]  # ops it is planted in
    symptom: str  # the cause it must be diagnosed with
    hazard: str  # what is wrong with it, in one sentence
    dtypes: tuple[str, ...] = ALL_SHORT  # formats in which it stands out of rounding
    chunk: int | None = CHUNK  # None: it has no chunks


BUGS = (
    PlantedBug(
        module="carry_uses_own_total",
        ops=BOTH,
        symptom="carry_total",
        hazard="The state entering a chunk is made from that chunk's own total "
        "instead of the total of the chunk before.",
    ),
    PlantedBug(
        module="carry_shifted_by_one_chunk",
        ops=LINEAR,
        symptom="carry_index",
        hazard="Each chunk is given the state that entered the chunk before it.",
    ),
    PlantedBug(
        module="initial_state_ignored_after_first_chunk",
        ops=BOTH,
        symptom="initial_state",
        hazard="The initial state enters the first chunk, but is not carried beyond.",
    ),
    PlantedBug(
        module="last_partial_chunk_dropped",
        ops=BOTH,
        symptom="partial_chunk",
        hazard="Outputs after the last full chunk stay zero.",
    ),
    PlantedBug(
        module="hillis_steele_in_place",
        ops=LINEAR,
        symptom="in_place_scan",
        hazard="The tree inside a chunk has no second buffer, so the second warp "
        "reads tokens that the first has already combined.",
    ),
    PlantedBug(
        module="state_in_fp16_claims_fp32",
        ops=LINEAR,
        symptom="short_state",
        hazard="The state is stored in fp16 after every token, against a claim of "
        "fp32.",
        dtypes=("fp32",),
        chunk=None,
    ),
    PlantedBug(
        module="one_stale_element",
        ops=LINEAR,
        symptom="local_element",
        hazard="One output element, in the middle of one lane, keeps the value of "
        "the token before.",
        dtypes=("fp32",),
    ),
    PlantedBug(
        module="carried_decay_off_by_one_percent",
        ops=BOTH,
        symptom="carry_decay",
        hazard="What is carried over a chunk decays by one per cent too much.",
        dtypes=("fp32",),
    ),
    PlantedBug(
        module="missing_barrier",
        ops=LINEAR,
        symptom="nondeterministic",
        hazard="In every third call the last chunk reads its carry too early.",
    ),
    PlantedBug(
        module="combine_gate_gradient_wrong",
        ops=LINEAR,
        symptom="gate_gradient",
        hazard="The backward of the pairwise combine leaves out what the decay does "
        "to the state, from two tokens on.",
        chunk=None,
    ),
    PlantedBug(
        module="final_state_gradient_dropped",
        ops=BOTH,
        symptom="state_gradient_dropped",
        hazard="The final state is handed out without its gradient.",
    ),
)


def faulty() -> tuple[Kernel, ...]:
    """The planted bugs, one kernel per bug and op: faulty.linear_scan.<hazard>."""
    return tuple(
        Kernel(
            name=f"faulty.{op}.{bug.module}",
            op=op,
            call=partial(CALLS[op], bug.module),
            dtypes=bug.dtypes,
            chunk=bug.chunk,
            gradients=True,
            hazard=bug.hazard,
            symptom=bug.symptom,
        )
        for bug in BUGS
        for op in bug.ops
    )


def controls() -> tuple[Kernel, ...]:
    """The fault-free scan in each op: control.linear_scan.chunked_reference."""
    return tuple(
        Kernel(
            name=f"control.{op}.chunked_reference",
            op=op,
            call=partial(CALLS[op], "chunked_torch"),
            dtypes=(*ALL_SHORT, "fp64"),
            chunk=CHUNK,
            gradients=True,
            layouts=LAYOUTS[op],
            edge_sizes=True,
        )
        for op in BOTH
    )


# The op's parameters stand in the signatures, since a signature says what is supported.
def _linear_scan(module: str, *, a: Any, b: Any, initial_state: Any = None) -> Any:
    scan = import_module(f"{FOLDER}.{module}").scan
    linear_scan = import_module(f"{FOLDER}.calling_form").linear_scan
    return linear_scan(scan, a=a, b=b, initial_state=initial_state)


def _selective_scan(
    module: str,
    *,
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    initial_state: Any = None,
    delta_softplus: bool = False,
) -> Any:
    scan = import_module(f"{FOLDER}.{module}").scan
    selective_scan = import_module(f"{FOLDER}.calling_form").selective_scan
    return selective_scan(
        scan,
        u=u,
        delta=delta,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        initial_state=initial_state,
        delta_softplus=delta_softplus,
    )


CALLS: dict[str, Callable[..., Any]] = {
    "linear_scan": _linear_scan,
    "selective_scan": _selective_scan,
}
