"""Faults planted in the sources of the CUDA kernels: replacements of text, by kind.

The kinds are those of the authors' symptom table. Each fault is compiled by
`planted`, judged by tests/gpu/test_planted_sources.py and, as a table, by
benchmarks/cuda_planted.py.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import catalog, compile

_LINEAR, _LINEAR_BACK = "linear_scan.cu", "linear_scan_backward.cu"
_SELECTIVE, _SELECTIVE_BACK = "selective_scan.cu", "selective_scan_backward.cu"
_PLAIN = "float, GivenDecay, PLAIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFault:
    """One fault: what is replaced where, and how it must be told."""

    name: str
    kernel: str  # registered name of the kernel that it is judged in
    kind: str  # of the symptom table
    symptom: str  # the cause it must be diagnosed with
    file: str  # in kernels/cuda/sources
    edits: tuple[tuple[str, str], ...]  # (text, its replacement); each text once
    instance: tuple[str, str]  # a source, and how an instance with the fault begins
    dtype: str = "fp32"  # storage in which it is judged
    on_other_cases: str | None = None  # the cause that some of its cases tell instead

    @property
    def symptoms(self) -> frozenset[str]:
        """Every cause that it may be diagnosed with."""
        return frozenset({self.symptom, self.on_other_cases or self.symptom})


def _between_tiles(carry: str) -> tuple[tuple[str, str], ...]:
    """What the order in time hands from tile to tile; the last state stays right."""
    return (
        ("float group) {", "float group, bool goes_on) {"),
        (
            "tile.lanes, tile.group);",
            "tile.lanes, tile.group, first_step + TILE < steps);",
        ),
        (
            "if (lane >= 32 - TIME_SIDE) *carry = end;",
            f"if (lane >= 32 - TIME_SIDE) *carry = goes_on ? {carry} : end;",
        ),
    )


FAULTS = (
    SourceFault(
        name="carry_not_decayed",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="carry not decayed",
        symptom="carry_undecayed",
        file=_LINEAR,
        edits=(
            (
                "State next, after = applied<VARIANT, true>(total, start);",
                "const Affine same = {1.0f, total.drive, 0.0f, total.drive_rest};\n"
                "State next, after = applied<VARIANT, true>(same, start);",
            ),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="carry_forgets",
        kernel="cuda.linear_scan.single_pass.kahan",
        kind="carry of the last local state only",
        symptom="carry_forgets",
        file=_LINEAR,
        edits=(
            (
                "State next, after = applied<VARIANT, true>(total, start);",
                "State next, after = {total.drive, total.drive_rest};",
            ),
        ),
        instance=(_LINEAR, "forward<CHAINED, float, GivenDecay, KAHAN"),
    ),
    SourceFault(
        name="carry_dropped",
        kernel="cuda.linear_scan.single_pass_warps.plain",
        kind="carry dropped",
        symptom="carry_dropped",
        file=_LINEAR,
        edits=(
            (
                "start = Carry<VARIANT>::await(workspace, turn, link, place, lanes);",
                "start = {0.0f, 0.0f};",
            ),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="carry_index_off_by_one",
        kernel="cuda.linear_scan.two_pass.plain",
        kind="carry of the wrong chunk",
        symptom="carry_index",
        file="carry.cuh",
        edits=(
            (
                "state = applied<VARIANT, true>(total, state);\n"
                "    put_edge<VARIANT>(edges, k * lanes + lane, state);",
                "put_edge<VARIANT>(edges, k * lanes + lane, state);\n"
                "    state = applied<VARIANT, true>(total, state);",
            ),
        ),
        instance=(_LINEAR, "carry_in_order<PLAIN"),
    ),
    SourceFault(
        name="carry_of_own_total",
        kernel="cuda.linear_scan.two_pass.plain",
        kind="carry of the wrong chunk",
        symptom="carry_total",
        file="carry.cuh",
        edits=(
            (
                "from_four(totals[(k - 1) * lanes + lane]);",
                "from_four(totals[(k < chunks - 1 ? k : k - 1) * lanes + lane]);",
            ),
        ),
        instance=(_LINEAR, "carry_in_order<PLAIN"),
    ),
    SourceFault(
        name="barrier_missing",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="missing barrier",
        symptom="nondeterministic",
        file=_LINEAR,
        edits=(
            (
                "  __syncthreads();\n\n  if constexpr (INNER == SHUFFLE) {",
                "  if constexpr (INNER == SHUFFLE) {",
            ),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="wait_missing",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="missing barrier",
        symptom="nondeterministic",
        file="chain.cuh",
        edits=(("while (!has_flag(flagged, flag));", "while (false);"),),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="initial_state_ignored",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="initial state ignored",
        symptom="initial_state",
        file=_LINEAR,
        edits=(("} else if (initial) {", "} else if (false) {"),),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="tail_reads_next_row",
        kernel="cuda.linear_scan.sequential.plain",
        kind="tail read past the end",
        symptom="unwritten",
        file="sequential.cuh",
        edits=(
            (
                "if (time + s < length) {\n        decays[which][s].load(",
                "if (true) {\n        decays[which][s].load(",
            ),
            (
                "if (time + s < length) {\n        float values[COUNT];",
                "if (true) {\n        float values[COUNT];",
            ),
            (
                "packed<T, COUNT>(values).store(h_next",
                "if (time + s < length) packed<T, COUNT>(values).store(h_next",
            ),
        ),
        instance=(_LINEAR, f"sequential<{_PLAIN}"),
    ),
    SourceFault(
        name="output_tail_unwritten",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="unwritten output tail",
        symptom="unwritten",
        file=_LINEAR,
        edits=(
            (
                "store_streaming(s < valid, h_row",
                "store_streaming(valid == STEPS, h_row",
            ),
            ("put_element(h_row + s * channels + i, rounded<VARIANT>(state));", ""),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="scan_operands_swapped",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="in-chunk combine",
        symptom="local",
        file="rows.cuh",
        edits=(
            (
                "combined<VARIANT, true>(before, map)",
                "combined<VARIANT, true>(map, before)",
            ),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="gate_gradient_without_carry",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="gradient term dropped",
        symptom="gate_gradient",
        file=_LINEAR_BACK,
        edits=(
            (
                "row > 0 ? applied<VARIANT, true>(forward_maps.get(row, c), state)",
                "row > 0 ? State{0.0f, 0.0f}",
            ),
        ),
        instance=(_LINEAR_BACK, f"single_pass_backward<{_PLAIN}"),
    ),
    SourceFault(
        name="final_state_gradient_dropped",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="final-state gradient dropped",
        symptom="state_gradient_dropped",
        file=_LINEAR_BACK,
        edits=(
            (
                "State start = {final_bar ? final_bar[place] : 0.0f, 0.0f};",
                "State start = {0.0f, 0.0f};",
            ),
        ),
        instance=(_LINEAR_BACK, f"single_pass_backward<{_PLAIN}"),
    ),
    SourceFault(
        name="initial_state_gradient_undecayed",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="gradient term dropped",
        symptom="initial_state_gradient",
        file=_LINEAR_BACK,
        edits=(
            ("__fmul_rn(decays.at(i), drive_bar[i]);", "drive_bar[i];"),
            ("__fmul_rn(decays[0], drive_bar);", "drive_bar;"),
        ),
        instance=(_LINEAR_BACK, f"single_pass_backward<{_PLAIN}"),
    ),
    SourceFault(
        name="drive_through_bf16",
        kernel="cuda.linear_scan.sequential.plain",
        kind="low precision",
        symptom="short_input",
        file="scan_block.cuh",
        edits=(
            (
                "return {Decay::held(gate), drive, 0.0f, 0.0f};",
                "return {Decay::held(gate),\n"
                "          __bfloat162float(__float2bfloat16_rn(drive)), 0.0f, 0.0f};",
            ),
        ),
        instance=(_LINEAR, f"sequential<{_PLAIN}"),
    ),
    SourceFault(
        name="carry_in_bf16",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="low precision",
        symptom="short_state",
        file=_LINEAR,
        edits=(
            (
                "hand_on(workspace, turn, link, place, lanes, after);",
                "hand_on(workspace, turn, link, place, lanes,\n"
                "  State{__bfloat162float(__float2bfloat16_rn(after.value)), "
                "after.rest});",
            ),
        ),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="exp_in_fp16",
        kernel="cuda.linear_scan.single_pass.fast",
        kind="low precision",
        symptom="short_decay",
        file="functions.cuh",
        edits=(
            (
                'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));',
                'asm("{.reg .b16 h;\\n\\tex2.approx.ftz.f32 %0, %1;\\n\\t"\n'
                '        "cvt.rn.f16.f32 h, %0;\\n\\tcvt.f32.f16 %0, h;}"\n'
                '        : "=f"(result) : "f"(x));',
            ),
        ),
        instance=(_LINEAR, "forward<CHAINED, float, ExpDecay<scancheck::Fast>"),
    ),
    SourceFault(
        name="exp_without_clamp",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="overflow",
        symptom="overflow",
        file="functions.cuh",
        edits=(
            (
                "const float y = max_or_nan(x, EXP_LOWEST);",
                "const float y = x;",
            ),
        ),
        instance=(_LINEAR, "forward<CHAINED, float, ExpDecay<scancheck::Reproducible>"),
    ),
    SourceFault(
        name="decays_of_first_batch_row",
        kernel="cuda.linear_scan.single_pass.plain",
        kind="wrong mapping",
        symptom="batch_rows",
        file=_LINEAR,
        edits=(("a + batch * a_batch + time * a_time", "a + time * a_time"),),
        instance=(_LINEAR, f"forward<CHAINED, {_PLAIN}"),
    ),
    SourceFault(
        name="carry_of_tile_dropped",
        kernel="cuda.selective_scan.time.reproducible",
        kind="carry dropped",
        symptom="carry_dropped",
        file="selective_scan_time.cuh",
        edits=_between_tiles("0.0f"),
        instance=(_SELECTIVE, "selective_scan_time<__nv_bfloat16, Plain<Reproducible>"),
        dtype="bf16",
    ),
    SourceFault(
        name="carry_of_tile_not_decayed",
        kernel="cuda.selective_scan.time.reproducible",
        kind="carry not decayed",
        symptom="carry_undecayed",
        file="selective_scan_time.cuh",
        edits=_between_tiles("__fadd_rn(__fmaf_rn(-whole, before, end), before)"),
        instance=(_SELECTIVE, "selective_scan_time<__nv_bfloat16, Plain<Reproducible>"),
        dtype="bf16",
    ),
    SourceFault(
        name="group_reads_one_too_early",
        kernel="cuda.selective_scan.time.tabulated",
        kind="carry of the wrong chunk",
        symptom="local",
        file="selective_scan_time.cuh",
        edits=(
            (
                "const float below = __shfl_up_sync(0xffffffffu, end, TIME_SIDE);",
                "const float below = __shfl_up_sync(0xffffffffu, end, 2 * TIME_SIDE);",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_time<float, Plain<Tabulated>"),
        on_other_cases="in_place_scan",
    ),
    SourceFault(
        name="padded_steps_not_identity",
        kernel="cuda.selective_scan.time.reproducible",
        kind="tail read past the end",
        symptom="padding",
        file="selective_scan_time.cuh",
        edits=(
            (
                "tile.d[k] = there ? (curved ? softplus : x) : 0.0f;",
                "tile.d[k] = curved ? softplus : x;",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_time<float, Plain<Reproducible>"),
    ),
    SourceFault(
        name="initial_state_ignored",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="initial state ignored",
        symptom="initial_state",
        file="selective_scan_rows.cuh",
        edits=(("if (there && a.initial_state != nullptr) {", "if (false) {"),),
        instance=(_SELECTIVE, "selective_scan_rows<float, Plain<Reproducible>"),
    ),
    SourceFault(
        name="output_tail_unwritten",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="unwritten output tail",
        symptom="unwritten",
        file="selective_scan_rows.cuh",
        edits=(
            (
                "store_rows(buffer ^ 1, 0, 4, steps",
                "if (steps % TILE == 0) store_rows(buffer ^ 1, 0, 4, steps",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_rows<float, Plain<Reproducible>"),
    ),
    SourceFault(
        name="group_of_B_ignored",
        kernel="cuda.selective_scan.sequential.accurate",
        kind="wrong group mapping of B and C",
        symptom="key_group",
        file="selective_scan_rows.cuh",
        edits=(
            (
                "place.group * a.B_group + key * a.B_state",
                "key * a.B_state",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_rows<float, Compensated"),
    ),
    SourceFault(
        name="softplus_without_threshold",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="overflow",
        symptom="softplus_overflow",
        file="functions.cuh",
        edits=(
            (
                "const float e = exp_below(-fabsf(x));\n"
                "    return __fadd_rn(max_or_nan(x, 0.0f), log1p_unit(e));",
                "return log1p(exp(x));",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_rows<float, Plain<Reproducible>"),
    ),
    SourceFault(
        name="delta_through_bf16",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="low precision",
        symptom="short_input",
        file="selective_scan_rows.cuh",
        edits=(
            (
                "const float x = __fadd_rn(deltas.at(k), bias);",
                "const float x = __fadd_rn(\n"
                "    __bfloat162float(__float2bfloat16_rn(deltas.at(k))), bias);",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_rows<float, Plain<Reproducible>"),
    ),
    SourceFault(
        name="exp_in_fp16",
        kernel="cuda.selective_scan.sequential.fast",
        kind="low precision",
        symptom="short_decay",
        file="functions.cuh",
        edits=(
            (
                "return exp2_(__fmaf_rn(x, y, EX2_SHIFT));",
                "float result = exp2_(__fmaf_rn(x, y, EX2_SHIFT));\n"
                '    asm("{.reg .b16 h;\\n\\tcvt.rn.f16.f32 h, %0;\\n\\t"\n'
                '        "cvt.f32.f16 %0, h;}" : "+f"(result));\n'
                "    return result;",
            ),
        ),
        instance=(_SELECTIVE, "selective_scan_rows<float, Plain<Fast>"),
    ),
    SourceFault(
        name="barrier_missing_in_backward",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="missing barrier",
        symptom="nondeterministic",
        file="selective_scan_backward_sums.cuh",
        edits=(
            (
                "turned[x][k] = sum;\n    }\n    __syncthreads();",
                "turned[x][k] = sum;\n    }",
            ),
        ),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_key_sum<float"),
    ),
    SourceFault(
        name="step_gradient_misses_drive",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="gradient term dropped",
        symptom="step_gradient",
        file="selective_scan_backward_steps.cuh",
        edits=(
            (
                "__fmaf_rn(sums.x, input, __fmul_rn(sums.y, scancheck::LN_2));",
                "__fmul_rn(sums.y, scancheck::LN_2);",
            ),
        ),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_steps<float, Reproducible"),
    ),
    SourceFault(
        name="silu_gradient_is_sigmoid",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="gradient term dropped",
        symptom="silu_gradient",
        file="selective_scan_backward_arguments.cuh",
        edits=(("__fmul_rn(s.of_x, __fmaf_rn(held, s.of_minus_x, 1.0f))", "s.of_x"),),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_steps<float, Reproducible"),
    ),
    SourceFault(
        name="skip_gradient_missing",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="gradient term dropped",
        symptom="gradient_missing",
        # Of many channels in whole vectors alone.
        file="selective_scan_backward_rows_gates.cuh",
        edits=(
            (
                "own.D_bar[c] = __fmaf_rn(pbar[c], u[c], own.D_bar[c]);",
                "own.D_bar[c] = 0.0f;",
            ),
        ),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_rows<float, Reproducible"),
    ),
    SourceFault(
        name="final_state_gradient_dropped",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="final-state gradient dropped",
        symptom="state_gradient_dropped",
        file="selective_scan_backward_steps.cuh",
        edits=(
            (
                "carried[i] = arrives ? a.after[own_states + state] : 0.0f;",
                "carried[i] = 0.0f;",
            ),
        ),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_steps<float, Reproducible"),
    ),
    SourceFault(
        name="A_gradient_misses_batch_rows",
        kernel="cuda.selective_scan.sequential.reproducible",
        kind="partial sums of dA missing a block",
        symptom="gradient_row",
        file="selective_scan_backward_sums.cuh",
        edits=(
            (
                "for (long long row = 0; row < count; row++) {",
                "for (long long row = 0; row < 1; row++) {",
            ),
        ),
        instance=(_SELECTIVE_BACK, "selective_scan_backward_rows_sum"),
    ),
)


HIDDEN_RACE = SourceFault(
    name="barrier_missing_before_sums",
    kernel="cuda.selective_scan.sequential.reproducible",
    kind="missing barrier",
    symptom="nondeterministic",
    file="selective_scan_backward_steps.cuh",
    edits=(
        (
            "      __syncthreads();\n      const int left",
            "      const int left",
        ),
    ),
    instance=(_SELECTIVE_BACK, "selective_scan_backward_steps<float, Reproducible"),
)
"""A race that few channels never lose: for racecheck alone, which sees it all the same
(benchmarks/cuda_sanitizer.py). On an H200 the quick profile passes it."""


def fault_named(op: str, name: str) -> SourceFault:
    """The fault of an op by its name; raises CaseInvalid for another."""
    for fault in FAULTS:
        if (fault.kernel.split(".")[1], fault.name) == (op, name):
            return fault
    raise CaseInvalid(f"expected a fault planted in {op}; got {name}")


def kernel_of(fault: SourceFault) -> Kernel:
    """The kernel as registered, with the fault for its hazard and symptom."""
    (found,) = (k for k in catalog.kernels() if k.name == fault.kernel)
    return replace(
        found,
        name=f"{fault.kernel}:{fault.name}",
        hazard=fault.kind,
        symptom=fault.symptom,
    )


def edited(fault: SourceFault, text: str) -> str:
    """The file's text with the fault; raises CaseInvalid where an edit has no place."""
    for old, new in fault.edits:
        if (count := text.count(old)) != 1:
            raise CaseInvalid(
                f"{fault.name}: expected {old!r} once in {fault.file}; got {count}"
            )
        text = text.replace(old, new)
    return text


@contextmanager
def planted(fault: SourceFault) -> Iterator[Path]:
    """Within, kernels are compiled from sources with the fault, in the folder given.

    Raises CaseInvalid as `edited` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        shutil.copytree(compile.SOURCES, sources)
        file = sources / fault.file
        file.write_text(edited(fault, file.read_text("utf-8")), "utf-8")
        with compile.sources_from(sources):
            yield sources
