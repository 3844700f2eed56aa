"""The normal form in chunks, as matrix products, in model arithmetic.

A form's chunks are formed without a state as far as that goes (`chunk_rules`), and the
state goes from one to the next, in its own format. Backwards every operation is pulled
back in turn (`tape`), from the inputs again. `outputs` and `adjoint` are to a ChunkForm
what those of step_form and step_adjoint are to an algorithm step by step.
"""

from dataclasses import dataclass, fields

import numpy as np

from scancheck.kernels.models.arithmetic import Arithmetic, Array
from scancheck.kernels.models.chunk_decays import (
    ChunkDecays,
    FactoredDecays,
    HeadDecays,
    KeyDecays,
)
from scancheck.kernels.models.chunk_frame import ChunkForm, by_time, in_chunks
from scancheck.kernels.models.chunk_rules import Named, rule_of
from scancheck.kernels.models.pair_decays import (
    of_differences,
    of_products,
    of_segment_sums,
)
from scancheck.kernels.models.step_form import Steps
from scancheck.kernels.models.tape import Tape, Variable

PAIRS = {"diff": of_differences, "segsum": of_segment_sums, "products": of_products}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run on a tape."""

    tape: Tape
    steps: Named
    initial: Variable
    outputs: list[Variable]  # of each chunk, [..., C, L]
    final: Variable


def outputs(
    arithmetic: Arithmetic, form: ChunkForm, steps: Steps, initial: Array
) -> tuple[Array, Array]:
    """o [T, ..., L] and the final state [..., K, L]."""
    run = _run(arithmetic, form, steps, initial)
    o = [variable.value for variable in run.outputs]
    return _by_time(o, steps.values), run.final.value


def adjoint(
    arithmetic: Arithmetic,
    form: ChunkForm,
    steps: Steps,
    initial: Array,
    obar: Array,
    final_bar: Array,
) -> tuple[Steps, Array]:
    """The cotangents of the steps, and that of the initial state [..., K, L].

    `obar` is [T, ..., L]. A cotangent carried back is rounded as the state is.
    """
    run = _run(arithmetic, form, steps, initial)
    bars = in_chunks(obar, _chunk(form, steps), 0.0)
    seeds = list(zip(run.outputs, bars, strict=True))
    run.tape.pull_back([*seeds, (run.final, final_bar)])
    length = len(steps.keys)
    found = {
        name: by_time(_bar(variable), length) for name, variable in run.steps.items()
    }
    return Steps(**found), _bar(run.initial)


def _bar(variable: Variable) -> Array:
    if variable.bar is None:
        return np.zeros_like(variable.value)
    return variable.bar


def _by_time(chunks: list[Array], like: Array) -> Array:
    if not chunks:
        return np.empty_like(like)
    return by_time(np.stack(chunks), len(like))


def _chunk(form: ChunkForm, steps: Steps) -> int:
    """The chunk size, no longer than the sequence."""
    return max(1, min(form.chunk, len(steps.keys)))


def _run(arithmetic: Arithmetic, form: ChunkForm, steps: Steps, initial: Array) -> _Run:
    assert steps.value_decay is None, "chunk forms have no decay of values"
    tape, chunk = Tape(arithmetic), _chunk(form, steps)
    unused = "log_decay" if form.decays == "products" else "decay"
    given = {
        field.name: Variable(
            in_chunks(getattr(steps, field.name), chunk, float(field.name == "decay"))
        )
        for field in fields(Steps)
        if getattr(steps, field.name) is not None and field.name != unused
    }
    state = first = Variable(initial)
    o: list[Variable] = []
    if len(steps.keys):
        decays = _decays(tape, form, given)
        rule = rule_of(tape, decays, given, form.inverse)
        for index in range(given["keys"].shape[0]):
            if index:
                state = tape.cast(form.state, state)
            read, state = rule.step(index, state)
            o.append(read)
    return _Run(tape=tape, steps=given, initial=first, outputs=o, final=state)


def _decays(tape: Tape, form: ChunkForm, given: Named) -> ChunkDecays:
    products = form.products(tape.arithmetic)
    if form.gates == "none":
        return ChunkDecays(tape=tape, products=products)
    if form.gates == "head" and form.decays in PAIRS:
        log = given["decay" if form.decays == "products" else "log_decay"]
        pairs, start = PAIRS[form.decays](tape, log)
        return HeadDecays(tape=tape, products=products, pairs=pairs, start=start)
    sums = tape.running_sums(given["log_decay"])
    nothing = Variable(np.zeros_like(sums.value[..., :1, :]))
    before = tape.part(sums, (..., slice(0, -1), slice(None)))
    earlier = tape.joined([nothing, before], -2)
    if form.decays == "factored":
        return FactoredDecays(tape=tape, products=products, sums=sums, earlier=earlier)
    block = form.block or sums.shape[-2]
    return KeyDecays(
        tape=tape, products=products, sums=sums, earlier=earlier, block=block
    )
