"""The planted bugs of calls of several sequences, and their control, as kernels.

A kernel's module, and torch with it, is imported when the kernel is first called.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import ALL_SHORT, FOLDER, PlantedBug
from scancheck.kernels.faulty.step_catalog import CONTRACT, step_call
from scancheck.kernels.models.by_sequence import with_call_arguments
from scancheck.kernels.models.step_calls import signature_of
from scancheck.ops import op_named

SEQUENCE_OPS = ("simple_gla", "gated_delta_rule")
CHUNK = 16
CONTROL = "sequences_torch"

SEQUENCE_BUGS = (
    PlantedBug(
        module="boundary_inside_chunk_ignored",
        ops=SEQUENCE_OPS,
        symptom="boundary_ignored",
        hazard="A packed sequence that begins inside a chunk goes on with the state of "
        "the sequence before it.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="boundaries_rounded_to_chunk",
        ops=SEQUENCE_OPS,
        symptom="boundary_moved",
        hazard="Packed sequences are cut at the edge of the chunk in which they begin.",
        chunk=CHUNK,
    ),
    PlantedBug(
        module="empty_sequence_in_slot_0",
        ops=SEQUENCE_OPS,
        symptom="sequence_slot",
        hazard="An empty sequence reads and writes the states of the first one.",
        chunk=None,
    ),
    PlantedBug(
        module="first_state_for_all_sequences",
        ops=SEQUENCE_OPS,
        symptom="sequence_state",
        hazard="All packed sequences start from the initial state of the first one.",
        chunk=None,
    ),
    PlantedBug(
        module="reverse_ignored",
        ops=SEQUENCE_OPS,
        symptom="reverse_ignored",
        hazard="A call in reverse runs from the first token to the last.",
        chunk=None,
    ),
    PlantedBug(
        module="padding_moves_state",
        ops=SEQUENCE_OPS,
        symptom="padding_counted",
        hazard="Padded places change the state as tokens do.",
        chunk=None,
    ),
    PlantedBug(
        module="state_reset_by_zero",
        ops=SEQUENCE_OPS,
        symptom="sequence_leak",
        hazard="A packed sequence resets the state by a product with 0.",
        chunk=None,
    ),
    PlantedBug(
        module="padding_multiplied_by_zero",
        ops=SEQUENCE_OPS,
        symptom="padding_leak",
        hazard="Padding is made the identity by products with 0.",
        chunk=None,
    ),
)


def sequence_faulty() -> tuple[Kernel, ...]:
    """One kernel per bug and op: faulty.gated_delta_rule.<hazard>."""
    return tuple(
        Kernel(
            name=f"faulty.{op}.{bug.module}",
            op=op,
            call=_call(op, bug.module, bug.chunk or CHUNK),
            contract=CONTRACT,
            dtypes=bug.dtypes,
            chunk=bug.chunk,
            gradients=True,
            hazard=bug.hazard,
            symptom=bug.symptom,
        )
        for bug in SEQUENCE_BUGS
        for op in bug.ops
    )


def sequence_controls() -> tuple[Kernel, ...]:
    """The fault-free parts with each op: control.gated_delta_rule.sequences_torch."""
    return tuple(
        Kernel(
            name=f"control.{op}.{CONTROL}",
            op=op,
            call=_call(op, CONTROL, CHUNK),
            contract=CONTRACT,
            dtypes=(*ALL_SHORT, "fp64"),
            gradients=True,
            edge_sizes=True,
        )
        for op in SEQUENCE_OPS
    )


def _call(op: str, module: str, chunk: int) -> Callable[..., Any]:
    """The module's FORM around the control of one sequence, as a kernel of `op`."""
    alone = step_call(op, "step_form_torch")
    signature = with_call_arguments(signature_of(op))

    def call(**arguments: Any) -> Any:
        bound = signature.bind(**arguments)
        bound.apply_defaults()
        given = {name: x for name, x in bound.arguments.items() if x is not None}
        how = {name: given.pop(name, None) for name in ("cu_seqlens", "attention_mask")}
        reverse = given.pop("reverse")
        if how == dict.fromkeys(how) and not reverse:
            return alone(**given)
        loop = import_module(f"{FOLDER}.{CONTROL}").called
        form = import_module(f"{FOLDER}.{module}").FORM
        return loop(form, op_named(op), alone, chunk, given, reverse=reverse, **how)

    call.__name__ = call.__qualname__ = op
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
