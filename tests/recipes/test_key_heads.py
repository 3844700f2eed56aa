"""Kernels that take as many key heads as value heads."""

import pytest
import torch

from scancheck import verify
from scancheck.campaign.stream import domain_of, run_round
from scancheck.campaign.trial import Judged, Trial
from scancheck.contract import Contract, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import accepts_everything
from scancheck.recipes.key_heads import NOT_JUDGED, takes_own_keys
from scancheck.verdict import Verdict

OP = "simple_gla"
OWN = "heads=one_to_one"


def heads_differ(case: object) -> bool:
    """Whether value heads share a key head."""
    sizes = dict(case.sizes)  # type: ignore[attr-defined]
    return bool(sizes["H"] != sizes["HV"])


def own_keys(q, k, v, g, initial_state=None):  # type: ignore[no-untyped-def]
    """A simple gated linear attention without shared keys, by token in fp32."""
    if q.shape[2] != v.shape[2]:
        raise ValueError("as many key heads as value heads, please")
    state = q.new_zeros(*g.shape[::2], q.shape[3], v.shape[3], dtype=torch.float32)
    state = state if initial_state is None else initial_state.clone()
    outputs = [torch.zeros_like(v[:, :0])]
    for t in range(q.shape[1]):
        state = g[:, t, :, None, None].float().exp() * state
        state = state + k[:, t, :, :, None].float() * v[:, t, :, None].float()
        read = (q[:, t, :, :, None].float() * state).sum(2) * q.shape[3] ** -0.5
        outputs.append(read[:, None].to(v.dtype))
    return torch.cat(outputs, 1), state


def test_cases_share_no_key_heads() -> None:
    """All of a list, and what else they are is the same."""
    accepts = accepts_everything(OP)
    shared = case_list(OP, "fp32", accepts=accepts, empty=True)
    own = case_list(OP, "fp32", accepts=accepts, empty=True, one_to_one=True)
    assert any(map(heads_differ, shared))
    assert not any(map(heads_differ, own))
    assert len(own) == len(shared)
    for left, right in zip(shared, own, strict=True):
        there = dict(left.sizes)
        assert dict(right.sizes) == there | {"H": there["HV"]}
        assert (left.recipe, left.options) == (right.recipe, right.options)


def test_trials_share_no_key_heads() -> None:
    """Neither do those of a fuzz campaign."""
    kernel = Kernel(name="own", op=OP, call=own_keys)
    found = {}
    for one_to_one in (False, True):
        domain = domain_of(
            kernel,
            op_named(OP),
            dtypes=("fp32",),
            profile="quick",
            gradients=False,
            accepted=accepts_everything(OP),
            required=frozenset(),
            chunk=64,
            one_to_one=one_to_one,
        )
        drawn: list[Trial] = []

        def judge(trial: Trial, drawn: list[Trial] = drawn) -> Judged:
            drawn.append(trial)
            return Judged(trial=trial, verdict=Verdict.PASS)

        run_round(domain, 0, 0, 20, judge)
        found[one_to_one] = any(heads_differ(trial.case) for trial in drawn)
    assert found == {False: True, True: False}


def test_such_a_kernel_passes_once_its_contract_says_so() -> None:
    """Without the contract it raises; with it, what was not judged is told."""
    without = verify(own_keys, op=OP).record
    assert without.verdict == "ERROR"
    assert "as many key heads" in without.findings[0].reason
    record = verify(own_keys, op=OP, contract=OWN).record
    assert record.verdict == "PASS"
    assert NOT_JUDGED in record.not_judged


def test_heads_belong_to_ops_that_have_two_kinds() -> None:
    """The message names the argument, what is expected, and what came."""
    with pytest.raises(CaseInvalid, match=r"contract heads: expected shared.*rwkv6"):
        verify("model.rwkv6.sequential.plain", contract=OWN)
    with pytest.raises(CaseInvalid, match=r"contract heads: expected one of shared"):
        parse_contract("heads=none")
    assert takes_own_keys(op_named(OP), parse_contract(OWN).heads)
    assert not takes_own_keys(op_named(OP), Contract().heads)
