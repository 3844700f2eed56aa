"""A failure made small and laid out step by step, as authors debug by hand.

Two chunks of four tokens of one chain are enough for most faults of a scan: the first
has no carry, the second one carry (architecture.md, "Diagnosis").
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scancheck.checks.oracle import CaseReport, Request, check_inputs
from scancheck.errors import ScancheckError
from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.ops.calling import op_of
from scancheck.ops.normal_form import Op, spec_of, state_inputs
from scancheck.recipes.inputs import Inputs
from scancheck.verdict import Verdict

SHORT_CHUNK = 4
SHOWN = 8  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One token of one chain."""

    token: int  # in the shrunk sequence
    a: float  # decay
    b: float  # what is added to the state
    wanted: float
    got: float
    wrong: bool  # beyond its budget


@dataclass(frozen=True, slots=True, kw_only=True)
class StepByStep:
    """The smallest failing call that was found, around its first wrong token."""

    tokens: int  # of the shrunk sequence
    chunk: int | None  # of the kernel that fails on it
    steps: tuple[Step, ...]


def step_by_step(
    kernel: Kernel,
    report: CaseReport,
    request: Request,
    with_chunk: Callable[[int], Kernel] | None = None,
) -> StepByStep | None:
    """The failure of the sequence output on one chain and as few tokens as keep it.

    None without one, where no single chain fails by itself, for ops with heads, whose
    state is no chain, and for calls of several sequences.
    `with_chunk` gives the same kernel in another chunk size, where it can be had.
    """
    op = op_of(report.case)
    metrics = report.metrics.get(op.outputs[0].name)
    if "D" not in op.size_names or op.calling is not None:
        return None
    if metrics is None or not metrics.wrong.any():
        return None
    axes = op.outputs[0].axes
    places = metrics.wrong.nonzero()
    first = int(places[axes.index(op.time_axis)].argmin())
    wrong = {axis: int(places[n][first]) for n, axis in enumerate(axes)}
    quiet = replace(request, gradients=False, runs=1)
    for candidate, start, stop in _candidates(op, kernel, report, wrong, with_chunk):
        for state in range(min(4, _size(report, "N"))):
            cut = _cut(op, report.inputs, wrong | {"N": state}, start, stop)
            found = _failing(candidate, op, report, cut, quiet)
            if found is not None:
                return _laid_out(op, candidate, found)
    return None


def _candidates(
    op: Op,
    kernel: Kernel,
    report: CaseReport,
    wrong: dict[str, int],
    with_chunk: Callable[[int], Kernel] | None,
) -> Iterator[tuple[Kernel, int, int]]:
    """Kernels and token ranges, smallest first."""
    steps = _size(report, op.time_axis)
    token = wrong[op.time_axis]
    short = 2 * SHORT_CHUNK
    starts = dict.fromkeys((0, max(0, min(token - SHORT_CHUNK, steps - short))))
    if with_chunk is not None and kernel.chunk is not None:
        small = with_chunk(SHORT_CHUNK)
        for start in starts:
            yield small, start, min(steps, start + short)
    for start in starts:
        yield kernel, start, min(steps, start + short)
    after = token + 1 + SHORT_CHUNK
    if kernel.chunk is not None:
        edge = kernel.chunk * max(0, token // kernel.chunk - 1)
        for length in (kernel.chunk + SHORT_CHUNK, 2 * kernel.chunk):
            yield kernel, edge, min(steps, edge + length)
    yield kernel, 0, min(steps, after)
    yield kernel, 0, steps


def _size(report: CaseReport, axis: str) -> int:
    return dict(report.case.sizes).get(axis, 1)


def _cut(
    op: Op, inputs: Inputs, chosen: dict[str, int], start: int, stop: int
) -> Inputs:
    """One chain between two tokens, from a zero state unless it is the beginning."""
    group = 0
    keys = next((t for n, t in inputs.tensors.items() if t.ndim == 4), None)
    if keys is not None and "G" in op.size_names:
        channels = inputs.tensors[op.inputs[0].name].shape[1]
        group = chosen["D"] * keys.shape[1] // channels
    tensors: dict[str, FloatArray] = {}
    for name, values in inputs.tensors.items():
        if name in state_inputs(op) and start:
            continue
        index = []
        for axis in spec_of(op, name, values.ndim).axes:
            if axis == op.time_axis:
                index.append(slice(start, stop))
            else:
                at = group if axis == "G" else chosen.get(axis, 0)
                index.append(slice(at, at + 1))
        tensors[name] = values[tuple(index)].copy()
    return replace(inputs, tensors=tensors)


def _failing(
    kernel: Kernel, op: Op, report: CaseReport, cut: Inputs, request: Request
) -> CaseReport | None:
    """The report on the cut inputs, where its sequence output is still wrong."""
    sequence = op.outputs[0]
    sizes = {name: 1 for name, _ in report.case.sizes}
    sizes[op.time_axis] = _tokens(op, cut)
    case = replace(report.case, sizes=tuple(sorted(sizes.items())))
    contract = request.contract if kernel.contract is None else kernel.contract
    try:
        found = check_inputs(kernel, case, cut, replace(request, contract=contract))
    except ScancheckError:
        return None
    metrics = found.metrics.get(sequence.name)
    red = any(
        check.tensor == sequence.name
        and check.verdict in (Verdict.FAIL, Verdict.NONFINITE)
        for check in found.checks
    )
    return found if red and metrics is not None and metrics.wrong.any() else None


def _tokens(op: Op, inputs: Inputs) -> int:
    """Tokens of the inputs that have a time axis."""
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        if op.time_axis in axes:
            return int(values.shape[axes.index(op.time_axis)])
    return 0


def _laid_out(op: Op, kernel: Kernel, report: CaseReport) -> StepByStep:
    """The tokens around the first wrong one, side by side."""
    name = op.outputs[0].name
    wrong = report.metrics[name].wrong.ravel()
    wanted = report.truth.outputs[name].hi.ravel()
    got = report.outcome.outputs[name].ravel()
    decays, drives = _recurrence(op, report.inputs)
    first = int(wrong.argmax())
    start = max(0, min(first - SHOWN // 2, len(wrong) - SHOWN))
    return StepByStep(
        tokens=len(wrong),
        chunk=kernel.chunk,
        steps=tuple(
            Step(
                token=t,
                a=decays[t],
                b=drives[t],
                wanted=float(wanted[t]),
                got=float(got[t]),
                wrong=bool(wrong[t]),
            )
            for t in range(start, min(start + SHOWN, len(wrong)))
        ),
    )


def _recurrence(op: Op, inputs: Inputs) -> tuple[list[float], list[float]]:
    """Decays and drives of the one chain, in the op's own terms."""
    flat = {name: [float(x) for x in v.ravel()] for name, v in inputs.tensors.items()}
    if op.name == "linear_scan":
        decays = flat["a"] if "a" in flat else [math.exp(g) for g in flat["g"]]
        return decays, flat["b"]
    bias = flat.get("delta_bias", [0.0])[0]
    steps = [step + bias for step in flat["delta"]]
    if inputs.switches.get("delta_softplus"):
        steps = [max(x, 0.0) + math.log1p(math.exp(-abs(x))) for x in steps]
    keys = flat["B"] if len(flat["B"]) == len(steps) else flat["B"] * len(steps)
    decays = [math.exp(step * flat["A"][0]) for step in steps]
    drives = [d * k * u for d, k, u in zip(steps, keys, flat["u"], strict=True)]
    return decays, drives
