"""The CPU model of selective_scan's CUDA backward, and how problems are taken apart."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scancheck.kernels.cuda import selective_scan_backward_instances as instances
from scancheck.kernels.cuda.selective_scan_instances import Problem
from scancheck.kernels.models.cuda_selective_scan_backward import Order, backward

ORDERS = (
    Order(rows=True, edge_steps=16, lanes=4, warps=4),
    Order(rows=True, edge_steps=32, lanes=4, warps=12),
    Order(rows=False, edge_steps=32, lanes=2, warps=4),
    Order(rows=False, edge_steps=32, lanes=4, warps=4),
)
Tensors = dict[str, torch.Tensor]


def whole(draw: torch.Generator, *shape: int) -> torch.Tensor:
    """Integers from -2 to 2: every sum of the tests is exact in fp32."""
    return torch.randint(-2, 3, shape, generator=draw).float()


def drawn(keys: str) -> Tensors:
    """Whole numbers, and A = 0, so that nothing is rounded."""
    draw = torch.Generator().manual_seed(0)
    batch, channels, steps, states = 2, 64, 40, 5
    row = (batch, channels, steps)
    shapes = {"grouped": (batch, 2, states, steps), "constant": (channels, states)}
    return {
        "u": whole(draw, *row),
        "delta": whole(draw, *row),
        "A": torch.zeros(channels, states),
        "B": whole(draw, *shapes[keys]),
        "C": whole(draw, batch, 2, states, steps),
        "D": whole(draw, channels),
        "delta_bias": whole(draw, channels),
        "initial_state": whole(draw, batch, channels, states),
    }


def scan(
    tensors: Tensors, softplus: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, the last state and all states [B, L + 1, D, N], step by step by torch."""
    d = tensors["delta"] + tensors["delta_bias"][None, :, None]
    if softplus:
        d = torch.nn.functional.softplus(d, threshold=100)
    u = tensors["u"]
    batch, channels, steps = u.shape

    def key(x: torch.Tensor, step: int) -> torch.Tensor:
        if x.ndim == 2:
            return x[None]
        return x[..., step].repeat_interleave(channels // x.shape[1], 1)

    states = [tensors["initial_state"]]
    outputs = []
    for step in range(steps):
        decay = torch.exp(d[:, :, step, None] * tensors["A"])
        drive = (d * u)[:, :, step, None] * key(tensors["B"], step)
        states.append(decay * states[-1] + drive)
        outputs.append((key(tensors["C"], step) * states[-1]).sum(-1))
    y = torch.stack(outputs, -1) + tensors["D"][None, :, None] * u
    if "z" in tensors:
        y = y * torch.nn.functional.silu(tensors["z"])
    return y, states[-1], torch.stack(states, 1)


def gradients(
    tensors: Tensors, y_bar: torch.Tensor, last_bar: torch.Tensor, softplus: bool
) -> tuple[Tensors, torch.Tensor]:
    """By torch's autograd in fp64, and the states."""
    exact = {name: x.double().requires_grad_() for name, x in tensors.items()}
    y, last, states = scan(exact, softplus)
    found = torch.autograd.grad(
        [y, last], list(exact.values()), [y_bar.double(), last_bar.double()]
    )
    return dict(zip(exact, found, strict=True)), states.detach()


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("keys", ["grouped", "constant"])
def test_whole_numbers_give_exact_gradients(order: Order, keys: str) -> None:
    """Where nothing is rounded the model has autograd's gradients, in every order."""
    tensors = drawn(keys)
    draw = torch.Generator().manual_seed(1)
    y_bar = whole(draw, *tensors["u"].shape)
    last_bar = whole(draw, *tensors["initial_state"].shape)
    expected, states = gradients(tensors, y_bar, last_bar, softplus=False)
    edges = states[:, : -1 : order.edge_steps].float()
    found = backward(order, edges, tensors, False, y_bar, last_bar)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient.double(), expected[name]), name


def test_gates_and_decays_lose_a_few_roundings() -> None:
    """With softplus, decays and z the gradients are fp32's: 2-norms within 8 u."""
    tensors = drawn("grouped")
    draw = torch.Generator().manual_seed(2)
    for name in ("u", "delta", "B", "C", "z"):
        tensors[name] = torch.randn(
            tensors[name if name != "z" else "u"].shape, generator=draw
        )
    tensors["A"] = -torch.exp(2 * torch.randn(tensors["A"].shape, generator=draw))
    y_bar = torch.randn(tensors["u"].shape, generator=draw)
    last_bar = torch.randn(tensors["initial_state"].shape, generator=draw)
    expected, states = gradients(tensors, y_bar, last_bar, softplus=True)
    order = ORDERS[0]
    edges = states[:, : -1 : order.edge_steps].float()
    found = backward(order, edges, tensors, True, y_bar, last_bar)
    for name, gradient in found.items():
        error = (gradient.double() - expected[name]).norm()
        assert error <= 8 * 2.0**-24 * expected[name].norm(), name


PROBLEMS = st.builds(
    Problem,
    batch=st.integers(1, 40),
    channels=st.integers(1, 3000),
    steps=st.integers(1, 200_000),
    states=st.integers(1, 256),
    groups=st.just(1),
    constant_b=st.booleans(),
    constant_c=st.booleans(),
    aligned=st.booleans(),
    shared=st.just(232_448),
    multiprocessors=st.just(132),
)


@settings(max_examples=60)
@given(problem=PROBLEMS, dtype=st.sampled_from(("fp32", "bf16")))
def test_slices_cover_the_problem_within_the_workspace(
    problem: Problem, dtype: str
) -> None:
    """Each step of each row is in one slice, later steps first, and sums fit 64 MiB."""
    instance = instances.chosen(problem, dtype, "fast")
    found = instances.slices(problem, instance)
    of_step = instances.step_bytes(problem, instance)
    covered: dict[slice, int] = {}
    for part in found:
        rows = (part.rows.start, part.rows.stop)
        assert part.begin % instance.edge_steps == 0
        assert part.end == covered.get(rows, problem.steps)
        covered[rows] = part.begin
        count = rows[1] - rows[0]
        bytes_ = count * (
            instances.row_bytes(problem) + of_step * (part.end - part.begin)
        )
        least = instances.row_bytes(problem) + of_step * instances.EDGE_STEPS
        assert bytes_ <= max(instances.WORKSPACE, least)
    assert sorted(covered) == [
        (row, min(row + max(b - a for a, b in covered), problem.batch))
        for row in range(0, problem.batch, max(b - a for a, b in covered))
    ]
    assert set(covered.values()) == {0}


def test_rows_need_whole_vectors_and_sixteen_channels() -> None:
    """The kernel for many channels is chosen for what it can take, and else not."""
    problem = Problem(
        batch=16,
        channels=1536,
        steps=2048,
        states=16,
        groups=1,
        constant_b=False,
        constant_c=False,
        aligned=True,
        shared=232_448,
        multiprocessors=132,
    )
    chosen = instances.chosen(problem, "bf16", "fast")
    assert "rows" in chosen.expression
    assert chosen.shared <= problem.shared
    for change in (
        {"states": 17},
        {"aligned": False},
        {"channels": 1544},
        {"constant_c": True},
        {"shared": 100_000},
    ):
        other = instances.chosen(replace(problem, **change), "bf16", "fast")
        assert "steps" in other.expression
    for dtype in ("fp32", "fp16", "bf16"):
        assert chosen.expression in set(instances.instances())
        assert instances.key_sum(dtype) in set(instances.instances())
