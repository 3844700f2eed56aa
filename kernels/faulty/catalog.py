"""The planted bugs, and the fault-free control built from the same parts, as kernels.

A kernel's module, and torch with it, is imported when the kernel is first called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from scancheck.contract import parse_contract
from scancheck.kernel import Kernel

CHUNK = 64
FOLDER = "scancheck.kernels.faulty"
ALL_SHORT = ("fp32", "bf16", "fp16")
LINEAR = ("linear_scan",)
SELECTIVE = ("selective_scan",)
FP32 = ("fp32",)
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
    contract: str | None = None  # what it claims, where that is not the default
    layouts: tuple[str, ...] = ()  # further layouts that it takes


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
    PlantedBug(
        module="carry_not_decayed",
        ops=BOTH,
        symptom="carry_undecayed",
        hazard="The state entering a chunk enters the next one undecayed.",
    ),
    PlantedBug(
        module="carry_from_previous_chunk_only",
        ops=BOTH,
        symptom="carry_forgets",
        hazard="The carry is the last local state of the chunk before instead "
        "of its total: what is older than one chunk is forgotten.",
    ),
    PlantedBug(
        module="chunks_start_from_zero",
        ops=BOTH,
        symptom="carry_dropped",
        hazard="Every chunk is scanned on its own, and no state is carried.",
    ),
    PlantedBug(
        module="first_token_of_chunk_undecayed",
        ops=BOTH,
        symptom="edge_decay",
        hazard="The first token of every chunk does not decay what came before it.",
    ),
    PlantedBug(
        module="exclusive_gate_in_chunk",
        ops=BOTH,
        symptom="gate_shift",
        hazard="Products of decays inside a chunk leave out the token's own decay.",
    ),
    PlantedBug(
        module="combine_operands_swapped",
        ops=BOTH,
        symptom="swapped_combine",
        hazard="The combine inside a chunk takes its two operands in the wrong order.",
    ),
    PlantedBug(
        module="final_state_misses_last_token",
        ops=BOTH,
        symptom="last_token",
        hazard="The final state is read before the last token is added.",
    ),
    PlantedBug(
        module="padded_rows_not_identity",
        ops=BOTH,
        symptom="padding",
        hazard="The last chunk is filled up with zeros before gates are "
        "computed, so that padded rows decay the state.",
    ),
    PlantedBug(
        module="tail_reads_next_row",
        ops=BOTH,
        symptom="row_overrun",
        hazard="The last chunk is read whole, past the end of its row into the "
        "next one.",
    ),
    PlantedBug(
        module="decay_of_first_row_for_all",
        ops=BOTH,
        symptom="batch_rows",
        hazard="Every batch row decays by the gates of the first.",
    ),
    PlantedBug(
        module="channel_groups_interleaved",
        ops=SELECTIVE,
        symptom="key_group",
        hazard="Channel d reads the keys of group d % G instead of d // (D / G).",
        layouts=("keys=grouped",),
    ),
    PlantedBug(
        module="initial_state_ignored_in_batch_of_one",
        ops=BOTH,
        symptom="initial_state",
        hazard="A short cut for a batch of one drops the initial state.",
    ),
    PlantedBug(
        module="output_tail_unwritten",
        ops=BOTH,
        symptom="unwritten",
        hazard="Outputs after the last full chunk are never written.",
    ),
    PlantedBug(
        module="output_overwrites_input",
        ops=BOTH,
        symptom="input_changed",
        hazard="The output is also written over an input of its size.",
    ),
    PlantedBug(
        module="order_of_carries_varies",
        ops=BOTH,
        symptom="nondeterministic",
        hazard="Carries are combined in another order in every second call.",
    ),
    PlantedBug(
        module="decay_in_bf16",
        ops=BOTH,
        symptom="short_decay",
        hazard="The decay of each token is rounded to bf16, against a claim of fp32.",
        dtypes=FP32,
    ),
    PlantedBug(
        module="cumulative_gate_in_bf16",
        ops=SELECTIVE,
        symptom="short_gate_sum",
        hazard="Sums of log decays inside a chunk are kept in bf16, against a "
        "claim of fp32.",
    ),
    PlantedBug(
        module="tf32_operands_claim_fp32",
        ops=LINEAR,
        symptom="short_compute",
        hazard="Decay and state are cut to TF32 before they are multiplied, "
        "against a claim of fp32.",
        dtypes=FP32,
        chunk=None,
    ),
    PlantedBug(
        module="state_in_bf16_at_chunk_edges",
        ops=BOTH,
        symptom="short_state",
        hazard="The state carried over a chunk edge is stored in bf16, against "
        "a claim of fp32.",
    ),
    PlantedBug(
        module="output_through_bf16",
        ops=BOTH,
        symptom="short_output",
        hazard="The sequence output goes through bf16, against a claim of fp32.",
        dtypes=FP32,
    ),
    PlantedBug(
        module="delta_bias_in_bf16",
        ops=SELECTIVE,
        symptom="short_input",
        hazard="delta_bias is cast to bf16 before it is added.",
    ),
    PlantedBug(
        module="compensation_not_decayed",
        ops=LINEAR,
        symptom="compensation",
        hazard="What roundings lost is added up without the decay of the "
        "state, against a claim of full compensation.",
        dtypes=FP32,
        chunk=None,
        contract="comp=full,structure=sequential",
    ),
    PlantedBug(
        module="compensation_of_addition_only",
        ops=LINEAR,
        symptom="compensation",
        hazard="Only additions are compensated, against a claim of full compensation.",
        dtypes=FP32,
        chunk=None,
        contract="comp=full,structure=sequential",
    ),
    PlantedBug(
        module="inverse_of_running_product",
        ops=BOTH,
        symptom="inverse_decay",
        hazard="The past is divided out by the running product of decays, "
        "which underflows.",
    ),
    PlantedBug(
        module="mask_after_exponential",
        ops=SELECTIVE,
        symptom="masked_overflow",
        hazard="exp of all differences of log decays is taken before the mask, "
        "so that 0 meets infinity.",
        contract="log=diff,structure=chunk(64,sequential,sequential)",
    ),
    PlantedBug(
        module="softplus_without_threshold",
        ops=SELECTIVE,
        symptom="softplus_overflow",
        hazard="softplus is log1p(exp(x)) for any x, and exp overflows.",
    ),
    PlantedBug(
        module="softplus_as_log_of_sum",
        ops=SELECTIVE,
        symptom="softplus_sum",
        hazard="softplus is log(1 + exp(x)), which rounds to 0 far below zero.",
    ),
    PlantedBug(
        module="state_clamped_at_chunk_edges",
        ops=BOTH,
        symptom="state_clamped",
        hazard="The state carried over a chunk edge is held within -1 and 1.",
    ),
    PlantedBug(
        module="A_quantised_to_8_bits",
        ops=SELECTIVE,
        symptom="quantised_weights",
        hazard="A is quantised to 8 bits, one scale for the whole matrix.",
    ),
    PlantedBug(
        module="A_quantised_to_4_bits",
        ops=SELECTIVE,
        symptom="quantised_weights",
        hazard="A is quantised to 4 bits, one scale for the whole matrix.",
    ),
    PlantedBug(
        module="A_replaced_by_negative_magnitude",
        ops=SELECTIVE,
        symptom="weight_sign",
        hazard="A is taken as -|A|, as if no rate could be positive.",
    ),
    PlantedBug(
        module="decay_held_below_one",
        ops=LINEAR,
        symptom="decay_clamped",
        hazard="Decays are clamped to 1, as if no gate could amplify.",
    ),
    PlantedBug(
        module="decay_sign_lost",
        ops=LINEAR,
        symptom="decay_sign",
        hazard="The decay is taken as exp(log |a|), which loses its sign.",
    ),
    PlantedBug(
        module="skip_gradient_missing",
        ops=SELECTIVE,
        symptom="gradient_missing",
        hazard="No gradient reaches D.",
    ),
    PlantedBug(
        module="step_gradient_misses_drive",
        ops=SELECTIVE,
        symptom="step_gradient",
        hazard="The gradient of delta has no part through the drive.",
    ),
    PlantedBug(
        module="silu_gradient_is_sigmoid",
        ops=SELECTIVE,
        symptom="silu_gradient",
        hazard="The slope of silu is taken as sigmoid(z), a product rule forgotten.",
    ),
    PlantedBug(
        module="initial_state_gradient_dropped",
        ops=BOTH,
        symptom="initial_state_gradient",
        hazard="No gradient reaches the initial state.",
    ),
    PlantedBug(
        module="A_gradient_of_first_row",
        ops=SELECTIVE,
        symptom="gradient_row",
        hazard="The gradient of A is written by one batch row, not summed over them.",
    ),
    PlantedBug(
        module="gate_gradient_zero_where_clamped",
        ops=LINEAR,
        symptom="gradient_clamped",
        hazard="The gradient of a gate passes a clamp that the forward pass lacks.",
    ),
    PlantedBug(
        module="overflow_behind_mask_in_backward",
        ops=SELECTIVE,
        symptom="gradient_overflow",
        hazard="A mask hides an overflow of exp from the outputs, but not from the "
        "gradients, which become NaN.",
        contract="log=diff,structure=chunk(64,sequential,sequential)",
    ),
    PlantedBug(
        module="gradient_sums_in_bf16",
        ops=SELECTIVE,
        symptom="short_gradient",
        hazard="Gradients that sum over tokens and batch rows are summed in bf16.",
    ),
    PlantedBug(
        module="adjoint_in_bf16",
        ops=LINEAR,
        symptom="short_gradient",
        hazard="The adjoint state is kept in bf16 on its way back.",
        dtypes=FP32,
    ),
    PlantedBug(
        module="gate_gradient_total_minus_prefix",
        ops=LINEAR,
        symptom="gradient_cancelled",
        hazard="The gate gradient's reverse sum is formed as total minus prefix.",
        dtypes=FP32,
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
            contract=None if bug.contract is None else parse_contract(bug.contract),
            layouts=bug.layouts,
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
    given = {"a": a, "b": b, "initial_state": initial_state}
    return _calling_form().linear_scan(_form(module), _present(given))


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
    given = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z}
    given |= {"delta_bias": delta_bias, "initial_state": initial_state}
    return _calling_form().selective_scan(
        _form(module), _present(given), delta_softplus=delta_softplus
    )


def _calling_form() -> Any:
    return import_module(f"{FOLDER}.calling_form")


def _form(module: str) -> Any:
    """The module's own FORM, or the right one around its scan."""
    planted = import_module(f"{FOLDER}.{module}")
    if hasattr(planted, "FORM"):
        return planted.FORM
    return _calling_form().Form(scan=planted.scan)


def _present(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in given.items() if tensor is not None}


CALLS: dict[str, Callable[..., Any]] = {
    "linear_scan": _linear_scan,
    "selective_scan": _selective_scan,
}
