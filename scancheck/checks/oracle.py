"""The funnel: one case of one kernel against certified truth and derived budget."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.budget import Allowance, Budget, budget_for, storage_dtype
from scancheck.bounds.contract_emulation import emulated_for
from scancheck.bounds.moments import lambda_factor, moments_for, rho, rho_limit
from scancheck.case import Case
from scancheck.checks.judging_device import judged_on
from scancheck.contract import Contract, formats_used
from scancheck.formats import format_named, round_array
from scancheck.kernel import Kernel
from scancheck.metrics import TensorMetrics, measure
from scancheck.ops import OPS
from scancheck.ops.calling import op_of
from scancheck.ops.constant_decays import has_constant_decays
from scancheck.ops.normal_form import (
    Op,
    is_algebraic,
    outputs_with_chains,
    spec_of,
)
from scancheck.oracles.ladder import Reference, Truth, certify
from scancheck.recipes.build import build
from scancheck.recipes.catalog import RECIPES
from scancheck.recipes.inputs import Inputs, case_sizes, cotangents
from scancheck.recipes.op_rules import chains_of
from scancheck.runner import Outcome, execute
from scancheck.verdict import Check, Verdict, first_wrong, judge, worst_verdict

FloatArray = NDArray[np.float64]

# State entries over all steps from which on a card judges: below, a processor is done
# before kernels are loaded and arrays moved. An H200 takes 8 ms or more for linear_scan
# and 35 ms for selective_scan however small the case, and is as fast as a processor
# between 2**16 and 2**19 entries, by the number of lanes; loading takes seconds.
CARD_ENTRIES = 2**20
# Fewer independent chains than this say too little for rho and lambda (numerics 2.8).
MIN_CHAINS = 16
EXACT_BITS = 8  # of the significands that exact recipes need


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of every case of a run."""

    contract: Contract
    gradients: bool = False
    elements: int = 1  # elements judged in the whole run, which share p
    p: float = 1e-6  # false-alarm probability of the probable bound, per run
    runs: int = 3  # calls on the same inputs, compared bit by bit
    not_judged: frozenset[str] = frozenset()  # outputs that the kernel does not return
    device: str = "cpu"  # where oracles and budgets of large cases run


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """Everything that is known about one case."""

    case: Case
    verdict: Verdict
    checks: tuple[Check, ...]
    inputs: Inputs
    cotangents: dict[str, FloatArray] | None
    cotangent_kind: str | None
    outcome: Outcome
    truth: Truth
    budget: Budget
    metrics: dict[str, TensorMetrics] = field(default_factory=dict)  # outputs
    gradient_metrics: dict[str, TensorMetrics] = field(default_factory=dict)
    why_on_cpu: str | None = None  # judged there, not on the request's device


def check_case(
    kernel: Kernel, case: Case, request: Request, *, cotangent_kind: str | None = None
) -> CaseReport:
    """The report of one case; gradients are judged when a cotangent kind is given."""
    inputs, bars = drawn(case, request, cotangent_kind)
    return check_inputs(kernel, case, inputs, request, bars, cotangent_kind)


def drawn(
    case: Case, request: Request, cotangent_kind: str | None
) -> tuple[Inputs, dict[str, FloatArray] | None]:
    """The case's inputs, and its cotangents where gradients are judged."""
    inputs = build(case)
    if not request.gradients or cotangent_kind is None:
        return inputs, None
    bars = cotangents(case, cotangent_kind, case.seed)
    return inputs, {n: v for n, v in bars.items() if n not in request.not_judged}


def check_inputs(
    kernel: Kernel,
    case: Case,
    inputs: Inputs,
    request: Request,
    bars: dict[str, FloatArray] | None = None,
    cotangent_kind: str | None = None,
) -> CaseReport:
    """As `check_case`, for tensors that do not come from the case's recipe."""
    outcome = execute(
        kernel,
        op_of(case),
        inputs,
        case.dtype,
        cotangents=bars,
        runs=request.runs,
    )
    return report_of(case, inputs, request, outcome, bars, cotangent_kind)


def report_of(
    case: Case,
    inputs: Inputs,
    request: Request,
    outcome: Outcome,
    bars: dict[str, FloatArray] | None = None,
    cotangent_kind: str | None = None,
) -> CaseReport:
    """The report of what came of a kernel's calls on a case."""
    op = op_of(case)
    judged = judged_on(
        device_for_case(op, case, request),
        partial(_judged, op, case, inputs, request, outcome, bars),
    )
    return replace(
        judged.found, cotangent_kind=cotangent_kind, why_on_cpu=judged.why_on_cpu
    )


def _judged(
    op: Op,
    case: Case,
    inputs: Inputs,
    request: Request,
    outcome: Outcome,
    bars: dict[str, FloatArray] | None,
    device: str,
) -> CaseReport:
    """The report of a kernel's outcome, oracles and budgets on the device."""
    budget = budget_for(
        op,
        inputs.tensors,
        inputs.switches,
        request.contract,
        case.dtype,
        bars,
        device=device,
    )
    exact = is_exact(case, inputs, request.contract)
    if exact:
        budget = _without_allowance(budget)
    allowance = {n: a.error for n, a in budget.outputs.items()}
    allowance |= {n: a.error for n, a in budget.gradients.items()}
    truth = certify(op, inputs.tensors, inputs.switches, bars, allowance, device=device)
    if exact:
        budget = _with_one_store(op, case.dtype, budget, truth)
    checks = call_checks(op, outcome)
    metrics = _measured(outcome.outputs, truth.outputs, budget.outputs)
    gradient_metrics = _measured(outcome.gradients, truth.gradients, budget.gradients)
    checks += _forward_checks(op, case, inputs, request, metrics, device)
    for name, found in gradient_metrics.items():
        axis = _time_axis(op, name, found.ratio.ndim)
        checks.append(judge("gradient", found, time_axis=axis))
    bare = cache(
        partial(
            budget_for,
            op,
            inputs.tensors,
            inputs.switches,
            request.contract,
            case.dtype,
            underflow=False,
            device=device,
        )
    )
    checks = [_range_if_underflow(op, case, metrics, c, bare) for c in checks]
    return CaseReport(
        case=case,
        verdict=worst_verdict(check.verdict for check in checks),
        checks=tuple(checks),
        inputs=inputs,
        cotangents=bars,
        cotangent_kind=None,
        outcome=outcome,
        truth=truth,
        budget=budget,
        metrics=metrics,
        gradient_metrics=gradient_metrics,
    )


def device_for_case(op: Op, case: Case, request: Request) -> str:
    """Where a case's oracles and budgets run: the request's device for a large one.

    Sequences that are called together are small ones, one by one, and a user's own
    lowering is known to run over numbers of a processor alone.
    """
    sizes = case_sizes(case)
    entries = math.prod(op.group_shape(sizes)) * sizes[op.time_axis]
    large = entries >= CARD_ENTRIES
    return request.device if large and op.calling is None and op.name in OPS else "cpu"


def is_exact(case: Case, inputs: Inputs, contract: Contract) -> bool:
    """Whether every order of combination must give the exact result, to the bit.

    Only sums and products qualify: no contract promises that exp(0) is exactly 1. And
    only partial results that formats hold: operands of fp8 do not, and the powers of
    Neumann doublings are far larger than the inverse that they add up to.
    """
    op, recipe = op_of(case), RECIPES.get(case.recipe)
    if contract.constant_decay == "exp" and has_constant_decays(op):
        return False
    if contract.inverse == "neumann" and not op.diagonal:
        return False
    return (
        recipe is not None
        and recipe.exact
        and is_algebraic(op, inputs.tensors)
        and contract.log == "none"
        and all(
            fmt.precision >= EXACT_BITS for fmt in formats_used(contract, case.dtype)
        )
    )


def _without_allowance(budget: Budget) -> Budget:
    """Zero allowance on outputs; gradients keep theirs."""
    outputs = {
        name: replace(
            a, error=np.zeros_like(a.error), overflows=np.zeros_like(a.overflows)
        )
        for name, a in budget.outputs.items()
    }
    return replace(budget, outputs=outputs)


def _with_one_store(op: Op, dtype: str, budget: Budget, truth: Truth) -> Budget:
    """The allowance of outputs that are the exact values, stored once.

    Exact recipes stay within EXACT_BITS, so that it is zero save in 8-bit formats.
    """
    outputs = {}
    for name, allowance in budget.outputs.items():
        exact = truth.outputs[name].hi
        fmt = format_named(storage_dtype(op, name, dtype, exact.ndim))
        off = np.abs(round_array(fmt, exact) - exact)
        # Without a finite value there is no distance: the kind decides.
        error = np.where(np.isfinite(off), off, 0.0)
        outputs[name] = replace(allowance, error=error)
    return replace(budget, outputs=outputs)


def _measured(
    got: Mapping[str, FloatArray],
    truth: Mapping[str, Reference],
    allowances: Mapping[str, Allowance],
) -> dict[str, TensorMetrics]:
    """Metrics of every tensor that the kernel gave and the op has."""
    found = {}
    for name, values in got.items():
        found[name] = measure(name, values, truth[name], allowances[name])
    return found


def _time_axis(op: Op, name: str, rank: int) -> int | None:
    axes = spec_of(op, name, rank).axes
    return axes.index(op.time_axis) if op.time_axis in axes else None


def call_checks(op: Op, outcome: Outcome) -> list[Check]:
    """What the runner saw beside the numbers."""
    checks = []
    if outcome.problem is not None:
        problem = outcome.problem
        kind = Verdict.ERROR
        if problem.kind in (
            "input_changed",
            "aliases_input",
            "wrote_outside",
            "not_differentiable",
            "backward_raised",
        ):
            kind = Verdict.FAIL
        checks.append(Check(check="call", verdict=kind, reason=problem.message))
    for found, what in (
        (outcome.differs, "output"),
        (outcome.gradient_differs, "gradient"),
    ):
        for name, mask in found.items():
            if mask.any():
                index = first_wrong(mask, _time_axis(op, name, mask.ndim))
                reason = f"{what} {name} differs between identical runs"
                checks.append(
                    Check(
                        check="repeat",
                        verdict=Verdict.FAIL,
                        tensor=name,
                        index=index,
                        reason=reason,
                    )
                )
    return checks


def _forward_checks(
    op: Op,
    case: Case,
    inputs: Inputs,
    request: Request,
    metrics: Mapping[str, TensorMetrics],
    device: str,
) -> list[Check]:
    """Judgements of the outputs, by rho and lambda too where those apply."""
    sizes = case_sizes(case)
    chains = chains_of(op, sizes)
    recipe = RECIPES.get(case.recipe)
    judges = recipe is not None and recipe.independent_roundings
    moments, drawn = None, False
    # Sequences of other lengths, called together, share no number of roundings.
    if judges and chains >= MIN_CHAINS and op.calling is None:
        given = op, inputs.tensors, inputs.switches, request.contract, case.dtype
        moments = moments_for(*given, device=device)
        if moments is None:
            # Of single elements drawn roundings say too little for lambda.
            moments, drawn = emulated_for(*given), True
    checks = []
    apart = outputs_with_chains(op)
    for name, found in metrics.items():
        value = limit = None
        beyond = False
        if moments is not None and name in apart and found.error.size:
            inside = ~found.overflowing
            error, root = found.error[inside], moments[name][inside]
            value = rho(error, root)
            limit = rho_limit(chains)
            factor = lambda_factor(max(request.elements, error.size), request.p)
            beyond = not drawn and bool((error > factor * root).any())
        axis = _time_axis(op, name, found.ratio.ndim)
        checks.append(
            judge(
                "oracle",
                found,
                time_axis=axis,
                rho=value,
                rho_limit=limit,
                beyond_probable=beyond,
            )
        )
    return checks


def _range_if_underflow(
    op: Op,
    case: Case,
    metrics: Mapping[str, TensorMetrics],
    check: Check,
    bare: Callable[[], Budget],
) -> Check:
    """RANGE instead of PASS where only underflow of partial results excuses the error.

    An element of normal size whose budget swallows it, and which is off by more than
    the budget would be without underflow, which `bare` gives, is no pass: numerics
    2.4, "range is not rounding".
    """
    if check.verdict is not Verdict.PASS or check.check != "oracle":
        return check
    found = metrics[str(check.tensor)]
    smallest = format_named(case.dtype).smallest_normal
    suspicious = found.vacuous & (found.error > smallest)
    if not suspicious.any():
        return check
    error = bare().outputs[found.name].error
    with np.errstate(over="ignore"):
        swamped = found.allowance > 2 * error
    lost = suspicious & (found.error > error) & swamped
    if not lost.any():
        return check
    index = first_wrong(lost, _time_axis(op, found.name, lost.ndim))
    return Check(
        check=check.check,
        verdict=Verdict.RANGE,
        tensor=check.tensor,
        ratio=check.ratio,
        rho=check.rho,
        index=index,
        reason=(
            f"{int(lost.sum())} of {lost.size} values are lost because products of "
            "decays underflow in the declared structure"
        ),
    )
