"""Models called with several sequences give what they give for each alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from scancheck.bridge import to_torch
from scancheck.case import make_case
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.sequence_catalog import (
    SEQUENCE_BUGS,
    sequence_controls,
    sequence_faulty,
)
from scancheck.kernels.models.catalog import SCANS, model
from scancheck.kernels.models.step_calls import FAMILIES
from scancheck.ops import op_named
from scancheck.ops.normal_form import spec_of, state_inputs
from scancheck.recipes.build import build
from scancheck.recipes.op_rules import rules_of

OPS = (*SCANS, *FAMILIES)
OFFSETS = (0, 0, 6, 7, 15)
STEPS = OFFSETS[-1]


def tensors_of(op: str, batch: int, steps: int, states: int) -> dict[str, Tensor]:
    """bf16 tensors with everything optional; the states have an axis of their own."""
    known, rules = op_named(op), rules_of(op)
    options: dict[str, Any] = {
        n: True for n, x in rules.options.items() if isinstance(x, bool)
    }
    if known.forms:
        options["form"] = "g"
    found = {}
    for rows in (batch, states):
        sizes = dict(rules.roster[0]) | {"B": rows, known.time_axis: steps}
        case = make_case(
            op, sizes, dtype="bf16", recipe="gaussian_slow", seed=2, options=options
        )
        for name, values in build(case).tensors.items():
            if rows == batch or name in state_inputs(known):
                spec = spec_of(known, name, values.ndim)
                fmt = "bf16" if spec.kind == "storage" else "fp32"
                found[name] = to_torch(values, fmt)
    return found


def cut(op: str, tensors: dict[str, Tensor], row: int, tokens: Any, state: int) -> Any:
    """The tensors of one sequence."""
    known, found = op_named(op), {}
    for name, x in tensors.items():
        axes = spec_of(known, name, x.ndim).axes
        if name in state_inputs(known):
            x = x[state : state + 1]
        elif known.time_axis in axes:
            x = x[row : row + 1].index_select(axes.index(known.time_axis), tokens)
        found[name] = x
    return found


def axis_of(op: str) -> int:
    """The axis of time of the sequence output."""
    known = op_named(op)
    return known.outputs[0].axes.index(known.time_axis)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_packed_is_each_alone(op: str, reverse: bool) -> None:
    """To the bit, forward; an empty sequence hands on its initial state."""
    call, time = model(op, "sequential", "plain").call, axis_of(op)
    tensors = tensors_of(op, 1, STEPS, 4)
    output, *finals = call(**tensors, cu_seqlens=torch.tensor(OFFSETS), reverse=reverse)
    for i, (first, stop) in enumerate(pairwise(OFFSETS)):
        tokens = torch.arange(first, stop)
        order = tokens.flip(0) if reverse else tokens
        alone, *states = call(**cut(op, tensors, 0, order, i))
        alone = alone.flip(time) if reverse else alone
        assert torch.equal(output.index_select(time, tokens), alone)
        for final, state in zip(finals, states, strict=True):
            assert torch.equal(final[i : i + 1], state)
    for name, final in zip(state_inputs(op_named(op)), finals, strict=True):
        assert torch.equal(final[0], tensors[name][0])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_padding_is_cut_away(op: str, left: bool) -> None:
    """Rows without their padding, where outputs are zero even if it holds NaN."""
    call, time = model(op, "sequential", "plain").call, axis_of(op)
    known, lengths = op_named(op), (4, 0, 7)
    tensors = tensors_of(op, 3, 7, 3)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, slice(7 - length, 7) if left else slice(0, length)] = True
    for name, x in tensors.items():
        axes = spec_of(known, name, x.ndim).axes
        if known.time_axis in axes:
            x.moveaxis(axes.index(known.time_axis), 1)[~mask] = float("nan")
    output, *finals = call(**tensors, attention_mask=mask)
    assert not output.moveaxis(time, 1)[~mask].any()
    for row in range(3):
        tokens = mask[row].nonzero().flatten()
        alone, *states = call(**cut(op, tensors, row, tokens, row))
        assert torch.equal(output[row : row + 1].index_select(time, tokens), alone)
        for final, state in zip(finals, states, strict=True):
            assert torch.equal(final[row : row + 1], state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("op", ["ssd", "rwkv6", "selective_scan"])
def test_gradients_of_shared_inputs_are_summed_in_fp32(
    op: str, dtype: torch.dtype
) -> None:
    """Those of an input without tokens are off by one store, however many there are."""
    call, known = model(op, "sequential", "plain").call, op_named(op)
    tensors = {
        # torch cuts no tokens out of eight bits: only values are short here.
        n: x.to(dtype).to(x.dtype) if x.dtype == torch.bfloat16 else x
        for n, x in tensors_of(op, 1, STEPS, 4).items()
    }

    def stored(x: Tensor) -> Tensor:
        return x.to(dtype) if x.dtype == torch.bfloat16 else x

    leaves = {n: stored(x).requires_grad_() for n, x in tensors.items()}
    output, _ = call(**leaves, cu_seqlens=torch.tensor(OFFSETS))
    output.float().sum().backward()
    for name, x in leaves.items():
        axes = spec_of(known, name, x.ndim).axes
        if axes[0] == "B":
            continue
        total, size = torch.zeros(x.shape), torch.zeros(x.shape)
        for i, (first, stop) in enumerate(pairwise(OFFSETS)):
            part = cut(op, tensors, 0, torch.arange(first, stop), i)
            part = {n: stored(y).detach() for n, y in part.items()}
            part[name] = part[name].float().requires_grad_()
            alone, _ = call(**part)
            alone.float().sum().backward()
            if part[name].grad is not None:
                total += part[name].grad
                size += part[name].grad.abs()
        assert x.grad is not None
        # One store, and the same few sums in another order.
        allowed = torch.finfo(x.dtype).eps / 2 * total.abs() + 8 * 2.0**-24 * size
        assert bool(((x.grad.float() - total).abs() <= allowed).all())


def test_nothing_at_all() -> None:
    """No sequence, and no row, give outputs of the right shapes."""
    call = model("gated_delta_rule", "sequential", "plain").call
    tensors = tensors_of("gated_delta_rule", 1, 0, 1)
    bare = {n: x for n, x in tensors.items() if n != "initial_state"}
    output, final = call(**bare, cu_seqlens=torch.tensor([0]))
    assert (output.shape[:2], final.shape[0]) == ((1, 0), 0)
    rows = {n: x[:0] for n, x in bare.items()}
    output, final = call(**rows, attention_mask=torch.zeros(0, 0, dtype=torch.bool))
    assert (output.shape[0], final.shape[0]) == (0, 0)
    rows = {n: x[:0] for n, x in tensors_of("gated_delta_rule", 1, 5, 1).items()}
    output, _ = call(**rows, reverse=True)
    assert output.shape[:2] == (0, 5)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("reverse", [False, True])
def test_eight_bits_have_gradients(dtype: torch.dtype, reverse: bool) -> None:
    """torch neither flips nor adds them; each sequence has those it has alone."""
    call = model("linear_attention", "sequential", "plain").call
    drawn = tensors_of("linear_attention", 1, STEPS, 4)
    del drawn["initial_state"]
    leaves = {n: x.to(dtype).requires_grad_() for n, x in drawn.items()}
    offsets = torch.tensor(OFFSETS)
    output, _ = call(**leaves, cu_seqlens=offsets, reverse=reverse)
    assert output.dtype == dtype
    output.float().sum().backward()
    first, stop = OFFSETS[-2:]
    alone = {n: x.detach()[:, first:stop] for n, x in leaves.items()}
    alone = {n: x.clone().requires_grad_() for n, x in alone.items()}
    part, _ = call(**alone, reverse=reverse)
    part.float().sum().backward()
    assert torch.equal(output[:, first:stop].float(), part.float())
    for name, x in alone.items():
        whole = leaves[name].grad
        assert whole is not None and x.grad is not None
        assert torch.equal(whole[:, first:stop].float(), x.grad.float())


# Bug -> offsets and mask of a call that its hazard leaves right.
HARMLESS: dict[str, dict[str, Any]] = {
    "boundary_inside_chunk_ignored": {"cu_seqlens": (0, 16, 32)},
    "boundaries_rounded_to_chunk": {"cu_seqlens": (0, 16, 32)},
    "empty_sequence_in_slot_0": {"cu_seqlens": (0, 7, 32)},
    "first_state_for_all_sequences": {"cu_seqlens": (0, 32)},
    "reverse_ignored": {"cu_seqlens": (0, 7, 32)},
    "padding_moves_state": {"lengths": (32, 32)},
    "state_reset_by_zero": {"cu_seqlens": (0, 7, 7, 32)},
    "padding_multiplied_by_zero": {"lengths": (9, 0)},
}


def test_every_bug_has_a_harmless_call() -> None:
    """The table is whole."""
    assert set(HARMLESS) == {bug.module for bug in SEQUENCE_BUGS}


@pytest.mark.parametrize("kernel", sequence_faulty(), ids=lambda kernel: kernel.name)
def test_right_without_its_hazard(kernel: Kernel) -> None:
    """Where its hazard is absent, a planted bug computes what the control does."""
    how = HARMLESS[kernel.name.rpartition(".")[2]]
    (right,) = (k for k in sequence_controls() if k.op == kernel.op)
    offsets, lengths = how.get("cu_seqlens"), how.get("lengths", (32,))
    states = len(lengths) if offsets is None else len(offsets) - 1
    stored = tensors_of(kernel.op, len(lengths), 32, states)
    tensors = {name: x.float() for name, x in stored.items()}
    mask = torch.arange(32) < torch.tensor(lengths)[:, None]
    call: dict[str, Any] = {"attention_mask": mask}
    if offsets is not None:
        call = {"cu_seqlens": torch.tensor(offsets)}
    (got, state), (wanted, final) = (k.call(**tensors, **call) for k in (kernel, right))
    assert torch.equal(got * mask[..., None, None], wanted)
    assert torch.equal(state, final)
