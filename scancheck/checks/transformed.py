"""Relations between a kernel's results on inputs and on transformed inputs.

Which hold to the bit, and for whom, is numerics section 4: for kernels that declare
additions and products of what they are given, in formats wide enough that nothing
scaled leaves the normal range. All others are held to the budget of the transformed
inputs, by the oracle.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scancheck.checks.oracle import CaseReport, check_inputs
from scancheck.checks.related import (
    Subject,
    bitwise,
    call_failed,
    compared,
    judged,
    renamed,
    run_once,
)
from scancheck.contract import resolve
from scancheck.formats import Format, format_named, round_array
from scancheck.ops.normal_form import has_plain_decays, spec_of, state_outputs
from scancheck.recipes.inputs import Inputs, case_sizes, tensor_format
from scancheck.recipes.streams import integers, stream

FloatArray = NDArray[np.float64]

PADDED = 5  # tokens of padding
SHUT = -256.0  # softplus of it, with any ordinary bias, is no step at all
UNHEARD = -16384.0  # an input gate that writes nothing, whatever the maximum is
POWER = 3  # exponent of the scale
DRIVES = {"linear_scan": "b", "selective_scan": "u", "ssd": "x"}  # of others: v
READS = ("C", "q", "r")  # readouts: a sum over states
# Values of tokens that leave a state as it is; retention's decay cannot be shut.
IDENTITY: dict[str, dict[str, float]] = {
    "linear_scan": {"a": 1.0, "g": 0.0, "b": 0.0},
    "linear_attention": {"v": 0.0},
    "normalized_linear_attention": {"k": 0.0},
    "simple_gla": {"g": 0.0, "v": 0.0},
    "gla": {"gk": 0.0, "gv": 0.0, "v": 0.0},
    "rwkv6": {"w": 0.0, "v": 0.0},
    "delta_rule": {"beta": 0.0},
    "gated_delta_rule": {"g": 0.0, "beta": 0.0},
    "gated_delta_product": {"g": 0.0, "beta": 0.0},
    "kda": {"g": 0.0, "beta": 0.0},
    "rwkv7": {"w": 0.0, "b": 0.0, "v": 0.0},
    "mlstm": {"f": -SHUT, "i": UNHEARD},
}
STEPS = {"selective_scan": ("u", "delta"), "ssd": ("x", "dt")}  # drive and step size
# Logarithms of drives are taken in none of these; in the others they are or may be.
LINEAR_IN_DRIVES = ("none", "diff", "segsum", "factored")


def padding(subject: Subject) -> CaseReport | None:
    """A few identity tokens behind: outputs and the final state must not change.

    The final state is that of the case, from an order over more tokens, so that it is
    judged by the budget of the padded inputs. None where the op has no identity token
    that these inputs can have.
    """
    padded = _padded(subject)
    return _by_oracle(subject, padded, "relation:padding")


def scaling(subject: Subject) -> CaseReport | None:
    """Drives and first state times 8: outputs must be 8 times those of the case.

    Further parts of a state, which no drive enters, must be what they were.

    To the bit for any declared structure, since scaling by a power of two commutes with
    rounding and its sums and products are linear in the drives.
    """
    scaled = {}
    for name in (DRIVES.get(subject.op.name, "v"), subject.op.state):
        if name in subject.inputs.tensors:
            scaled[name] = np.ldexp(subject.inputs.tensors[name], POWER)
    related = _changed(subject, scaled)
    check = "relation:scaling"
    contract = subject.request.contract
    if not bitwise(subject) or contract.log not in LINEAR_IN_DRIVES:
        return _by_oracle(subject, related, check)
    unscaled = {spec.name for spec in state_outputs(subject.op)[1:]}
    wanted = {
        name: values if name in unscaled else np.ldexp(values, POWER)
        for name, values in subject.whole.outcome.outputs.items()
    }
    return _to_the_bit(subject, related, wanted, POWER, check)


def time_similarity(subject: Subject) -> CaseReport | None:
    """a_t 2**(s_t - s_(t-1)) and b_t 2**s_t: every state must be 2**s_t times itself.

    s_t is 0 to 3 and changes at random. To the bit where a structure of sums and
    products is declared, since each product of decays is scaled by a power of two and
    all terms of a state by the same one. Only for decays that are given as such.
    """
    if not has_plain_decays(subject.op, subject.inputs.tensors):
        return None
    decay, drive = (subject.inputs.tensors[name] for name in ("a", "b"))
    source = stream("time_similarity", subject.case.seed)
    power = integers(source, 0, POWER, decay.shape)
    before = np.concatenate([np.zeros_like(power[:, :1]), power[:, :-1]], axis=1)
    related = _changed(
        subject,
        {"a": np.ldexp(decay, power - before), "b": np.ldexp(drive, power)},
    )
    check = "relation:time_similarity"
    contract = subject.request.contract
    declared = contract.structure.kind != "unknown" and contract.log == "none"
    if not bitwise(subject) or not declared:
        return _by_oracle(subject, related, check)
    sequence, final = (spec.name for spec in subject.op.outputs)
    powers = {sequence: power, final: power[:, -1]}
    wanted = {
        name: np.ldexp(values, powers[name])
        for name, values in subject.whole.outcome.outputs.items()
    }
    return _to_the_bit(subject, related, wanted, POWER, check)


def _padded(subject: Subject) -> Inputs | None:
    """The inputs with identity tokens appended, other values repeating the last."""
    op, inputs = subject.op, subject.inputs
    last = _identity(op.name, inputs)
    if last is None:
        return None
    tensors = {}
    for name, values in inputs.tensors.items():
        axes = spec_of(op, name, values.ndim).axes
        if op.time_axis in axes:
            width = [(0, 0)] * values.ndim
            width[axes.index(op.time_axis)] = (0, PADDED)
            if name in last:
                values = np.pad(values, width, constant_values=last[name])
            else:
                values = np.pad(values, width, mode="edge")
        tensors[name] = values
    return _changed(subject, tensors)


def _identity(op: str, inputs: Inputs) -> dict[str, float] | None:
    """Values of an identity token; None where the op, or its bias, permits none."""
    if op not in STEPS:
        return IDENTITY.get(op)
    drive, step = STEPS[op]
    if inputs.switches.get(f"{step}_softplus"):
        return {drive: 0.0, step: SHUT}
    return None if f"{step}_bias" in inputs.tensors else {drive: 0.0, step: 0.0}


def _changed(subject: Subject, tensors: dict[str, FloatArray]) -> Inputs | None:
    """The inputs with some tensors replaced; None where a format does not hold them."""
    for name, values in tensors.items():
        fmt = tensor_format(subject.case, spec_of(subject.op, name, values.ndim))
        if not np.array_equal(values, round_array(fmt, values)):
            return None
    return _within_domain(subject, subject.inputs.tensors | tensors)


def _within_domain(subject: Subject, tensors: dict[str, FloatArray]) -> Inputs | None:
    """The inputs, unless they lie outside the limits that the contract documents."""
    for name, lowest, highest in subject.request.contract.domain:
        values = tensors.get(name)
        if values is None or not values.size:
            continue
        if values.min() < lowest or values.max() > highest:
            return None
    return replace(subject.inputs, tensors=tensors)


def _by_oracle(
    subject: Subject, related: Inputs | None, check: str
) -> CaseReport | None:
    """The transformed inputs as a case of their own."""
    if related is None or subject.whole.outcome.problem is not None:
        return None
    report = check_inputs(
        subject.kernel, subject.case, related, replace(subject.request, runs=1)
    )
    return renamed(report, check)


def _to_the_bit(
    subject: Subject,
    related: Inputs | None,
    wanted: dict[str, FloatArray],
    power: int,
    check: str,
) -> CaseReport | None:
    """The outputs on transformed inputs against the transformed outputs.

    Slack is left to what underflow and a store below the normal range may do to either:
    numerics 2.4, lam T (T + |S_0| + sum of |b|) and an eta of the store, each scaled.
    """
    if related is None:
        return None
    outcome = run_once(subject, related)
    if outcome.problem is not None:
        return call_failed(subject, outcome, check)
    got = {name: v for name, v in outcome.outputs.items() if name in wanted}
    slack = {}
    for spec in subject.op.outputs:
        if spec.name not in wanted:
            continue
        values = wanted[spec.name]
        fmt = tensor_format(subject.case, spec)
        if not np.isfinite(values).all() or np.abs(values).max() > fmt.largest / 2:
            return judged(subject, {}, check)
        slack[spec.name] = _slack(subject, fmt, values)
    return compared(subject, got, wanted, slack, check)


def _slack(subject: Subject, fmt: Format, values: FloatArray) -> FloatArray:
    """What underflow may change, and nothing else."""
    contract, tensors = subject.request.contract, subject.inputs.tensors
    compute = format_named(resolve(contract, subject.case.dtype).compute)
    steps = dict(subject.case.sizes)[subject.op.time_axis]
    names = (DRIVES.get(subject.op.name, "v"), subject.op.state)
    moved = sum(float(np.abs(tensors[n]).sum()) for n in names if n in tensors)
    read = 1.0
    _, states, _ = subject.op.group_shape(case_sizes(subject.case))
    for name in READS:
        if name in tensors:
            read += float(np.abs(tensors[name]).max()) * states
    if "z" in tensors:
        read *= 1.0 + float(np.abs(tensors["z"]).max())
    scale = 4.0 * 2.0 ** (2 * POWER)
    lost = scale * compute.smallest_normal * steps * (steps + moved) * read
    below = np.abs(values) < scale * fmt.smallest_normal
    slack: FloatArray = lost + np.where(below, scale * fmt.smallest_subnormal, 0.0)
    return slack
