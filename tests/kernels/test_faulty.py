"""The planted bugs: right without their hazard, wrong with it; the control is right.

Bounds: a term of h_t is a product of at most T decays and one drive, summed with the
others; in any order a term meets at most 2 T + 4 roundings, so that the error is within
(2 T + 4) u times the same recurrence on absolute values (Higham, "Accuracy and
Stability of Numerical Algorithms", section 3.1). The truth is a float64 loop.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.formats import FP16, FP32, FloatArray, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.faulty import catalog, chunked_torch
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.selective_scan import SELECTIVE_SCAN

CHUNK = chunked_torch.CHUNK
LONG = 3 * CHUNK + 5
OPS = {op.name: op for op in (LINEAR_SCAN, SELECTIVE_SCAN)}
TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
KERNELS = {kernel.name: kernel for kernel in catalog.faulty() + catalog.controls()}

# Module -> T and whether there is an initial state, such that its hazard is absent.
HARMLESS = {
    "carry_uses_own_total": ((1, True), (40, True), (CHUNK, True)),
    "carry_shifted_by_one_chunk": ((1, True), (40, True), (CHUNK, True)),
    "initial_state_ignored_after_first_chunk": ((1, False), (LONG, False)),
    "last_partial_chunk_dropped": ((CHUNK, True), (3 * CHUNK, True)),
    "hillis_steele_in_place": ((1, True), (32, True)),
    "one_stale_element": ((1, True),),
    "carried_decay_off_by_one_percent": ((1, False), (CHUNK, False)),
    "missing_barrier": ((1, True), (40, True), (CHUNK, True)),
    "combine_gate_gradient_wrong": ((1, True), (40, True), (LONG, True)),
    "final_state_gradient_dropped": ((1, True), (40, True), (LONG, True)),
    "carry_not_decayed": ((1, False), (40, False), (CHUNK, False)),
    "carry_from_previous_chunk_only": ((CHUNK, True), (2 * CHUNK, False)),
    "chunks_start_from_zero": ((1, True), (CHUNK, True)),
    "first_token_of_chunk_undecayed": ((1, False), (CHUNK, False)),
    "exclusive_gate_in_chunk": ((1, False),),
    "combine_operands_swapped": ((1, True),),
    "final_state_misses_last_token": (),
    "padded_rows_not_identity": ((CHUNK, True), (2 * CHUNK, True)),
    "tail_reads_next_row": ((CHUNK, True), (2 * CHUNK, True)),
    "output_tail_unwritten": ((CHUNK, True), (2 * CHUNK, True)),
    "order_of_carries_varies": ((1, True), (LONG, True)),
    "softplus_without_threshold": ((LONG, True),),
    "inverse_of_running_product": ((1, True), (40, True)),
    "initial_state_gradient_dropped": ((1, True), (LONG, True)),
    "skip_gradient_missing": ((LONG, True),),
    "step_gradient_misses_drive": ((LONG, True),),
    "silu_gradient_is_sigmoid": ((LONG, True),),
    "overflow_behind_mask_in_backward": ((1, True),),
    "A_gradient_of_first_row": ((LONG, True),),
    "gradient_sums_in_bf16": ((LONG, True),),
    "gate_gradient_zero_where_clamped": ((LONG, True),),
    "adjoint_in_bf16": ((1, True), (LONG, True)),
    "gate_gradient_total_minus_prefix": ((1, True), (LONG, True)),
    "decay_held_below_one": ((LONG, True),),
    "decay_sign_lost": ((LONG, True),),
    "chunked_reference": ((1, True), (40, True), (LONG, True), (LONG, False)),
}
# Module -> first wrong token and whether the final state is right, at T = LONG.
FIRST_WRONG = {
    "carry_uses_own_total": (CHUNK, False),
    "carry_shifted_by_one_chunk": (CHUNK, True),
    "initial_state_ignored_after_first_chunk": (CHUNK, False),
    "last_partial_chunk_dropped": (3 * CHUNK, True),
    "hillis_steele_in_place": (32, True),
    "state_in_fp16_claims_fp32": (0, False),
    "one_stale_element": (LONG // 2, True),
    "carried_decay_off_by_one_percent": (CHUNK, False),
    "missing_barrier": (3 * CHUNK, True),
    "carry_not_decayed": (CHUNK, False),
    "carry_from_previous_chunk_only": (CHUNK, False),
    "chunks_start_from_zero": (CHUNK, False),
    "first_token_of_chunk_undecayed": (0, False),
    "exclusive_gate_in_chunk": (0, False),
    "combine_operands_swapped": (1, False),
    "decay_in_bf16": (0, False),
    "tf32_operands_claim_fp32": (0, False),
    "output_through_bf16": (0, True),
    "state_in_bf16_at_chunk_edges": (CHUNK, False),
    "state_clamped_at_chunk_edges": (CHUNK, False),
    "decay_of_first_row_for_all": (0, False),
}
# Bugs that are not of the forward pass, or need inputs of another kind.
NO_GRADIENT = {
    "initial_state_gradient_dropped": {"initial_state"},
    "skip_gradient_missing": {"D"},
}


def loop(
    decay: FloatArray, drive: FloatArray, state: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The truth: h [B, T, ...] and the final state, token by token in float64."""
    h = np.empty_like(drive)
    for t in range(h.shape[1]):
        state = decay[:, t] * state + drive[:, t]
        h[:, t] = state
    return h, state


def slow_linear_scan(
    steps: int, with_state: bool, seed: int = 0
) -> dict[str, FloatArray]:
    """Inputs in fp32 whose state outlives a chunk; decay in 0.98 .. 1."""
    rng = np.random.default_rng(seed)
    shape = (2, steps, 3)
    inputs = {"a": rng.uniform(0.98, 1.0, shape), "b": rng.normal(size=shape)}
    if with_state:
        inputs["initial_state"] = rng.normal(size=(2, 3))
    return in_fp32(inputs)


def slow_selective_scan(steps: int, with_state: bool) -> dict[str, FloatArray]:
    """Inputs in fp32 with every option, step size about 0.04, A in -1 .. -0.1."""
    rng = np.random.default_rng(1)
    batch, channels, states = 2, 4, 3
    sequence = (batch, channels, steps)
    inputs = {
        "u": rng.normal(size=sequence),
        "delta": rng.uniform(-4.0, -3.0, sequence),
        "A": rng.uniform(-1.0, -0.1, (channels, states)),
        "B": rng.normal(size=(batch, states, steps)),
        "C": rng.normal(size=(batch, 2, states, steps)),
        "D": rng.normal(size=channels),
        "z": rng.normal(size=sequence),
        "delta_bias": rng.uniform(0.0, 0.5, channels),
    }
    if with_state:
        inputs["initial_state"] = rng.normal(size=(batch, channels, states))
    return in_fp32(inputs)


def in_fp32(inputs: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Each array with values that fp32 holds."""
    return {name: x.astype(np.float32).astype(float) for name, x in inputs.items()}


def call(
    kernel: Kernel, inputs: dict[str, FloatArray], dtype: str = "fp32"
) -> tuple[FloatArray, FloatArray]:
    """Sequence output and final state of one call, as float64 arrays."""
    sequence, state = kernel.call(**as_tensors(kernel.op, inputs, dtype))
    return sequence.double().numpy(), state.double().numpy()


def as_tensors(op: str, inputs: dict[str, FloatArray], dtype: str) -> dict[str, Any]:
    """The call's keyword arguments; selective_scan with its softplus switched on."""
    kinds = {spec.name: spec.kind for spec in OPS[op].inputs}
    wide = torch.float64 if dtype == "fp64" else torch.float32
    tensors: dict[str, Any] = {
        name: torch.tensor(x, dtype=wide if kinds[name] == "state" else TORCH[dtype])
        for name, x in inputs.items()
    }
    if op == "selective_scan":
        tensors["delta_softplus"] = True
    return tensors


def linear_scan_errors(
    kernel: Kernel, inputs: dict[str, FloatArray], dtype: str = "fp32"
) -> tuple[FloatArray, FloatArray]:
    """Error over bound of h and of the final state, elementwise; right is up to 1."""
    a, b = inputs["a"], inputs["b"]
    start = inputs.get("initial_state", np.zeros((a.shape[0], a.shape[2])))
    truth, final = loop(a, b, start)
    size, final_size = loop(np.abs(a), np.abs(b), np.abs(start))
    h, state = call(kernel, inputs, dtype)
    storage = format_named(dtype)
    compute = storage if dtype == "fp64" else FP32
    # The loop in float64 rounds as often as the kernel, at its own precision.
    count = (2 * a.shape[1] + 4) * (compute.unit_roundoff + 2.0**-53)
    bound = count * size
    stored = bound + storage.unit_roundoff * (np.abs(truth) + bound) + storage.eta
    return np.abs(h - truth) / stored, np.abs(state - final) / (
        count * final_size + compute.eta
    )


def selective_scan_errors(
    kernel: Kernel, inputs: dict[str, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Error over bound of y and of the last state, elementwise; right is up to 1."""
    u, z = (np.moveaxis(inputs[name], 2, 1) for name in ("u", "z"))
    x = np.moveaxis(inputs["delta"], 2, 1) + inputs["delta_bias"]
    step = np.log1p(np.exp(x))
    exponent = step[..., None] * inputs["A"]
    keys = np.moveaxis(inputs["B"], 2, 1)[:, :, None]
    readout = np.moveaxis(np.repeat(inputs["C"], 2, axis=1), 3, 1)
    drive = (step * u)[..., None] * keys
    tokens, states = exponent.shape[1], exponent.shape[3]
    start = inputs.get("initial_state", np.zeros((u.shape[0], u.shape[2], states)))
    gate = z / (1 + np.exp(-z))
    h, final = loop(np.exp(exponent), drive, start)
    size, final_size = loop(np.exp(exponent), np.abs(drive), np.abs(start))
    y = ((readout * h).sum(-1) + inputs["D"] * u) * gate
    y_size = (np.abs(readout) * size).sum(-1) + np.abs(inputs["D"] * u)
    y_size *= np.abs(gate)
    # Roundings a term meets. A token: its decay, exp with 4, its argument with 6 (sum,
    # softplus 4, product) times its size, and the scan's 2. Once: 7 of the drive, N + 1
    # of the readout, D and silu 7, and 4 at the ends of the scan.
    per_token = 2 + 4 + 6 * np.abs(exponent).max()
    count = (tokens * per_token + states + 19) * (FP32.unit_roundoff + 2.0**-53)
    got_y, got_final = call(kernel, inputs)
    got_y = np.moveaxis(got_y, 2, 1)
    return np.abs(got_y - y) / (count * y_size), np.abs(got_final - final) / (
        count * final_size
    )


SLOW: dict[str, Callable[[int, bool], dict[str, FloatArray]]] = {
    "linear_scan": slow_linear_scan,
    "selective_scan": slow_selective_scan,
}
ERRORS: dict[str, Callable[..., tuple[FloatArray, FloatArray]]] = {
    "linear_scan": linear_scan_errors,
    "selective_scan": selective_scan_errors,
}


def hazard_of(kernel: Kernel) -> str:
    """The last part of a kernel's name."""
    return kernel.name.rpartition(".")[2]


def named(*modules: str) -> list[Any]:
    """Test parameters: the kernels of these modules, in every op that has one."""
    return [
        pytest.param(kernel, id=kernel.name)
        for kernel in KERNELS.values()
        if hazard_of(kernel) in modules
    ]


def worst_errors(kernel: Kernel, inputs: dict[str, FloatArray]) -> list[list[float]]:
    """Largest error over bound of both outputs, in each of three calls."""
    return [
        [float(part.max()) for part in ERRORS[kernel.op](kernel, inputs)]
        for _ in range(3)
    ]


@pytest.mark.parametrize("kernel", named(*HARMLESS))
def test_is_right_without_its_hazard(kernel: Kernel) -> None:
    """Where the hazard is absent, both outputs are within the bound in every call."""
    for steps, with_state in HARMLESS[hazard_of(kernel)]:
        inputs = SLOW[kernel.op](steps, with_state)
        assert np.max(worst_errors(kernel, inputs)) <= 1, (steps, with_state)


def test_fp16_state_is_right_on_values_that_fp16_holds() -> None:
    """The fp16 state changes nothing on small integers that are kept or reset."""
    rng = np.random.default_rng(2)
    inputs = {
        "a": rng.integers(0, 2, (2, LONG, 3)).astype(float),
        "b": rng.integers(-3, 4, (2, LONG, 3)).astype(float),
    }
    h, final = call(KERNELS["faulty.linear_scan.state_in_fp16_claims_fp32"], inputs)
    truth, final_truth = loop(inputs["a"], inputs["b"], np.zeros((2, 3)))
    np.testing.assert_array_equal(h, truth)
    np.testing.assert_array_equal(final, final_truth)


# The slow selective_scan has small states, which no clamp reaches.
STANDING_OUT = [
    case
    for case in named(*FIRST_WRONG)
    if case.id != "faulty.selective_scan.state_clamped_at_chunk_edges"
]


@pytest.mark.parametrize("kernel", STANDING_OUT)
def test_is_wrong_with_its_hazard(kernel: Kernel) -> None:
    """With slow decay over three chunks and a part, one of three calls is wrong."""
    worst = worst_errors(kernel, SLOW[kernel.op](LONG, True))
    final_is_right = FIRST_WRONG[hazard_of(kernel)][1]
    assert max(sequence for sequence, _ in worst) > 1
    assert (max(state for _, state in worst) <= 1) == final_is_right


@pytest.mark.parametrize("module", FIRST_WRONG)
def test_first_wrong_token(module: str) -> None:
    """h of linear_scan is right up to the token where the hazard first acts."""
    kernel = KERNELS[f"faulty.linear_scan.{module}"]
    inputs = slow_linear_scan(LONG, True)
    errors = [linear_scan_errors(kernel, inputs)[0] for _ in range(3)]
    wrong = (np.max(errors, axis=0) > 1).any((0, 2))
    assert int(wrong.argmax()) == FIRST_WRONG[module][0]


def test_stale_element_is_one() -> None:
    """Exactly one element of h is wrong, and it is the value of the token before."""
    inputs = slow_linear_scan(LONG, True)
    kernel = KERNELS["faulty.linear_scan.one_stale_element"]
    errors, _ = linear_scan_errors(kernel, inputs)
    h, _ = call(kernel, inputs)
    middle = LONG // 2
    assert np.argwhere(errors > 1).tolist() == [[0, middle, 2]]
    assert h[0, middle, 2] == h[0, middle - 1, 2]


def test_in_place_tree_is_wrong_in_the_second_warp_of_a_chunk() -> None:
    """The first 32 tokens of every chunk and the chunk's last one are right."""
    steps = 3 * CHUNK
    kernel = KERNELS["faulty.linear_scan.hillis_steele_in_place"]
    errors, _ = linear_scan_errors(kernel, slow_linear_scan(steps, True))
    wrong = (errors > 1).reshape(2, 3, CHUNK, 3).any((0, 3))
    assert (wrong == ([False] * 32 + [True] * 31 + [False])).all()


def test_dropped_chunk_is_zero() -> None:
    """The tokens after the last full chunk are zero, in h and before y's skip."""
    h, _ = call(
        KERNELS["faulty.linear_scan.last_partial_chunk_dropped"],
        slow_linear_scan(LONG, True),
    )
    inputs = slow_selective_scan(LONG, True) | {"D": np.zeros(4)}
    y, _ = call(KERNELS["faulty.selective_scan.last_partial_chunk_dropped"], inputs)
    assert not h[:, 3 * CHUNK :].any()
    assert not y[:, :, 3 * CHUNK :].any()


def test_short_state_errs_by_roundings_to_fp16() -> None:
    """The error of the first token is one rounding to fp16, no more."""
    inputs = slow_linear_scan(LONG, True)
    h, _ = call(KERNELS["faulty.linear_scan.state_in_fp16_claims_fp32"], inputs)
    first = loop(inputs["a"], inputs["b"], inputs["initial_state"])[0][:, 0]
    size = np.abs(inputs["a"][:, 0] * inputs["initial_state"])
    size += np.abs(inputs["b"][:, 0])
    bound = FP16.unit_roundoff * size * 1.001 + 2 * FP32.unit_roundoff * size
    assert (np.abs(h[:, 0] - first) <= bound).all()


@pytest.mark.parametrize(
    "kernel",
    named(*{hazard_of(k) for k in KERNELS.values()} - {"output_tail_unwritten"}),
)
def test_only_the_missing_barrier_changes_between_calls(kernel: Kernel) -> None:
    """Three equal calls return the same bits, but where one of them is planted to.

    What a tail holds that nobody wrote depends on the memory, not on the kernel.
    """
    inputs = SLOW[kernel.op](LONG, True)
    returned = [b"".join(x.tobytes() for x in call(kernel, inputs)) for _ in range(3)]
    varying = ("missing_barrier", "order_of_carries_varies")
    distinct = 2 if hazard_of(kernel) in varying else 1
    assert len(set(returned)) == distinct


@pytest.mark.parametrize("steps", range(2 * CHUNK + 3))
def test_control_is_right_at_every_length(steps: int) -> None:
    """The control is within the bound at every T from 0 to past two chunks."""
    kernel = KERNELS["control.linear_scan.chunked_reference"]
    inputs = slow_linear_scan(steps, True)
    errors, final_errors = linear_scan_errors(kernel, inputs)
    assert errors.shape == (2, steps, 3)
    assert errors.max(initial=0) <= 1
    assert final_errors.max() <= 1


@given(
    steps=st.integers(1, 400),
    lowest=st.sampled_from([-1.0, 0.0, 0.9]),
    dtype=st.sampled_from(["fp16", "bf16", "fp32", "fp64"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_control_is_right_in_every_format(
    steps: int, lowest: float, dtype: str, seed: int
) -> None:
    """The control is within the bound for any decay up to 1 and any storage format."""
    rng = np.random.default_rng(seed)
    inputs = {"a": rng.uniform(lowest, 1.0, (2, steps, 3))}
    inputs["b"] = rng.normal(size=(2, steps, 3))
    stored = {
        name: torch.tensor(x).to(TORCH[dtype]).double().numpy()
        for name, x in inputs.items()
    }
    errors = linear_scan_errors(
        KERNELS["control.linear_scan.chunked_reference"], stored, dtype
    )
    assert max(part.max() for part in errors) <= 1


@pytest.mark.parametrize("kernel", named("chunked_reference"))
def test_control_takes_empty_tensors(kernel: Kernel) -> None:
    """T = 0 returns the initial state, and B = 0 returns empty outputs."""
    no_tokens = SLOW[kernel.op](0, True)
    sequence, state = call(kernel, no_tokens)
    assert sequence.size == 0
    np.testing.assert_array_equal(state, no_tokens["initial_state"])
    batch = ("a", "b", "u", "delta", "z", "B", "C", "initial_state")
    no_rows = {
        name: x[:0] if name in batch else x
        for name, x in SLOW[kernel.op](70, True).items()
    }
    sequence, state = call(kernel, no_rows)
    assert sequence.shape[0] == state.shape[0] == 0


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_formats_of_the_outputs(kernel: Kernel) -> None:
    """The sequence comes in the storage format, the state in fp32, or fp64 for fp64."""
    for dtype in (*kernel.dtypes, "fp64"):
        tensors = as_tensors(kernel.op, SLOW[kernel.op](70, True), dtype)
        sequence, state = kernel.call(**tensors)
        assert sequence.dtype == TORCH[dtype]
        wide = torch.float64 if dtype == "fp64" else torch.float32
        assert state.dtype == wide


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_kernel_is_differentiable(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of the sequence output reaches every tensor with a finite gradient."""
    # What is never written may hold anything, also what is no number.
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    tensors = as_tensors(kernel.op, SLOW[kernel.op](LONG, True), "fp32")
    none = NO_GRADIENT.get(hazard_of(kernel), set())
    leaves = [
        x.requires_grad_()
        for name, x in tensors.items()
        if x is not True and name not in none
    ]
    sequence, _ = kernel.call(**tensors)
    gradients = torch.autograd.grad(sequence.square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient.any() for gradient in gradients)


def test_dropped_state_gradient_in_selective_scan() -> None:
    """last_state of selective_scan has no graph, while y has one."""
    kernel = KERNELS["faulty.selective_scan.final_state_gradient_dropped"]
    tensors = as_tensors(kernel.op, slow_selective_scan(70, True), "fp32")
    tensors["u"].requires_grad_()
    y, last_state = kernel.call(**tensors)
    assert y.requires_grad
    assert not last_state.requires_grad
