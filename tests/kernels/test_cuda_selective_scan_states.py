"""State formats of the CUDA selective_scan: contracts, model, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.errors import CaseInvalid
from scancheck.formats import format_named, round_array
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.kernels.cuda import selective_scan_backward_instances
from scancheck.kernels.cuda.catalog import kernels
from scancheck.kernels.cuda.selective_scan_instances import (
    STATE_STEPS,
    STATES,
    STORAGE,
    Problem,
    candidates,
    instances,
)
from scancheck.kernels.cuda.selective_scan_kernels import selective_scan
from scancheck.kernels.models import cuda_selective_scan as model

SHORT = STATES[1:]


def modelled(state: str) -> Kernel:
    """The forward pass of that state with its CPU model in its place."""
    kernel = selective_scan("reproducible", "sequential", state=state)

    def call(
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
        given = (u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)
        return model.selective_scan("sequential", "reproducible", *given, state=state)

    return replace(
        kernel, call=call, devices=("cpu",), unavailable=None, gradients=False
    )


@pytest.mark.parametrize("state", SHORT)
def test_states_are_rounded_every_so_many_steps(state: str) -> None:
    """Where nothing else rounds, the model gives the sums of rounded states."""
    draw = np.random.default_rng(0)
    batch, channels, steps, states = 2, 5, 3 * STATE_STEPS + 7, 12

    def whole(*shape: int) -> Any:
        return draw.integers(-15, 16, shape).astype(np.float64)

    u, delta = whole(batch, channels, steps), whole(batch, channels, steps)
    B, C = whole(batch, states, steps), np.sign(whole(batch, states, steps))
    h = whole(batch, channels, states)
    given = [u, delta, np.zeros((channels, states)), B, C]
    tensors = [torch.from_numpy(x).float() for x in (*given, h)]
    call = modelled(state).call
    names = ("u", "delta", "A", "B", "C", "initial_state")
    y, last = call(**dict(zip(names, tensors, strict=True)))
    expected, rounded = np.empty_like(u), 0
    for t in range(steps):
        if t > 0 and t % STATE_STEPS == 0:
            kept = round_array(format_named(state), h)
            rounded += int((kept != h).sum())
            h = kept
        written = (delta[..., t] * u[..., t])[..., None] * B[:, None, :, t]
        h = h + written
        expected[..., t] = (C[:, None, :, t] * h).sum(-1)
    assert rounded > 100
    assert np.array_equal(y.numpy(), expected)
    assert np.array_equal(last.numpy(), h)


@pytest.mark.slow
@pytest.mark.parametrize("state", SHORT)
def test_model_passes_under_its_contract(state: str) -> None:
    """Quick profile, outputs."""
    result = verify(modelled(state), dtypes=["fp32"])
    assert result.verdict == "PASS", result.explain()


def verdict(kernel: Kernel, **claims: Any) -> str:
    """Of one case in fp32 under the kernel's contract with other claims."""
    assert kernel.contract is not None
    case = make_case(
        "selective_scan",
        {"B": 1, "D": 16, "L": 200, "N": 4},
        recipe="gaussian_slow",
        seed=0,
    )
    contract = replace(kernel.contract, **claims)
    return str(check_case(kernel, case, Request(contract=contract)).verdict)


@pytest.mark.parametrize(
    ("state", "claims"),
    [
        ("bf16", {"state": "compute", "state_every": 1}),
        ("fp16", {"state": "compute", "state_every": 1}),
        ("bf16", {"state": "fp16"}),
        ("bf16", {"state_every": 4 * STATE_STEPS}),
    ],
)
def test_a_wrong_claim_fails(state: str, claims: dict[str, Any]) -> None:
    """A longer state, or one that is rounded less often, is more than there is."""
    assert verdict(modelled(state)) == "PASS"
    assert verdict(modelled(state), **claims) == "FAIL"


@pytest.mark.parametrize("dtype", STORAGE)
def test_passes_agree_where_the_state_is_rounded(dtype: str) -> None:
    """Both passes go in tiles of STATE_STEPS, whatever the shape."""
    found = set(instances())
    for states, channels, constant in ((16, 1536, False), (40, 3, True)):
        problem = Problem(
            batch=16,
            channels=channels,
            steps=64,
            states=states,
            groups=1,
            constant_b=constant,
            constant_c=False,
            aligned=True,
            shared=232_448,
            state="bf16",
        )
        (forward,) = candidates(problem, dtype, "fast")
        assert forward.expression in found
        assert "selective_scan_steps" in forward.expression
        back = selective_scan_backward_instances.chosen(problem, dtype, "fast")
        assert back.edge_steps == STATE_STEPS


def test_names_and_contracts_tell_the_state() -> None:
    """As those of the models do."""
    names = {kernel.name for kernel in kernels()}
    for state in SHORT:
        kernel = selective_scan("reproducible", "sequential", state=state)
        assert kernel.name in names
        assert kernel.name.endswith(f".sequential.reproducible.state_{state}.every_32")
        assert kernel.contract is not None
        assert (kernel.contract.state, kernel.contract.state_every) == (state, 32)


@pytest.mark.parametrize(
    ("variant", "order", "state", "words"),
    [
        ("plain", None, "fp32", "variant: expected one of fast, .*; got 'plain'"),
        ("fast", "tree", "fp32", "order: expected one of .*time; got 'tree'"),
        ("fast", "sequential", "fp64", "state: expected one of fp32, .*; got 'fp64'"),
        ("fast", "time", "bf16", "state: expected fp32 with order time and fast"),
        ("fast", None, "bf16", "state: expected fp32 with order None and fast"),
        ("accurate", "sequential", "fp16", "state: expected fp32 .* and accurate"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(
    variant: str, order: str | None, state: str, words: str
) -> None:
    """The message names it and says what there is."""
    with pytest.raises(CaseInvalid, match=f"selective_scan {words}"):
        selective_scan(variant, order, state=state)
