"""The CPU model of the CUDA selective_scan, and how calls are mapped to its kernels."""

from typing import Any

import numpy as np
import pytest
import torch

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda import selective_scan as launcher
from scancheck.kernels.cuda.selective_scan_instances import (
    ORDERS,
    STORAGE,
    VARIANTS,
    Problem,
    blocks,
    candidates,
    chosen,
    instances,
)
from scancheck.kernels.cuda.selective_scan_problem import problem_of
from scancheck.kernels.models.cuda_selective_scan import selective_scan

Tensors = dict[str, torch.Tensor]


def whole(draw: torch.Generator, *shape: int) -> torch.Tensor:
    """Integers from -3 to 3: every sum of the tests is exact in fp32."""
    return torch.randint(-3, 4, shape, generator=draw).float()


def drawn(
    keys: str, batch: int, channels: int, steps: int, states: int, seed: int = 0
) -> Tensors:
    """Whole numbers, and A = 0, so that states are sums without a rounding."""
    draw = torch.Generator().manual_seed(seed)
    row = (batch, channels, steps)
    shapes = {
        "time": (batch, states, steps),
        "grouped": (batch, 2, states, steps),
        "constant": (channels, states),
    }
    return {
        "u": whole(draw, *row),
        "delta": whole(draw, *row),
        "A": torch.zeros(channels, states),
        "B": whole(draw, *shapes[keys]),
        "C": whole(draw, *shapes["time" if keys == "constant" else keys]),
        "D": whole(draw, channels),
        "delta_bias": whole(draw, channels),
        "initial_state": whole(draw, batch, channels, states),
    }


def summed(tensors: Tensors) -> tuple[np.ndarray, np.ndarray]:
    """y and the last state in int64, without decay, z and softplus."""
    x = {name: tensor.numpy().astype(np.int64) for name, tensor in tensors.items()}
    batch, channels, steps = x["u"].shape
    d = x["delta"] + x["delta_bias"][None, :, None]

    def keys(name: str) -> np.ndarray:
        key = x[name]
        if key.ndim == 2:
            return np.broadcast_to(key[None, :, :, None], (batch, *key.shape, steps))
        if key.ndim == 3:
            key = key[:, None]
        return np.repeat(key, channels // key.shape[1], axis=1)

    drives = (d * x["u"])[:, :, None] * keys("B")
    h = x["initial_state"][..., None] + np.cumsum(drives, axis=-1)
    y = (keys("C") * h).sum(2) + x["D"][None, :, None] * x["u"]
    return y, h[..., -1]


@pytest.mark.parametrize("keys", ["time", "grouped", "constant"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("states", [1, 16, 21])
def test_model_is_exact_without_rounding(order: str, keys: str, states: int) -> None:
    """In every order and layout the model sums whole numbers exactly, tails too."""
    if order == "time" and keys == "constant":
        pytest.skip("in the order of time B and C vary in time")
    tensors = drawn(keys, 2, 4, 150, states)
    y, last_state = selective_scan(order, "reproducible", **tensors)
    expected_y, expected_state = summed(tensors)
    np.testing.assert_array_equal(y.numpy(), expected_y)
    np.testing.assert_array_equal(last_state.numpy(), expected_state)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_model_of_few_steps(steps: int) -> None:
    """No step leaves the initial state, and one or two are those of the definition."""
    tensors = drawn("time", 1, 2, steps, 3)
    y, last_state = selective_scan("sequential", "accurate", **tensors)
    if steps:
        expected_y, expected_state = summed(tensors)
        np.testing.assert_array_equal(y.numpy(), expected_y)
        np.testing.assert_array_equal(last_state.numpy(), expected_state)
    else:
        assert y.shape == (1, 2, 0)
        assert torch.equal(last_state, tensors["initial_state"])


def test_accurate_model_keeps_slow_gates() -> None:
    """With |A| of 2e-4 the accurate states are 30 times closer than the plain ones."""
    draw = torch.Generator().manual_seed(0)
    channels, steps = 8, 2000
    tensors = {
        "u": torch.randn(1, channels, steps, generator=draw),
        "delta": torch.full((1, channels, steps), 0.1),
        "A": torch.full((channels, 1), -2e-4),
        "B": torch.ones(1, 1, steps),
        "C": torch.ones(1, 1, steps),
    }
    u = tensors["u"].double().numpy()
    d, a = float(tensors["delta"][0, 0, 0]), float(tensors["A"][0, 0])
    h = np.zeros((1, channels))
    for t in range(steps):
        h = np.exp(d * a) * h + d * u[:, :, t]
    errors = {}
    for variant in ("reproducible", "accurate"):
        _, last_state = selective_scan("sequential", variant, **tensors)
        errors[variant] = np.linalg.norm(last_state.numpy()[..., 0] - h)
    assert errors["accurate"] * 30 < errors["reproducible"]


def problem(**changes: Any) -> Problem:
    """A problem that every kernel takes."""
    values: dict[str, Any] = {
        "batch": 2,
        "channels": 1536,
        "steps": 64,
        "states": 16,
        "groups": 1,
        "constant_b": False,
        "constant_c": False,
        "aligned": True,
        "shared": 232448,
    }
    return Problem(**(values | changes))


PROBLEMS = [
    problem(),
    problem(batch=16),
    problem(aligned=False),
    problem(states=1),
    problem(states=256),
    problem(states=17, aligned=False),
    problem(constant_b=True),
    problem(constant_c=True, states=100),
    problem(groups=3),
    problem(channels=7),
    problem(batch=64, shared=101376),
]


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", PROBLEMS, ids=str)
def test_every_problem_has_its_kernel(case: Problem, variant: str, dtype: str) -> None:
    """Candidates fit the device, are among the instances and cover all channels."""
    found = candidates(case, dtype, variant)
    assert found[0] == chosen(case, dtype, variant)
    assert any(instance.order == "sequential" for instance in found)
    for instance in found:
        assert instance.shared <= case.shared
        assert instance.expression in set(instances())
        covered = blocks(case, instance) * instance.channels
        assert covered >= case.batch * case.channels
        assert instance.threads % 32 == 0


def test_order_in_time_takes_no_constant_keys() -> None:
    """An order that does not take the problem is refused by name."""
    with pytest.raises(CaseInvalid, match="order time"):
        chosen(problem(constant_b=True), "fp32", "fast", "time")


def layouts(**changes: tuple[int, ...]) -> dict[str, torch.Tensor | None]:
    """Tensors of a small problem, some of another shape."""
    shapes: dict[str, tuple[int, ...]] = {
        "u": (2, 6, 8),
        "delta": (2, 6, 8),
        "z": (2, 6, 8),
        "B": (2, 3, 4, 8),
        "C": (2, 3, 4, 8),
        "A": (6, 4),
        "D": (6,),
        "delta_bias": (6,),
        "initial_state": (2, 6, 4),
    }
    return {name: torch.zeros(shape) for name, shape in (shapes | changes).items()}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("u", (6, 8)),
        ("delta", (2, 6, 9)),
        ("z", (2, 6)),
        ("A", (6, 257)),
        ("A", (5, 4)),
        ("B", (2, 4, 4, 8)),
        ("B", (8,)),
        ("C", (2, 3, 5, 8)),
        ("C", (2, 2, 4, 8)),
        ("D", (4,)),
        ("delta_bias", (1, 6)),
        ("initial_state", (2, 4, 6)),
    ],
)
def test_wrong_shapes_are_named(name: str, shape: tuple[int, ...]) -> None:
    """A tensor of a wrong shape is refused by its name before anything is launched."""
    with pytest.raises(CaseInvalid, match=f"selective_scan {name}: expected"):
        problem_of(layouts(**{name: shape}), 232448)


def test_problem_of_a_call() -> None:
    """Sizes, groups and alignment are told from the tensors."""
    found = problem_of(layouts(), 232448)
    assert (found.batch, found.channels, found.steps) == (2, 6, 8)
    assert (found.states, found.groups) == (4, 3)
    assert found.aligned and not found.constant_b
    odd = dict.fromkeys(("u", "delta", "z"), (2, 6, 9))
    found = problem_of(layouts(**odd, B=(6, 4), C=(2, 4, 9)), 232448)
    assert not found.aligned and found.constant_b and found.groups == 1


def test_tensors_on_the_cpu_are_refused() -> None:
    """A call with CPU tensors says which tensor is not on the device."""
    tensors = {k: v for k, v in layouts().items() if v is not None}
    with pytest.raises(CaseInvalid, match="selective_scan u: expected a CUDA tensor"):
        launcher.selective_scan("fast", None, **tensors)
