"""Faults in what is computed with: inputs and decays other than those of the call."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from scancheck.checks.agreement import FloatArray
from scancheck.checks.carry_faults import Fault, without_state
from scancheck.checks.faulty_recurrence import OtherDecays, Outputs, run
from scancheck.checks.oracle import CaseReport
from scancheck.checks.step_sizes import by_sum, in_format, softplus_argument, with_steps
from scancheck.formats import (
    BF16,
    FP16,
    FP32,
    TF32,
    Format,
    format_named,
    round_array,
)
from scancheck.ops.calling import op_of, plain
from scancheck.ops.mlstm import MLSTM
from scancheck.ops.normal_form import Lowered, Op, spec_of, state_outputs
from scancheck.oracles.called import Call
from scancheck.oracles.engine import solve
from scancheck.oracles.fp64 import Fp64System
from scancheck.recipes.inputs import tensor_format

SHORT: tuple[Format, ...] = (BF16, FP16, TF32)
WEIGHT_BITS = (8, 4)
WEIGHT_SCALES = (((0, 1), "matrix"), ((1,), "channel"), ((0,), "state"))
VECTOR_SCALES = (((0,), "vector"),)
LARGEST_EXPONENT = 88.0  # of which fp32 has the exponential
SIGMOID_LOG = "the log of a forget gate is log(sigmoid(f)), both rounded to fp32"
SOFTPLUS_SUM = "softplus(x) is log(1 + exp(x)) with the sum rounded to fp32"
SHORT_STEP = "bias, step plus bias and softplus of it are rounded to {}"
Decays = Callable[[FloatArray], FloatArray]


def faults_of_inputs(report: CaseReport, truth: Outputs) -> Iterator[Fault]:
    """Faults that need no chunk size, with the outputs that they would give."""
    if op_of(report.case).state in report.inputs.tensors:
        yield (
            "initial_state",
            "the outputs are those of a zero initial state",
            run(report, Fp64System(), without_state(report)),
        )
    yield from _other_decays(report)
    for cause, detail, tensors in _other_tensors(report):
        yield cause, detail, run(report, Fp64System(), tensors)
    yield from _steps_otherwise(report)
    yield from _log_of_sigmoid(report)
    yield from _last_token(report, truth)


def _other_decays(report: CaseReport) -> Iterator[Fault]:
    """Every decay changed in one way."""
    changes: list[tuple[str, str, Decays]] = [
        ("decay_sign", "every decay has lost its sign", np.abs),
        ("decay_clamped", "no decay is above 1", lambda w: np.minimum(w, 1.0)),
    ]
    for fmt in SHORT:
        text = f"every decay is rounded to {fmt.name}"
        changes.append(("short_decay", text, _rounding(fmt)))
    for cause, detail, change in changes:
        touched: list[bool] = []

        def changed(
            lowered: Lowered,
            start: int,
            change: Decays = change,
            touched: list[bool] = touched,
        ) -> FloatArray:
            other = change(lowered.w.value)
            touched.append(bool((other != lowered.w.value).any()))
            return other

        outputs = run(report, OtherDecays(changed))
        if any(touched):
            yield cause, detail, outputs
    yield (
        "gate_shift",
        "each token decays by the gate of the token before",
        run(report, OtherDecays(_shifted())),
    )


def _rounding(fmt: Format) -> Decays:
    return lambda w: round_array(fmt, w)


def _shifted() -> Callable[[Lowered, int], FloatArray]:
    """Decays one step later than they belong, 1 at the first."""
    last: list[FloatArray] = []

    def change(lowered: Lowered, start: int) -> FloatArray:
        w = lowered.w.value
        before = last.pop() if last else np.ones_like(w[:, :1])
        last.append(w[:, -1:].copy())
        return np.concatenate([before, w[:, :-1]], 1)

    return change


def _other_tensors(
    report: CaseReport,
) -> Iterator[tuple[str, str, dict[str, FloatArray]]]:
    """The case's tensors with one of them changed, where that changes it."""
    tensors = report.inputs.tensors
    for name, values in tensors.items():
        for cause, detail, other in _variants(report, name, values):
            if other.shape != values.shape or (other != values).any():
                yield cause, f"{name} {detail}", dict(tensors) | {name: other}
    for detail, keys in _other_groups(tensors) if "delta" in tensors else ():
        yield "key_group", detail, dict(tensors) | keys


def _other_groups(
    tensors: Mapping[str, FloatArray],
) -> Iterator[tuple[str, dict[str, FloatArray]]]:
    """Keys as they are read with a wrong number of the group."""
    keys = {n: tensors[n] for n in ("B", "C") if n in tensors}
    grouped = [n for n, values in keys.items() if values.ndim == 4]
    if not grouped:
        return
    channels = tensors["u"].shape[1]
    yield (
        "channel d uses group d % G, and d // (D / G) is its own",
        {n: _interleaved(values, channels) for n, values in keys.items()},
    )
    if keys[grouped[0]].shape[1] == 1:
        return
    for names in dict.fromkeys([tuple(grouped), *((n,) for n in grouped)]):
        told = " and ".join(names)
        first = {n: np.broadcast_to(keys[n][:, :1], keys[n].shape) for n in names}
        yield f"{told} of the first group is used in all groups", first
        rolled = {n: np.roll(keys[n], -1, axis=1) for n in names}
        yield f"{told} of the next group is used", rolled


def _variants(
    report: CaseReport, name: str, values: FloatArray
) -> Iterator[tuple[str, str, FloatArray]]:
    """One tensor in the ways that kernels are known to get it wrong."""
    spec = spec_of(op_of(report.case), name, values.ndim)
    if name == "A":
        yield "weight_sign", "is taken as -|A|", -np.abs(values)
        scales = WEIGHT_SCALES if values.ndim == 2 else VECTOR_SCALES
        for bits in WEIGHT_BITS:
            for axes, per in scales:
                detail = f"is quantised to {bits} bits, one scale per {per}"
                yield "quantised_weights", detail, _quantised(values, bits, axes)
    stored = tensor_format(report.case, spec)
    for fmt in SHORT:
        # A rounded `a` is a rounded decay, which has a name of its own.
        if fmt.precision < stored.precision and name != "a":
            detail = f"is rounded from {stored.name} to {fmt.name}"
            yield "short_input", detail, round_array(fmt, values)
    if spec.axes[0] == "B" and values.shape[0] > 1:
        first = np.broadcast_to(values[:1], values.shape)
        yield "batch_rows", "of the first batch row is used in all rows", first
        rolled = np.roll(values, -1, axis=0)
        yield "batch_rows", "of the next batch row is used", rolled


def _quantised(values: FloatArray, bits: int, axes: tuple[int, ...]) -> FloatArray:
    """Values in 2**bits - 1 equal steps about zero, the largest magnitude kept.

    The scale is formed in fp32, as kernels form it.
    """
    levels = 2.0 ** (bits - 1) - 1.0
    peak = np.max(np.abs(values), axis=axes, keepdims=True)
    unit = round_array(FP32, np.where(peak == 0.0, 1.0, peak) / levels)
    return round_array(FP32, np.round(round_array(FP32, values / unit)) * unit)


def _interleaved(keys: FloatArray, channels: int) -> FloatArray:
    """Keys per channel, groups taken in turn; ungrouped keys repeated."""
    if keys.ndim == 3:
        keys = keys[:, None]
    if keys.ndim == 2:
        return keys
    return np.tile(keys, (1, channels // keys.shape[1], 1, 1))


def _steps_otherwise(report: CaseReport) -> Iterator[Fault]:
    """Small steps lost in 1 + exp(x), or steps in the format of the tensors."""
    x = softplus_argument(report)
    if x is None:
        return
    fmt = format_named(report.case.dtype)
    others = [("softplus_sum", SOFTPLUS_SUM, by_sum(x))]
    short = in_format(report, fmt)
    if short is not None and fmt.precision < FP32.precision:
        others.append(("short_step", SHORT_STEP.format(fmt.name), short))
    for cause, detail, steps in others:
        inputs = with_steps(report, steps)
        outputs = run(report, Fp64System(), inputs.tensors, inputs.switches)
        yield cause, detail, outputs


def _log_of_sigmoid(report: CaseReport) -> Iterator[Fault]:
    """Small log gates lost in 1 / (1 + exp(-f)), where the op takes logsigmoid(f)."""
    if report.case.op != MLSTM.name:
        return
    f = report.inputs.tensors["f"]
    sums = round_array(FP32, 1.0 + np.exp(np.minimum(-f, LARGEST_EXPONENT)))
    gates = round_array(FP32, 1.0 / sums)
    with np.errstate(divide="ignore"):
        other = np.log(gates) - np.log1p(-gates)  # whose sigmoid they are
    tensors = report.inputs.tensors | {"f": other}
    yield "log_of_sigmoid", SIGMOID_LOG, run(report, Fp64System(), tensors)


def _last_token(report: CaseReport, truth: Outputs) -> Iterator[Fault]:
    """Final states of all tokens but each sequence's last, and a right sequence."""
    op, tensors = op_of(report.case), report.inputs.tensors
    if truth[op.outputs[0].name].size == 0:
        return
    sequences = [tensors]
    if op.calling is not None:
        call = Call(op, tensors, np.asarray, lambda number, terms: number)
        sequences = [
            {name: call.cut(name, x, segment) for name, x in tensors.items()}
            for segment in call.segments
        ]
    found = [_but_the_last(plain(op), one, report) for one in sequences]
    states = {
        spec.name: np.concatenate([outputs[spec.name] for outputs in found])
        for spec in state_outputs(op)
    }
    yield (
        "last_token",
        "the final state is the one before the last token",
        truth | states,
    )


def _but_the_last(op: Op, tensors: Outputs, report: CaseReport) -> Outputs:
    """The oracle's outputs for the tokens of a sequence but its last."""
    kept = {}
    for name, values in tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        kept[name] = values
        if op.time_axis in axes:
            # A relation's inputs may be some of the case's tokens only.
            axis = axes.index(op.time_axis)
            kept[name] = np.take(values, np.arange(values.shape[axis] - 1), axis)
    outputs = solve(Fp64System(), op, kept, report.inputs.switches).outputs
    return {name: ball.value for name, ball in outputs.items()}
