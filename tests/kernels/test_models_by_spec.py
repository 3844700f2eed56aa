"""Models of ops with several parts of a state, or several steps a token."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.bounds.budget import budget_for
from scancheck.case import make_case
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import Contract, parse_contract
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.ops import op_named
from scancheck.ops.normal_form import state_inputs

Tensors = dict[str, Tensor]
Loop = Callable[..., tuple[Tensor, ...]]


def normalized_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    initial_key_sum: Tensor | None = None,
    *,
    stored_sum: Callable[[Tensor], Tensor] = lambda z: z,
    shown: Callable[[Tensor], Tensor] = lambda z: z,
) -> tuple[Tensor, ...]:
    """The definition in the compute dtype; the last two arguments plant faults."""
    heads, dtype = v.shape[2], v.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k = (x.to(wide).repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    v = v.to(wide)
    shape = v.shape[0], heads, q.shape[3]
    s = v.new_zeros(*shape, v.shape[3]) if initial_state is None else initial_state
    z = v.new_zeros(*shape) if initial_key_sum is None else initial_key_sum
    rows = []
    for t in range(v.shape[1]):
        s = s + k[:, t, ..., None] * v[:, t, :, None, :]
        z = stored_sum(z + k[:, t])
        r = q[:, t] * q.shape[3] ** -0.5
        n, d = (s * r[..., None]).sum(2), (z * r).sum(2, keepdim=True)
        rows.append(n / (d + 1e-10))
    o = torch.stack(rows, 1) if rows else v
    return o.to(dtype), s, shown(z)


def gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    initial_state: Tensor | None = None,
    *,
    decays: Callable[[int], bool] = lambda j: j == 0,
    strength: Callable[[int], int] = lambda j: j,
    reads_after: int = -1,
) -> tuple[Tensor, ...]:
    """The definition in the compute dtype; the last three arguments plant faults."""
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    q, k, v, beta, g = (x.to(wide) for x in (q, k, v, beta, g))
    batch, _, steps, heads, keys = k.shape
    s, rows = initial_state, []
    if s is None:
        s = v.new_zeros(batch, heads, keys, v.shape[4])
    for t in range(q.shape[1]):
        passed = []
        for j in range(steps):
            if decays(j):
                s = g[:, t].exp()[..., None, None] * s
            key = k[:, t, j, ..., None]
            error = v[:, t, j] - (s * key).sum(2)
            s = s + key * (beta[:, t, strength(j), :, None] * error)[:, :, None]
            passed.append(s)
        r = q[:, t] * keys**-0.5
        rows.append((passed[reads_after] * r[..., None]).sum(2))
    o = torch.stack(rows, 1) if rows else v[:, :, 0]
    return o.to(dtype), s


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    initial_state: Tensor | None = None,
    initial_normalizer: Tensor | None = None,
    initial_max: Tensor | None = None,
    *,
    maximum: Callable[[Tensor, Tensor], Tensor] = torch.maximum,
    floor: Callable[[Tensor], Tensor] = lambda m: torch.exp(-m),
    size: Callable[[Tensor], Tensor] = torch.abs,
    log_gate: Callable[[Tensor], Tensor] = torch.nn.functional.logsigmoid,
) -> tuple[Tensor, ...]:
    """The definition with its stabiliser; the last four arguments plant faults."""
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    q, k, v, i, f = (x.to(wide) for x in (q, k, v, i, f))
    batch, steps, heads, keys = q.shape
    s, n, m = initial_state, initial_normalizer, initial_max
    s = v.new_zeros(batch, heads, keys, v.shape[3]) if s is None else s
    n = v.new_zeros(batch, heads, keys) if n is None else n
    m = v.new_zeros(batch, heads) if m is None else m
    rows = []
    for t in range(steps):
        kept = log_gate(f[:, t]) + m
        m = maximum(kept, i[:, t])
        decay, gain = torch.exp(kept - m)[..., None], torch.exp(i[:, t] - m)[..., None]
        n = decay * n + gain * k[:, t]
        s = decay[..., None] * s + (gain * k[:, t])[..., None] * v[:, t, :, None]
        r = q[:, t] * keys**-0.5
        below = torch.maximum(size((n * r).sum(-1)), floor(m)) + 1e-6
        rows.append((s * r[..., None]).sum(2) / below[..., None])
    h = torch.stack(rows, 1) if rows else v
    # Without a token the state is the caller's own tensor.
    return h.to(dtype), s.clone(), n.clone(), m.clone()


LOOPS: dict[str, Loop] = {
    "mlstm": mlstm,
    "normalized_linear_attention": normalized_linear_attention,
    "gated_delta_product": gated_delta_product,
}
STEPWISE = parse_contract("structure=sequential")
CONTRACTS = {"gated_delta_product": STEPWISE}  # what a bound is known for


def sizes_of(op: str, **changed: int) -> dict[str, int]:
    """Small sizes, no two alike."""
    sizes = {"B": 2, "T": 6, "H": 2, "HV": 4, "K": 3, "V": 5, "M": 2} | changed
    return {name: sizes[name] for name in op_named(op).size_names}


def draw(op: str, dtype: torch.dtype, **changed: int) -> Tensors:
    """Inputs whose normalisers stay away from zero, and whose steps contract."""
    generator = torch.Generator().manual_seed(len(op))
    tensors, sizes = {}, sizes_of(op, **changed)
    for spec in op_named(op).inputs:
        shape = [sizes[axis] for axis in spec.axes]
        x = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.125
        if spec.name in ("v", "initial_state", "i"):
            x = x - 0.625
        if spec.name == "g":
            x = -x
        if spec.name == "beta":
            x = x / 1.125
        wide = torch.promote_types(dtype, torch.float32)
        tensors[spec.name] = x.to(dtype if spec.kind == "storage" else wide)
    return tensors


def cotangents_of(op: str, **changed: int) -> dict[str, Tensor]:
    """Cotangents of either sign, by output name."""
    generator, sizes = torch.Generator().manual_seed(1), sizes_of(op, **changed)
    return {
        spec.name: torch.randn(
            [sizes[axis] for axis in spec.axes],
            generator=generator,
            dtype=torch.float64,
        )
        for spec in op_named(op).outputs
    }


def differentiated(
    call: Loop, op: str, tensors: Tensors, bars: dict[str, Tensor]
) -> Tensors:
    """Outputs, and gradients under the names of their inputs with a "d" in front."""
    leaves = {n: x.clone().requires_grad_() for n, x in tensors.items()}
    outputs = call(**leaves)
    names = [spec.name for spec in op_named(op).outputs]
    named = dict(zip(names, outputs, strict=True))
    seeds = [bars[name].to(x) for name, x in named.items()]
    grads = torch.autograd.grad(outputs, [*leaves.values()], seeds)
    found = {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}
    return found | {name: x.detach() for name, x in named.items()}


def sequential(op: str, **options: Any) -> Kernel:
    """The sequential model of an op."""
    return model(op, "sequential", "plain", **options)


def parts_left_out(op: str) -> list[tuple[str, ...]]:
    """No state, all of it, and all but one part."""
    names = state_inputs(op_named(op))
    return [(), names, *((name,) for name in names)]


@pytest.mark.parametrize(
    ("op", "absent"), [(op, absent) for op in LOOPS for absent in parts_left_out(op)]
)
def test_model_and_loop_differ_by_fp64_rounding(
    op: str, absent: tuple[str, ...]
) -> None:
    """Both lie within a budget in fp64, so they differ by two of it."""
    tensors = draw(op, torch.float64)
    tensors = {n: x for n, x in tensors.items() if n not in absent}
    bars = cotangents_of(op)
    got = differentiated(sequential(op).call, op, tensors, bars)
    want = differentiated(LOOPS[op], op, tensors, bars)
    arrays = {n: x.numpy() for n, x in tensors.items()}
    named = {n: x.numpy() for n, x in bars.items()}
    contract = CONTRACTS.get(op, Contract())
    budget = budget_for(op_named(op), arrays, {}, contract, "fp64", named)
    allowed = budget.outputs | {f"d{n}": a for n, a in budget.gradients.items()}
    assert set(got) == set(want) == set(allowed)
    for name, allowance in allowed.items():
        assert got[name].shape == want[name].shape, name
        off = np.abs(got[name].numpy() - want[name].numpy())
        assert (off <= 2.0 * allowance.error).all(), name
        assert (allowance.error < 1e-9).all(), name


@pytest.mark.parametrize("op", LOOPS)
def test_absent_parts_of_a_state_are_zeros(op: str) -> None:
    """Leaving a part out gives what zeros give, bit by bit."""
    for absent in parts_left_out(op):
        given = draw(op, torch.bfloat16)
        left = {n: x for n, x in given.items() if n not in absent}
        zeros = {n: torch.zeros_like(given[n]) for n in absent}
        one, other = sequential(op).call(**left), sequential(op).call(**left, **zeros)
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("compute", ["fp32", "storage"])
@pytest.mark.parametrize("sizes", [(2, 0), (2, 1), (0, 3), (0, 0)])
@pytest.mark.parametrize("op", LOOPS)
def test_edge_sizes(op: str, sizes: tuple[int, int], compute: str) -> None:
    """T = 0, T = 1 and B = 0 give outputs and gradients of the right shapes."""
    about = {"B": sizes[0], "T": sizes[1]}
    tensors, bars = draw(op, torch.bfloat16, **about), cotangents_of(op, **about)
    got = differentiated(sequential(op, compute=compute).call, op, tensors, bars)
    for name, bar in bars.items():
        first = name == op_named(op).outputs[0].name
        assert got[name].shape == bar.shape
        assert got[name].dtype == (torch.bfloat16 if first else torch.float32)
    for name, x in tensors.items():
        assert (got[f"d{name}"].shape, got[f"d{name}"].dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize("op", LOOPS)
def test_a_sequence_resumes_from_all_parts_of_its_state(op: str) -> None:
    """Two calls that hand the state on give the bits of one."""
    tensors = draw(op, torch.float32)
    call, names = sequential(op).call, state_inputs(op_named(op))
    sequences = {s.name for s in op_named(op).inputs if "T" in s.axes}

    def part(tokens: slice) -> Tensors:
        return {n: x[:, tokens] if n in sequences else x for n, x in tensors.items()}

    whole = call(**tensors)
    o, *state = call(**part(slice(0, 4)))
    second = part(slice(4, 6)) | dict(zip(names, state, strict=True))
    rest, *last = call(**second)
    assert torch.equal(whole[0], torch.cat([o, rest], 1))
    assert all(torch.equal(*pair) for pair in zip(whole[1:], last, strict=True))


def judged(op: str, call: Loop, recipe: str, **options: bool) -> CaseReport:
    """The report on a kernel that declares nothing, in fp32 with gradients."""
    sizes = sizes_of(op, T=70, K=4)
    case = make_case(op, sizes, dtype="fp32", recipe=recipe, seed=3, options=options)
    kernel = Kernel(name="mine", op=op, call=call, gradients=True)
    contract = CONTRACTS.get(op, Contract())
    request = Request(contract=contract, gradients=True, runs=1)
    return check_case(kernel, case, request, cotangent_kind="dense")


RIGHT = [
    *((op, "gaussian_slow") for op in LOOPS),
    ("normalized_linear_attention", "cancelling_normaliser"),
    ("gated_delta_product", "repeated_keys"),
    ("gated_delta_product", "exact_dyadic"),
    ("mlstm", "exact_reset"),
    ("mlstm", "large_input_gates"),
    ("mlstm", "deep_forget_gates"),
]


@pytest.mark.parametrize(("op", "recipe"), RIGHT)
def test_a_right_loop_passes(op: str, recipe: str) -> None:
    """The definition in torch, with autograd, is within every budget."""
    state = dict.fromkeys(state_inputs(op_named(op)), True)
    report = judged(op, LOOPS[op], recipe, **state)
    assert report.verdict == "PASS", report.checks


def _ignores_first_sum(**given: Tensor) -> tuple[Tensor, ...]:
    given.pop("initial_key_sum", None)
    return normalized_linear_attention(**given)


def _short_sum(**given: Tensor) -> tuple[Tensor, ...]:
    return normalized_linear_attention(
        **given, stored_sum=lambda z: z.to(torch.bfloat16).float()
    )


def _sum_dropped_from_graph(**given: Tensor) -> tuple[Tensor, ...]:
    return normalized_linear_attention(**given, shown=lambda z: z.detach())


def _unscaled_floor(**given: Tensor) -> tuple[Tensor, ...]:
    """The normaliser without the scale of the read-out."""
    o, *state = normalized_linear_attention(**given)
    return o * given["q"].shape[3] ** 0.5, *state


@pytest.mark.parametrize(
    "call", [_ignores_first_sum, _short_sum, _sum_dropped_from_graph, _unscaled_floor]
)
def test_a_wrong_normaliser_is_red(call: Loop) -> None:
    """One that is forgotten, short, cut from the graph, or scaled otherwise."""
    op = "normalized_linear_attention"
    state = dict.fromkeys(state_inputs(op_named(op)), True)
    assert judged(op, call, "gaussian_slow", **state).verdict == "FAIL"


FAULTS = {
    "decays at every step": {"decays": lambda j: True},
    "decays at the last step": {"decays": lambda j: j == 1},
    "reads after the first step": {"reads_after": 0},
    "one beta a token": {"strength": lambda j: 0},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_order_of_steps_is_red(fault: str) -> None:
    """A decay, readout or strength of another step of the token."""

    def call(**given: Tensor) -> tuple[Tensor, ...]:
        return gated_delta_product(**given, **FAULTS[fault])

    report = judged("gated_delta_product", call, "gaussian_slow", initial_state=True)
    assert report.verdict == "FAIL"


LSTM_FAULTS = {
    "no stabiliser": ("large_input_gates", {"maximum": lambda kept, i: 0.0 * i}),
    "a floor of one": ("gaussian_slow", {"floor": torch.ones_like}),
    "no magnitude": ("gaussian_slow", {"size": lambda x: x}),
    "no log below": ("deep_forget_gates", {"log_gate": lambda f: f.sigmoid().log()}),
}


@pytest.mark.parametrize("fault", LSTM_FAULTS)
def test_a_wrong_stabiliser_is_red(fault: str) -> None:
    """One left out, a floor in other units, or a sign that is not taken off."""
    recipe, parts = LSTM_FAULTS[fault]

    def call(**given: Tensor) -> tuple[Tensor, ...]:
        return mlstm(**given, **parts)

    state = dict.fromkeys(state_inputs(op_named("mlstm")), True)
    assert judged("mlstm", call, recipe, **state).verdict in ("FAIL", "NONFINITE")
