"""Kernels that take some sizes alone, and say so."""

import pytest
import torch

from scancheck import verify
from scancheck.campaign.stream import domain_of, run_round
from scancheck.campaign.trial import Judged, Trial
from scancheck.contract import parse_contract
from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.build import build
from scancheck.recipes.case_list import case_list
from scancheck.recipes.catalog import RECIPES, accepts_everything
from scancheck.recipes.taken_sizes import TakenSizes, taken_sizes
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
    own = case_list(
        OP, "fp32", accepts=accepts, empty=True, taken=TakenSizes(one_to_one=True)
    )
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
            taken=TakenSizes(one_to_one=one_to_one),
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
    (told,) = TakenSizes(one_to_one=True).left_out(("fp32",))
    assert told in record.not_judged


def test_heads_belong_to_ops_that_have_two_kinds() -> None:
    """The message names the argument, what is expected, and what came."""
    with pytest.raises(CaseInvalid, match=r"contract heads: expected shared.*rwkv6"):
        verify("model.rwkv6.sequential.plain", contract=OWN)
    with pytest.raises(CaseInvalid, match=r"contract heads: expected one of shared"):
        parse_contract("heads=none")
    kernel, op = Kernel(name="own", op=OP, call=own_keys), op_named(OP)
    for text, expected in ((OWN, True), ("default", False)):
        contract = parse_contract(text)
        taken = taken_sizes(kernel, op, contract, gradients=True)
        assert taken.one_to_one is expected


def in_blocks(q, k, v, g, initial_state=None):  # type: ignore[no-untyped-def]
    """The same, for widths that are multiples of a block."""
    for name, x, block in (("q", q, 16), ("v", v, 8)):
        if x.shape[3] % block:
            raise ValueError(f"{name}: a width of {x.shape[3]}")
    return own_keys(q, k, v, g, initial_state)


def test_kernels_in_blocks_are_judged_with_widths_that_they_take() -> None:
    """Under a contract that says which; the run tells what it did not judge."""
    assert verify(in_blocks, op=OP, contract=OWN).record.verdict == "ERROR"
    record = verify(in_blocks, op=OP, contract=f"{OWN},widths=K:16+V:8").record
    assert record.verdict == "PASS"
    for name, block in (("K", 16), ("V", 8)):
        told = f"{name} that is no multiple of {block}: contract widths={name}:{block}"
        assert told in record.not_judged


@pytest.mark.parametrize("block", [2, 8, 16, 32, 48])
def test_exact_cases_keep_a_width_whose_root_is_exact(block: int) -> None:
    """Or are left out, where no multiple of the block is a power of four."""
    accepts = accepts_everything(OP)
    plain = case_list(OP, "fp32", accepts=accepts, profile="full")
    taken = TakenSizes(widths=(("K", block),))
    cases = case_list(OP, "fp32", accepts=accepts, profile="full", taken=taken)
    widths = [dict(case.sizes)["K"] for case in cases]
    assert all(width % block == 0 for width in widths)
    exact = [w for w, c in zip(widths, cases, strict=True) if RECIPES[c.recipe].exact]
    assert all(w in (4, 16, 64, 256) for w in exact)
    were_exact = sum(RECIPES[case.recipe].exact for case in plain)
    assert were_exact > 0
    assert (len(exact) > 0) == (block != 48)
    for case in cases[:40]:
        build(case)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "widths=T:16",
            r"contract widths: expected a size of simple_gla \(H, HV, K, V",
        ),
        ("widths=K:0", r"contract widths: expected SIZE:MULTIPLE .* got K:0"),
        ("widths=K:x", r"contract widths: cannot read 'K:x'"),
        ("widths=K:8+K:16", r"contract widths: K is given twice"),
    ],
)
def test_widths_that_make_no_sense(text: str, words: str) -> None:
    """The message names the key, what is expected and what came."""
    with pytest.raises(CaseInvalid, match=words):
        verify(in_blocks, op=OP, contract=text)
