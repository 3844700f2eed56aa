"""retention whose decays are exponentials of rounded logs, as fla's token by token."""

from collections.abc import Callable

import pytest
import torch

from scancheck.case import make_case
from scancheck.checks.experiments import passing_contracts
from scancheck.checks.oracle import CaseReport, Request, check_case
from scancheck.contract import Contract, parse_contract
from scancheck.gate.verify import verify
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.constant_decays import by_exponentials, has_constant_decays
from scancheck.verdict import Verdict

DECLARED = parse_contract("structure=sequential,constant_decay=exp")
HEADS = 6

Tensor = torch.Tensor
Decays = Callable[[int], Tensor]


def lost(heads: int, first: float = -5.0) -> Tensor:
    """2^(-5-j)."""
    return torch.exp2(first - torch.arange(heads, dtype=torch.float32))


def as_fla(heads: int) -> Tensor:
    """Exp of the log, both in fp32: an ulp off, as NumPy's and CUDA's exp are here."""
    return torch.nextafter((1 - lost(heads)).log().exp(), torch.ones(heads))


def of_other_heads(heads: int) -> Tensor:
    """1 - 2^(-4-j), a head too early."""
    return (1 - lost(heads, -4.0)).log().exp()


def in_bf16(heads: int) -> Tensor:
    """Rounded to 8 bits, which hold those of the first heads alone."""
    return as_fla(heads).bfloat16().float()


def of_a_log_in_fp16(heads: int) -> Tensor:
    """Exp of a log that has 11 bits."""
    return (1 - lost(heads)).log().half().float().exp()


def retention(decays: Decays) -> Callable[..., tuple[Tensor, Tensor]]:
    """Token by token in fp32, with these decays."""

    def call(
        *, q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        batch, steps, heads, lanes = v.shape
        shared = heads // k.shape[2]
        q, k = (x.float().repeat_interleave(shared, dim=2) for x in (q, k))
        state = torch.zeros(batch, heads, k.shape[3], lanes)
        if initial_state is not None:
            state = initial_state.clone()
        decay = decays(heads)[None, :, None, None]
        read = [torch.empty(batch, 0, heads, lanes)]
        for t in range(steps):
            state = state * decay + k[:, t, :, :, None] * v[:, t, :, None].float()
            scaled = q[:, t] * k.shape[3] ** -0.5
            read.append((state * scaled[..., None]).sum(2)[:, None])
        return torch.cat(read, 1).to(v.dtype), state

    return call


def report(decays: Decays, contract: Contract, tokens: int = 200) -> CaseReport:
    """On values that all heads remember."""
    kernel = Kernel(name="mine", op="retention", call=retention(decays))
    sizes = {"B": 2, "T": tokens, "H": HEADS, "HV": HEADS, "K": 8, "V": 8}
    case = make_case(
        "retention",
        sizes,
        dtype="fp32",
        recipe="gaussian_slow",
        seed=5,
        options={"initial_state": True},
    )
    return check_case(kernel, case, Request(contract=contract, runs=1))


def test_exponentials_of_rounded_logs_pass_where_that_is_declared() -> None:
    """In every recipe, exact ones and what rho judges too."""
    found = verify(
        retention(as_fla),
        op="retention",
        dtypes=["fp32"],
        contract=DECLARED,
        gradients=True,
    )
    assert found, found.explain()


def test_undeclared_they_are_red_and_the_contract_is_named() -> None:
    """The decay itself is exact in fp32: one step shows that it was not used."""
    claim = Contract(structure=DECLARED.structure)
    found = report(as_fla, claim, tokens=1)
    assert found.verdict is Verdict.FAIL
    assert passing_contracts(found, claim)["constant_decay=exp"]
    exact = report(lambda heads: 1 - lost(heads), claim, tokens=1)
    assert exact.verdict is Verdict.PASS


@pytest.mark.parametrize("decays", [of_other_heads, in_bf16, of_a_log_in_fp16])
def test_other_decays_stay_wrong(decays: Decays) -> None:
    """By far more than a few ulps."""
    assert report(decays, DECLARED).verdict is Verdict.FAIL


def test_only_retention_has_decays_that_could_be_either() -> None:
    """lightning_attention's are exponentials by definition, simple_gla's are given."""
    assert has_constant_decays(op_named("retention"))
    for name in ("lightning_attention", "simple_gla", "linear_attention", "ssd"):
        op = op_named(name)
        assert not has_constant_decays(op)
        assert by_exponentials(op) is op
