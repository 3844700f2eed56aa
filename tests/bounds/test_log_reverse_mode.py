"""Reverse mode through a log-cumsum-exp is inside log=full: logs from the start."""

from itertools import product

import numpy as np
import pytest
import torch
from machines.emulator import WIDE
from machines.log_forms import Program, reverse_mode
from machines.trial import LINEAR_SCAN, Data, allowances, exact, machine, ratios
from numpy.typing import NDArray

from scancheck.bounds import log_reverse_mode as reverse
from scancheck.bounds.budget import Budget, budget_for
from scancheck.contract import Contract, ErrorModel, Structure
from scancheck.formats import FORMATS, FP32, Format, round_array

FloatArray = NDArray[np.float64]

GATES = {
    "near one": lambda rng, shape: -(2.0 ** -rng.uniform(8, 24, shape)),
    "moderate": lambda rng, shape: -rng.uniform(0.05, 0.8, shape),
    "strong": lambda rng, shape: -rng.uniform(2, 6, shape),
    "mixed": lambda rng, shape: -np.exp(rng.normal(-2, 2.5, shape)),
    # c is large from the first step on: what only a count from the start sees.
    "strong at first": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None] == 0, -4000.0, -rng.uniform(0.01, 0.1, shape)
    ),
    "strong at last": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None] == shape[0] - 1, -4000.0, np.full(shape, -0.05)
    ),
    "regrow": lambda rng, shape: (
        np.where(np.arange(shape[0])[:, None] % 16 < 8, -9.0, 9.0)
        * rng.uniform(0.9, 1, shape)
    ),
    "growth": lambda rng, shape: rng.uniform(0, 2.0, shape),
    "reset": lambda rng, shape: np.where(rng.random(shape) < 0.1, -1e4, -0.1),
}
DRIVES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "wide": lambda rng, shape: (
        rng.choice([-1.0, 1.0], shape) * np.exp(rng.normal(0, 5, shape))
    ),
    "small": lambda rng, shape: rng.normal(size=shape) * 2.0**-115,
}


def drawn(gates: str, drive: str, fmt: Format, steps: int) -> tuple[FloatArray, Data]:
    """Log gates, and the scan that they stand for; nothing is zero."""
    rng = np.random.default_rng([9, steps])
    g = round_array(fmt, GATES[gates](rng, (steps, 4)))
    b = round_array(fmt, DRIVES[drive](rng, g.shape))
    s = round_array(fmt, DRIVES[drive](rng, (4,)))
    ybar, last = (round_array(fmt, rng.normal(size=v.shape)) for v in (b, s))
    with np.errstate(under="ignore"):
        return g, Data(a=np.exp(g.astype(WIDE)), b=b, s=s, ybar=ybar, last_bar=last)


def bounded(g: FloatArray, data: Data, contract: Contract, fmt: Format) -> Budget:
    """The budget of the scan given by log gates."""
    tensors = {"g": g[None], "b": data.b[None], "initial_state": data.s[None]}
    return budget_for(LINEAR_SCAN, tensors, {}, contract, fmt.name, data.cotangents)


def contract_for(fmt: Format, mode: str, *, tree: bool) -> Contract:
    """log=full; adversaries get the default error models."""
    fair = ErrorModel(e0=1.01) if mode in ("nearest", "flush") else None
    return Contract(
        compute=fmt.name,
        log="full",
        gate_gradient="reverse_cumsum",
        structure=Structure(kind="tree" if tree else "sequential"),
        ftz="yes" if mode == "flush" else "no",
        exp=fair or Contract().exp,
        ln=fair or Contract().ln,
    )


def exactly(data: Data) -> dict[str, FloatArray]:
    """Outputs and gradients in wide arithmetic."""
    want = exact(data)
    want["g"] = want.pop("a") * data.a
    return want


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("split", [False, True])
def test_no_program_exceeds_its_budget(gates: str, split: bool) -> None:
    """Nearest, flushed and adversarial, in order and trees, one sum or one a sign.

    A result that is not finite has been predicted.
    """
    modes = ("nearest", "away") if split else ("nearest", "flush", "away", "random")
    dtypes = ("fp32",) if split else ("fp32", "bf16")
    for dtype, tree, mode in product(dtypes, (False, True), modes):
        fmt = FORMATS[dtype]
        m, contract = machine(fmt, mode), contract_for(fmt, mode, tree=tree)
        m.exp_error = (contract.exp.e0, contract.exp.e1)
        m.ln_error = (contract.ln.e0, contract.ln.e1)
        for drive in DRIVES if mode in ("nearest", "flush") else ("wide",):
            g, data = drawn(gates, drive, fmt, 21)
            allowed = allowances(bounded(g, data, contract, fmt))
            wide = WIDE if m.exact else float
            log, x, s, ybar, last = (
                np.asarray(v, wide)
                for v in (g, data.b, data.s, data.ybar, data.last_bar)
            )
            p = Program(form="full", chunk=21, tree=tree)
            with np.errstate(all="ignore"):
                got = reverse_mode(m, p, log, x, s, (ybar, last), split=split)
                want = exactly(data)
                # A state that cancels to zero has no logarithm, nor have gradients.
                kept = np.all(np.asarray(got["h"]) != 0.0, axis=0)
                assert kept.any() or dtype == "bf16"
                for tensor, values in got.items():
                    values = np.where(kept, values, want[tensor])
                    ratio = np.max(ratios(values, want[tensor], allowed[tensor]))
                    assert ratio <= 1.0, (dtype, tree, mode, drive, tensor)


def by_torch(g: FloatArray, data: Data) -> dict[str, FloatArray]:
    """Automatic differentiation of the scan by torch's logcumsumexp, in fp32."""
    log, x, s = (
        torch.tensor(v, dtype=torch.float32, requires_grad=True)
        for v in (g, data.b, data.s)
    )
    items = torch.cat([s[None], x])
    sums = torch.cat([torch.zeros_like(s)[None], log.cumsum(0)])
    logs = torch.log(torch.complex(items, torch.zeros_like(items))) - sums
    h = torch.exp(sums + torch.logcumsumexp(logs, 0)).real[1:]
    bars = torch.tensor(data.ybar, dtype=torch.float32)
    bars[-1] += torch.tensor(data.last_bar, dtype=torch.float32)
    h.backward(bars)
    grads = {"g": log.grad, "b": x.grad, "initial_state": s.grad}
    assert all(v is not None for v in grads.values())
    return {name: np.asarray(v, dtype=np.float64) for name, v in grads.items()}


def test_torch_is_inside_and_a_count_from_the_end_alone_would_not_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """db of torch with c large from the start: 0.01 to 1 of E, 10 E of the explicit."""
    g, data = drawn("strong at first", "normal", FP32, 64)
    contract = contract_for(FP32, "away", tree=False)
    with_both = allowances(bounded(g, data, contract, FP32))
    got, want = by_torch(g, data), exactly(data)
    for tensor, values in got.items():
        assert np.max(ratios(values, want[tensor], with_both[tensor])) <= 1.0, tensor
    assert np.max(ratios(got["b"], want["b"], with_both["b"])) > 0.01

    def nothing(*_: object) -> None:
        """Leaves the bound of reverse mode at zero."""

    monkeypatch.setattr(reverse, "run_from_start", nothing)
    from_the_end = allowances(bounded(g, data, contract, FP32))["b"]
    assert np.max(ratios(got["b"], want["b"], from_the_end)) > 10.0


def test_a_gradient_that_misses_a_token_is_still_wrong() -> None:
    """A cotangent left out is hundreds of budgets away with gates of every day."""
    g, data = drawn("moderate", "normal", FP32, 64)
    contract = contract_for(FP32, "away", tree=False)
    allowed, want = allowances(bounded(g, data, contract, FP32))["b"], exactly(data)
    missing = np.asarray(data.ybar).copy()
    missing[40] = 0.0
    late = Data(a=data.a, b=data.b, s=data.s, ybar=missing, last_bar=data.last_bar)
    wrong = exactly(late)["b"]
    assert np.max(ratios(wrong, want["b"], allowed)) > 100.0


def test_tiles_do_not_change_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count from the start goes on across the engine's tiles."""
    g, data = drawn("mixed", "normal", FP32, 50)
    contract = contract_for(FP32, "away", tree=True)
    whole = bounded(g, data, contract, FP32).gradients
    monkeypatch.setattr("scancheck.oracles.engine.TILE_ENTRIES", 3 * 7)
    tiled = bounded(g, data, contract, FP32).gradients
    for name in ("b", "initial_state"):
        assert np.array_equal(tiled[name].error, whole[name].error), name


def test_no_token_is_a_logarithm_and_back() -> None:
    """T = 0: exp(log S_0) and its cotangent, in torch, within budgets above zero."""
    g, data = drawn("moderate", "normal", FP32, 0)
    contract = contract_for(FP32, "away", tree=False)
    budget = bounded(g, data, contract, FP32)
    s = torch.tensor(data.s, dtype=torch.float32, requires_grad=True)
    final = torch.exp(torch.log(torch.complex(s, torch.zeros_like(s)))).real
    final.backward(torch.tensor(data.last_bar, dtype=torch.float32))
    assert s.grad is not None
    for got, want, allowed in (
        (final.detach(), data.s, budget.outputs["final_state"]),
        (s.grad, data.last_bar, budget.gradients["initial_state"]),
    ):
        off = np.abs(np.asarray(got, dtype=np.float64) - want)
        assert np.all(allowed.error[0] > 0.0)
        assert np.all(off <= allowed.error[0])
        assert np.all(allowed.error[0] < 1e-5 * np.abs(want))
