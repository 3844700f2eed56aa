"""The budget of a case: a per-element allowance that follows from contract and inputs.

`err > E` means that no kernel which rounds as the contract says can have produced the
element (numerics 2.2 to 2.4, 2.6 and 2.9).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from scancheck.bounds.card import has_card_budget, solve_errors_on_card
from scancheck.bounds.error_number import ErrorNumber
from scancheck.bounds.error_system import ErrorSystem
from scancheck.bounds.log_system import LogChunkSystem
from scancheck.bounds.matrix_products import MatrixProductSystem
from scancheck.bounds.operands import FORMS as PRODUCT_FORMS
from scancheck.bounds.operands import check_matrix_products
from scancheck.bounds.rank_one_chunk_system import RankOneChunkSystem
from scancheck.bounds.rank_one_system import RankOneErrorSystem
from scancheck.bounds.rules import Rules, of_matrix_products, rules_for, storage_error
from scancheck.bounds.summed_maximum import with_chunk_sums
from scancheck.contract import Contract, of_gradients
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.ops.constant_decays import by_exponentials
from scancheck.ops.normal_form import Op, spec_of
from scancheck.oracles.ball import INFLATION
from scancheck.oracles.engine import Solution, solve, stretch_of, unchanged

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one tensor of a kernel may look like."""

    error: FloatArray  # sound bound E on |computed - exact|, elementwise
    overflows: NDArray[np.bool_]  # an intermediate result may leave the format's range
    largest: float  # largest finite value of the tensor's storage format
    storage_u: float  # unit roundoff of the tensor's storage format
    magnitude: FloatArray  # what roundings scale with (sum of magnitudes or |value|)
    has_infinity: bool = True  # of the tensor's storage format


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Allowances of outputs and gradients."""

    outputs: dict[str, Allowance]
    gradients: dict[str, Allowance]


def budget_for(
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    contract: Contract,
    dtype: str,
    cotangents: Mapping[str, FloatArray] | None = None,
    *,
    underflow: bool = True,
    device: str = "cpu",
) -> Budget:
    """The sound budget of every output and, where cotangents are given, gradient.

    With `underflow` False the terms for results below the normal range are left out.
    With a CUDA `device` scans that have kernels run there.
    Raises CaseInvalid for a log form other than ratio where a case has no log gates.
    """
    _check_bounded(op, contract)
    rules, backward = (
        _with_value_gates(rules_for(claim, dtype, underflow=underflow), op, tensors)
        for claim in (contract, of_gradients(contract))
    )
    run = op
    if contract.constant_decay == "exp" and contract.log == "none":
        run = by_exponentials(op)
    found = partial(_solved, contract.log, run, tensors, switches, device)
    if cotangents is None or backward == rules:
        forwards = backwards = found(rules, cotangents)
    else:
        forwards, backwards = found(rules, None), found(backward, cotangents)
    outputs = {
        name: allowance_of(op, name, number, dtype, rules.overflow)
        for name, number in forwards.outputs.items()
    }
    gradients = {
        name: allowance_of(op, name, number, dtype, rules.overflow)
        for name, number in backwards.gradients.items()
    }
    return Budget(outputs=outputs, gradients=gradients)


def _with_value_gates(rules: Rules, op: Op, tensors: Mapping[str, FloatArray]) -> Rules:
    """The rules where a state is moved by two decays, one after the other.

    Systems have their product w z for one decay, whose rounding is relative. But in
    (w S) z two products underflow on the state's scale: by eta z + eta, and by no more
    than 2 eta for gates that do not grow. Gates are logs, by the names that ops have.
    """
    if not op.diagonal or not any(name in tensors for name in op.spread_by):
        return rules
    gates = [tensors[name] for name in ("g", "gk", "gv") if name in tensors]
    most = max(float(x.max(initial=0.0)) for x in gates)
    return replace(rules, eta=rules.eta * (1.0 + math.exp(min(most, 700.0))))


def _check_bounded(op: Op, contract: Contract) -> None:
    """Raises CaseInvalid for what contracts can say and no bound covers."""
    default = Contract()
    in_products = contract.operands != default.operands or contract.log != "none"
    in_chunks = not op.diagonal and contract.structure.kind == "chunk"
    if contract.gradient_state != default.gradient_state and (in_products or in_chunks):
        raise CaseInvalid(
            f"contract gradient_state: expected {default.gradient_state} beside log "
            "forms, operands in a format of their own, and chunks of a rank-one "
            f"transition, whose bounds have no such states; got "
            f"{contract.gradient_state}"
        )
    if op.diagonal:
        check_matrix_products(op, contract)
        names: tuple[str, ...] = ("inverse",)
        why = ", whose chunks invert nothing"
    elif in_chunks:
        return
    else:
        names = ("operands", "accumulate", "inverse")
        why = " but in structure=chunk(C)"
    for name in names:
        value, known = getattr(contract, name), getattr(default, name)
        if value != known:
            raise CaseInvalid(
                f"contract {name}: expected {known} for {op.name}{why}; got {value}"
            )


def _solved(
    log: str,
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    device: str,
    rules: Rules,
    cotangents: Mapping[str, FloatArray] | None,
) -> Solution:
    """Error numbers of all outputs and, where cotangents are given, gradients."""
    # What reads before the update counts chunks and stores a step late: here alone.
    if op.reads_before:
        device = "cpu"
    if not op.diagonal and rules.structure.kind == "chunk":
        return _solved_in_chunks(log, op, tensors, switches, rules, cotangents)
    if not op.diagonal:
        if log != "none":
            raise CaseInvalid(
                f"contract log: expected none for {op.name}, whose transition is not "
                f"diagonal; got {log}"
            )
        if device != "cpu" and has_card_budget(rules, log, cotangents is not None):
            return solve_errors_on_card(
                rules, op, tensors, switches, cotangents, device
            )
        columns = RankOneErrorSystem(rules)
        stretch = stretch_of(op, tensors, gradients=cotangents is not None)
        return solve(columns, op, tensors, switches, cotangents, stretch=stretch)
    in_chunks = op.matrix_products and rules.structure.kind == "chunk"
    on_card = has_card_budget(rules, log, cotangents is not None) and not in_chunks
    if device != "cpu" and on_card:
        return solve_errors_on_card(rules, op, tensors, switches, cotangents, device)
    system: ErrorSystem
    if log != "none":
        system = LogChunkSystem(rules, log)
    else:
        system = ErrorSystem(of_matrix_products(rules) if in_chunks else rules)
    met = unchanged
    if op.running is not None and log != "none" and rules.structure.kind == "chunk":
        met = partial(with_chunk_sums, rules)
    if rules.operand_cast is not None or (in_chunks and log in PRODUCT_FORMS):
        products = MatrixProductSystem(system, rules, factored=log == "factored")
        run = partial(solve, products, op, tensors, switches, cotangents, met=met)
        return _with_terms(system, cotangents, run)
    stretch = 1
    if system.in_rows:
        # Decays of keys and of values are factors there, unless a cast forms them.
        spread = () if rules.decay_cast is None else tensors
        stretch = stretch_of(op, spread, gradients=cotangents is not None)
    run = partial(
        solve, system, op, tensors, switches, cotangents, stretch=stretch, met=met
    )
    return _with_terms(system, cotangents, run)


def _with_terms(
    system: ErrorSystem,
    cotangents: Mapping[str, FloatArray] | None,
    run: Callable[[], Solution],
) -> Solution:
    """What `run` solves, once the terms of gates that are sums of chunks are known."""
    if cotangents is not None and system.gate_terms is not None:
        run()
        system.gate_terms.complete = True
    return run()


def _solved_in_chunks(
    log: str,
    op: Op,
    tensors: Mapping[str, FloatArray],
    switches: Mapping[str, bool],
    rules: Rules,
    cotangents: Mapping[str, FloatArray] | None,
) -> Solution:
    """The same for a rank-one transition in chunks."""
    if op.reads_before:
        raise CaseInvalid(
            f"contract structure: expected sequential for {op.name}, which reads the "
            f"state before its rank-one update; got chunk({rules.structure.chunk})"
        )
    chunks = RankOneChunkSystem(rules, log, op.name)
    stretch = stretch_of(op, tensors, gradients=cotangents is not None)
    return solve(
        chunks,
        op,
        tensors,
        switches,
        cotangents,
        stretch=stretch,
        multiple=chunks.chunk,
    )


def storage_dtype(op: Op, name: str, dtype: str, rank: int | None = None) -> str:
    """The format a tensor of the op is stored in, for cases of `dtype`."""
    if spec_of(op, name, rank).kind == "storage" or dtype == "fp64":
        return dtype
    return "fp32"


def allowance_of(
    op: Op, name: str, number: ErrorNumber, dtype: str, overflow: float
) -> Allowance:
    """What a tensor of the op may look like, from the bound on its computation.

    The number is rounded into the tensor's format and inflated for fp64 sums.
    """
    stored = storage_dtype(op, name, dtype, len(number.shape))
    store = storage_error(stored)
    peak = number.peak
    if store.largest < overflow or store.u > number.rules.u:
        number = number.stored(store)
    error = number.error * INFLATION
    return Allowance(
        error=np.where(np.isnan(error), np.inf, error),
        overflows=~(peak <= overflow * (1.0 - number.rules.u)),
        largest=store.largest,
        storage_u=store.u,
        magnitude=number.magnitude,
        has_infinity=FORMATS[stored].has_infinity,
    )
