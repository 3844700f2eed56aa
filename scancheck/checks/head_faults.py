"""Faults of ops with heads: whose keys, which state is read, what a gate multiplies.

Two of them are forms of the gated delta rule that circulate in tutorials: the gate
multiplying what a token erases and writes but not the state, and the error taken
against the state before its decay.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.carry_faults import Fault
from scancheck.checks.faulty_recurrence import Outputs
from scancheck.checks.oracle import CaseReport
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Lowered, Op, Tensors
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System

FloatArray = NDArray[np.float64]
KEYED = ("q", "k")  # inputs that value heads may share
LOG_GATES = ("g", "gk", "gv", "w")


def faults_of_heads(report: CaseReport, truth: Outputs) -> Iterator[Fault]:
    """The faults with the outputs that they would give; none of ops without heads."""
    op = op_of(report.case)
    if "H" not in op.size_names:
        return
    yield from _other_keys(report, op)
    yield from _other_reads(report, op)
    yield from _other_updates(report, op)
    final = op.outputs[1].name
    state = truth[final]
    if state.shape[-1] == state.shape[-2] > 1:
        swapped = np.ascontiguousarray(state.swapaxes(-1, -2))
        yield (
            "state_transposed",
            f"{final} is right with its last two axes swapped",
            truth | {final: swapped},
        )


def _outputs(report: CaseReport, op: Op, tensors: Mapping[str, Any]) -> Outputs:
    solution = solve(Fp64System(), op, tensors, report.inputs.switches)
    return {name: ball.value for name, ball in solution.outputs.items()}


def _other_keys(report: CaseReport, op: Op) -> Iterator[Fault]:
    """Keys of other heads, where value heads share them."""
    tensors = report.inputs.tensors
    if "HV" not in op.size_names:
        return
    heads, shared = tensors["v"].shape[2], tensors["k"].shape[2]
    if not 1 < shared < heads:
        return
    own = np.arange(heads) // (heads // shared)
    turns = np.arange(heads) % shared
    for names in (KEYED, *((name,) for name in KEYED)):
        other = {
            name: tensors[name][:, :, turns if name in names else own] for name in KEYED
        }
        told = " and ".join(names)
        yield (
            "key_group",
            f"value head j reads {told} of head j % H, and j // (HV / H) is its own",
            _outputs(report, op, dict(tensors) | other),
        )


def _other_reads(report: CaseReport, op: Op) -> Iterator[Fault]:
    """The state of the other side of the update."""

    def lower(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
        lowered, after = op.lower(tile, carry)
        return replace(lowered, reads_before=not op.reads_before), after

    other = replace(op, lower=lower, reads_before=not op.reads_before)
    cause = "read_after_update" if op.reads_before else "read_before_update"
    yield cause, "", _outputs(report, other, report.inputs.tensors)


def _other_updates(report: CaseReport, op: Op) -> Iterator[Fault]:
    """Gates that multiply something else."""
    gates = [name for name in LOG_GATES if name in report.inputs.tensors]
    if not any(report.inputs.tensors[name].any() for name in gates):
        return

    def ungated(tile: Tensors) -> dict[str, Any]:
        zero = {name: tile[name].mapped(np.zeros_like) for name in gates}
        return dict(tile) | zero

    def on_update(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
        lowered, after = op.lower(tile, carry)
        bare, _ = op.lower(ungated(tile), carry)
        return replace(bare, k=lowered.w * lowered.k, q=lowered.q), after

    of_delta_rule: list[bool] = []

    def other_state(tile: Tensors, carry: Any) -> tuple[Lowered, Any]:
        """What is erased, read from the state on the other side of its decay."""
        lowered, after = op.lower(tile, carry)
        of_delta_rule.append(lowered.erases_decayed)
        if lowered.erases_decayed:
            bare, _ = op.lower(ungated(tile), carry)
            return replace(lowered, q=bare.q), after
        return replace(lowered, q=lowered.w * lowered.q), after

    tensors = report.inputs.tensors
    if gates == ["g"]:
        update = replace(op, lower=on_update)
        yield "state_undecayed", "", _outputs(report, update, tensors)
    if not op.diagonal:
        outputs = _outputs(report, replace(op, lower=other_state), tensors)
        cause = "erased_undecayed" if any(of_delta_rule) else "seen_after_decay"
        yield cause, "", outputs
    if "u" in tensors:
        bare = dict(tensors) | {"u": np.zeros_like(tensors["u"])}
        yield "bonus_dropped", "", _outputs(report, op, bare)
