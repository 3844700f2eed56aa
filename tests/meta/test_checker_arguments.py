"""No argument is for show: changing any one of them changes the answer."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.bounds.budget import budget_for
from scancheck.bounds.moments import lambda_factor
from scancheck.case import Case, make_case
from scancheck.checks.oracle import (
    CaseReport,
    Request,
    check_case,
    device_for_case,
)
from scancheck.contract import Contract, parse_contract
from scancheck.gate import verify
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.recipes.build import build
from scancheck.recipes.case_list import PROFILES
from scancheck.recipes.inputs import cotangents
from scancheck.record import to_json


def scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    """A correct scan in fp32, or fp64."""
    wide = torch.promote_types(a.dtype, torch.float32)
    state = a.new_zeros(b.shape[0], b.shape[2], dtype=wide)
    if initial_state is not None:
        state = initial_state
    rows = [b.to(wide)[:, :0]]
    for decay, drive in zip(a.to(wide).unbind(1), b.to(wide).unbind(1), strict=True):
        state = decay * state + drive
        rows.append(state[:, None])
    return torch.cat(rows, 1).to(b.dtype), state.clone()


def sloppy(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
    """The same, a little off."""
    h, state = scan(a, b, initial_state)
    return h * (1 + 2.0**-20), state


KERNEL = Kernel(name="tried", op="linear_scan", call=sloppy)
CASE = make_case(
    "linear_scan",
    {"B": 2, "T": 33, "D": 8},
    recipe="gaussian_slow",
    seed=1,
    options={"initial_state": True},
)


# --- verify


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full profile with a few cases more than the quick one."""
    more = replace(PROFILES["quick"], cases=PROFILES["quick"].cases + 5)
    monkeypatch.setitem(PROFILES, "full", more)


def told(**options: Any) -> dict[str, Any]:
    """What a run says, without its time and the request that it repeats."""
    data = to_json(verify(KERNEL, **options).record)
    repeated = ("duration_s", "replay", "seed", "profile", "dtype", "contract")
    for finding in data["findings"]:
        del finding["replay"]
    return {name: value for name, value in data.items() if name not in repeated}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """What the run says without any option."""
    return told()


def test_the_same_arguments_give_the_same_answer(plain: dict[str, Any]) -> None:
    """A run is a function of its arguments: nothing else changes the record."""
    assert told() == plain
    assert told(op="linear_scan", seed=0, profile="quick", dtypes=["fp32"]) == plain


OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"seed": 1}, ("findings", "worst_ratio")),
    ({"profile": "full"}, ("counts", "elements")),
    ({"dtypes": ["bf16"]}, ("counts", "verdict")),
    ({"dtypes": ["fp32", "bf16"]}, ("counts", "elements")),
    ({"contract": "compute=bf16"}, ("counts", "findings", "vacuous")),
    ({"contract": "ftz=no"}, ("contract_declared",)),
    ({"gradients": True}, ("gradients", "worst_ratio", "elements")),
    ({"require": ["g"]}, ("findings",)),
]


@pytest.mark.parametrize(
    ("options", "changed"),
    [pytest.param(*row, id="-".join(map(str, row[0].items()))) for row in OPTIONS],
)
@pytest.mark.usefixtures("few_cases")
def test_every_option_of_verify_counts(
    plain: dict[str, Any], options: dict[str, Any], changed: tuple[str, ...]
) -> None:
    """Each option changes the part of the record that it is about."""
    data = told(**options)
    differs = {name for name in data if data[name] != plain[name]}
    assert set(changed) - differs == set()


def test_the_chosen_case_counts(plain: dict[str, Any]) -> None:
    """A single case is judged alone."""
    data = told(case_id=plain["findings"][0]["case_id"])
    assert sum(data["counts"].values()) < sum(plain["counts"].values())


def test_the_target_counts(plain: dict[str, Any]) -> None:
    """Another kernel has another record."""
    other = verify(replace(KERNEL, call=scan)).record
    assert (other.verdict, plain["verdict"]) == ("PASS", "FAIL")


def test_json_and_progress_count(tmp_path: Path) -> None:
    """The file is written where it is asked for; progress is reported to whom asks."""
    heard: list[int] = []
    path = tmp_path / "run.json"
    verify(KERNEL, json_path=path, on_case=lambda *facts: heard.append(facts[0]))
    assert path.exists()
    assert heard


# --- check_case


def report(request: Request, kind: str | None = None, case: Case = CASE) -> CaseReport:
    """The report of the kernel on a case."""
    return check_case(KERNEL, case, request, cotangent_kind=kind)


def test_every_field_of_a_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract, gradients, runs, p, elements and what is not judged, one by one."""
    tried = {name for name, _ in REQUESTS}
    assert tried == {field.name for field in fields(Request)}
    for name, differs in REQUESTS:
        assert differs(), name


def _contract() -> bool:
    wide = report(Request(contract=parse_contract("compute=bf16")))
    return report(Request(contract=Contract())).verdict != wide.verdict


def _gradients() -> bool:
    off = report(Request(contract=Contract()), "dense")
    on = report(Request(contract=Contract(), gradients=True), "dense")
    return set(off.gradient_metrics) != set(on.gradient_metrics)


def _runs() -> bool:
    return _calls(1) == 1 and _calls(3) == 3


def _calls(runs: int) -> int:
    calls: list[int] = []

    def counting(a: Tensor, b: Tensor, initial_state: Tensor | None = None) -> Any:
        calls.append(1)
        return scan(a, b, initial_state)

    kernel = replace(KERNEL, call=counting)
    check_case(kernel, CASE, Request(contract=Contract(), runs=runs))
    return len(calls)


def _not_judged() -> bool:
    lone = frozenset({"final_state"})
    request = Request(contract=Contract(), gradients=True)
    every = report(request, "dense").cotangents
    fewer = report(replace(request, not_judged=lone), "dense").cotangents
    return every is not None and fewer is not None and set(every) > set(fewer)


def _outlier(request: Request) -> str:
    """The verdict on one element that is off by 15 probable errors."""
    from scancheck.checks.oracle import moments_for

    case = make_case(
        "linear_scan",
        {"B": 1, "T": 2001, "D": 16},
        recipe="gaussian_slow",
        seed=1,
        options={"initial_state": False},
    )
    inputs = build(case)
    op = op_named(case.op)
    roots = moments_for(op, inputs.tensors, {}, Contract(), "fp32", None)
    assert roots is not None
    place = (0, 2000, int(np.argmax(_slowest(inputs.tensors["a"]))))

    def call(a: Tensor, b: Tensor) -> Any:
        h, state = scan(a, b)
        h[place] += 15 * float(roots["h"][place])
        return h, state

    found = check_case(Kernel(name="o", op="linear_scan", call=call), case, request)
    return str(found.checks[0].verdict)


def _slowest(a: Any) -> Any:
    return np.abs(a).prod(axis=(0, 1))


def _p() -> bool:
    usual = Request(contract=Contract(), elements=1000)
    return (_outlier(usual), _outlier(replace(usual, p=1e-300))) == ("SUSPECT", "PASS")


def _elements() -> bool:
    usual = Request(contract=Contract(), elements=1000)
    many = replace(usual, elements=10**200)
    return (_outlier(usual), _outlier(many)) == ("SUSPECT", "PASS")


def _device() -> bool:
    """Where large cases are judged; the choice alone needs no card."""
    sizes = {"B": 1, "T": 2048, "D": 1024}
    large = make_case("linear_scan", sizes, recipe=CASE.recipe, seed=1)
    op, devices = op_named("linear_scan"), ["cpu", "cuda:0"]
    requests = [Request(contract=Contract(), device=device) for device in devices]
    return [device_for_case(op, large, request) for request in requests] == devices


REQUESTS: list[tuple[str, Callable[[], bool]]] = [
    ("contract", _contract),
    ("gradients", _gradients),
    ("elements", _elements),
    ("p", _p),
    ("runs", _runs),
    ("not_judged", _not_judged),
    ("device", _device),
]


def test_lambda_grows_with_elements_and_shrinks_with_p() -> None:
    """More elements share the same p; a smaller p allows more."""
    assert lambda_factor(10, 1e-6) < lambda_factor(1000, 1e-6)
    assert lambda_factor(10, 1e-6) < lambda_factor(10, 1e-9)


@pytest.mark.parametrize("kinds", [("dense", "final_state"), ("dense", "one_token")])
def test_cotangents_count(kinds: tuple[str, str]) -> None:
    """Another kind of cotangent gives other gradients."""
    request = Request(contract=Contract(), gradients=True)
    first, second = (report(request, kind).outcome.gradients["b"] for kind in kinds)
    assert (first != second).any()


# --- the contract


SIZES = {"linear_scan": {"T": 70, "D": 3}, "selective_scan": {"L": 70, "D": 3, "N": 2}}
for _op in ("simple_gla", "gated_delta_rule", "retention"):
    SIZES[_op] = {"T": 70, "H": 1, "HV": 2, "K": 4, "V": 3}


def _case(op: str, recipe: str, **options: Any) -> Case:
    sizes = {"B": 1} | SIZES[op]
    options = {"initial_state": True} | options
    return make_case(op, sizes, recipe=recipe, seed=3, options=options)


LINEAR = _case("linear_scan", "gaussian_slow")
GATES = _case("linear_scan", "gaussian_slow", form="g")
SUBNORMAL = _case("linear_scan", "subnormal_state")
DIP = _case("linear_scan", "dip_out_of_range")
SELECTIVE = _case("selective_scan", "gaussian_slow")
CONSTANT = _case("retention", "gaussian_slow")
HEADS = _case("simple_gla", "gaussian_slow")
HALVES = replace(HEADS, dtype="fp16")
SHORT = replace(LINEAR, dtype="fp16")
ERASING = _case("gated_delta_rule", "gaussian_slow")
CHUNKS = "structure=chunk(32)"  # more than one block of an inverse

# Two values of each key, and a case on which they must differ.
KEYS: list[tuple[str, str, str, Case]] = [
    ("compute", "", "compute=bf16", LINEAR),
    ("compute", "compute=bf16", "compute=fp16", LINEAR),
    ("compute", "compute=bf16", "compute=tf32", LINEAR),
    ("state", "", "state=bf16", LINEAR),
    ("state", "state=fp16", "state=bf16", LINEAR),
    ("state_every", "state=bf16", "state=bf16,state_every=16", LINEAR),
    ("structure", "", "structure=sequential", LINEAR),
    ("structure", "", "structure=tree", LINEAR),
    ("structure", "structure=chunk(8)", "structure=chunk(32)", LINEAR),
    ("structure", "structure=chunk(32)", "structure=chunk(32,tree)", LINEAR),
    ("structure", "structure=chunk(4)", "structure=chunk(4,sequential,tree)", LINEAR),
    ("structure", "structure=tree", "structure=tree(hillis_steele)", LINEAR),
    (
        "structure",
        "structure=chunk(8)",
        "structure=chunk(8,sequential,sequential,stepwise)",
        LINEAR,
    ),
    (
        "fma",
        "structure=sequential,fma=no",
        "structure=sequential,fma=yes",
        LINEAR,
    ),
    ("log", "", "log=diff,structure=chunk(16)", GATES),
    ("ln", "log=full", "log=full,ln=20+20x", GATES),
    ("constant_decay", "", "constant_decay=exp", CONSTANT),
    ("gate_gradient", "", "gate_gradient=reverse_cumsum", GATES),
    (
        "gate_gradient",
        "structure=chunk(8),gate_gradient=reverse_cumsum",
        "structure=chunk(8),gate_gradient=chunk_sums",
        GATES,
    ),
    ("gradient_parts", "", "gradient_parts=storage", HALVES),
    ("gradient_state", "", "gradient_state=storage", SHORT),
    ("comp", "", "comp=kahan", LINEAR),
    (
        "comp",
        "structure=sequential,comp=kahan",
        "structure=sequential,comp=full",
        LINEAR,
    ),
    (
        "gradient_comp",
        "structure=sequential,comp=full",
        "structure=sequential,comp=full,gradient_comp=none",
        LINEAR,
    ),
    ("gradient_exp", "", "gradient_exp=0.5", GATES),
    ("exp", "", "exp=0.5", GATES),
    ("exp", "exp=4", "exp=4+2.35x", GATES),
    ("exp", "", "exp=0.5", SELECTIVE),
    ("softplus", "", "softplus=0.5", SELECTIVE),
    ("silu", "", "silu=0.5", SELECTIVE),
    ("ftz", "ftz=no", "ftz=yes", SUBNORMAL),
    ("ftz", "ftz=no", "", SUBNORMAL),
    ("casts", "", "casts=decay:bf16", LINEAR),
    ("casts", "", "casts=drive:bf16", LINEAR),
    ("casts", "casts=drive:bf16", "casts=drive:fp16", LINEAR),
    ("range", "", "range=sequential", DIP),
    ("operands", "", "operands=bf16", HEADS),
    ("operands", "operands=bf16", "operands=tf32", HEADS),
    ("operands", f"{CHUNKS}", f"{CHUNKS},operands=bf16", ERASING),
    ("accumulate", "operands=bf16", "operands=bf16,accumulate=truncate", HEADS),
    ("accumulate", f"{CHUNKS}", f"{CHUNKS},accumulate=truncate", ERASING),
    ("inverse", f"{CHUNKS}", f"{CHUNKS},inverse=neumann", ERASING),
    ("inverse", f"{CHUNKS}", f"{CHUNKS},inverse=block", ERASING),
]


@pytest.mark.parametrize(
    ("key", "one", "other", "case"),
    [pytest.param(*row, id=f"{row[1]}|{row[2]}|{row[3].op}") for row in KEYS],
)
def test_every_key_of_a_contract_counts(
    key: str, one: str, other: str, case: Case
) -> None:
    """Two values of a key give different budgets on a case that can tell them."""
    inputs = build(case)
    op = op_named(case.op)
    bars = cotangents(case, "dense", 1)

    def budget(text: str) -> Iterator[Any]:
        contract = parse_contract(text)
        found = budget_for(
            op, inputs.tensors, inputs.switches, contract, case.dtype, bars
        )
        for allowance in (*found.outputs.values(), *found.gradients.values()):
            yield allowance.error
            yield allowance.overflows

    same = [(x == y).all() for x, y in zip(budget(one), budget(other), strict=True)]
    assert not all(same)


def test_every_key_is_tried() -> None:
    """No key of a contract is left out above, but those that choose cases."""
    tried = {key for key, *_ in KEYS}
    assert tried | {"domain", "heads", "widths"} == {
        field.name for field in fields(Contract)
    }


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp64"])
def test_dtype_counts(dtype: str) -> None:
    """The storage format is part of every budget."""
    errors = []
    for case in (LINEAR, replace(LINEAR, dtype=dtype)):
        inputs = build(LINEAR)
        op = op_named(case.op)
        budget = budget_for(op, inputs.tensors, {}, Contract(), case.dtype)
        errors.append(budget.outputs["h"].error)
    assert (errors[0] != errors[1]).all()
