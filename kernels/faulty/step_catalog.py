"""The planted bugs of ops with heads, and the control of the same parts, as kernels.

A kernel's module, and torch with it, is imported when the kernel is first called.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scancheck.contract import parse_contract
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import ALL_SHORT, FOLDER, PlantedBug
from scancheck.kernels.models.step_calls import signature_of

ERASING = ("delta_rule", "gated_delta_rule", "kda")
CONTRACT = parse_contract("structure=sequential")
STEP_OPS = ("linear_attention", "simple_gla", *ERASING)

STEP_BUGS = (
    PlantedBug(
        module="key_heads_interleaved",
        ops=STEP_OPS,
        symptom="key_group",
        hazard="Value head j reads the keys of head j % H instead of j // (HV / H).",
        chunk=None,
    ),
    PlantedBug(
        module="erased_from_undecayed_state",
        ops=("gated_delta_rule", "kda"),
        symptom="erased_undecayed",
        hazard="The error that the delta rule writes is taken against the state "
        "before its decay.",
        chunk=None,
    ),
    PlantedBug(
        module="gate_on_update_only",
        ops=("simple_gla", "gated_delta_rule", "kda"),
        symptom="state_undecayed",
        hazard="The gate multiplies what a token erases and writes, but not the state.",
        chunk=None,
    ),
    PlantedBug(
        module="read_before_update",
        ops=STEP_OPS,
        symptom="read_before_update",
        hazard="Each token reads the state before its own update.",
        chunk=None,
    ),
    PlantedBug(
        module="final_state_transposed",
        ops=STEP_OPS,
        symptom="state_transposed",
        hazard="A square final state is handed out transposed.",
        chunk=None,
    ),
    PlantedBug(
        module="seen_after_decay",
        ops=("rwkv7",),
        symptom="seen_after_decay",
        hazard="What a rank-one transition reads is the state after its decay.",
        chunk=None,
    ),
    PlantedBug(
        module="bonus_dropped",
        ops=("rwkv6",),
        symptom="bonus_dropped",
        hazard="The bonus of the token itself is left out.",
        chunk=None,
    ),
)
RWKV_OPS = ("rwkv6", "rwkv7")


def step_faulty() -> tuple[Kernel, ...]:
    """One kernel per bug and op: faulty.gated_delta_rule.<hazard>."""
    return tuple(
        Kernel(
            name=f"faulty.{op}.{bug.module}",
            op=op,
            call=step_call(op, bug.module),
            contract=CONTRACT,
            dtypes=bug.dtypes,
            gradients=True,
            hazard=bug.hazard,
            symptom=bug.symptom,
        )
        for bug in STEP_BUGS
        for op in bug.ops
    )


def step_controls() -> tuple[Kernel, ...]:
    """The fault-free loop of each op: control.gated_delta_rule.step_form_torch."""
    return tuple(
        Kernel(
            name=f"control.{op}.{_loop_of(op)}",
            op=op,
            call=step_call(op, _loop_of(op)),
            contract=CONTRACT,
            dtypes=(*ALL_SHORT, "fp64"),
            gradients=True,
            edge_sizes=True,
        )
        for op in (*STEP_OPS, *RWKV_OPS)
    )


def _loop_of(op: str) -> str:
    """The module whose loop an op's bugs replace a part of."""
    return "rwkv_form_torch" if op in RWKV_OPS else "step_form_torch"


def step_call(op: str, module: str) -> Callable[..., Any]:
    """The module's FORM in the calling form of `op`."""
    signature = signature_of(op)

    def call(**arguments: Any) -> Any:
        given = signature.bind(**arguments).arguments
        present = {name: x for name, x in given.items() if x is not None}
        loops = import_module(f"{FOLDER}.{_loop_of(op)}")
        loop = getattr(loops, op if op in RWKV_OPS else "attention")
        return loop(import_module(f"{FOLDER}.{module}").FORM, present)

    call.__name__ = call.__qualname__ = op
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
