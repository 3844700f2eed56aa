"""Kernels that take one token at a time, as models do when they generate.

A step takes the state and the tensors of one token, and gives the token's output and
the next state. It is judged by running it over a sequence: token after token is the
sequential order, with the state stored in its format after every step.
"""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, Structure, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, format_named
from scancheck.kernel import Kernel
from scancheck.kernels.models.by_sequence import time_axis, widened
from scancheck.ops import op_named
from scancheck.ops.calling import sizes_of
from scancheck.ops.normal_form import Op, spec_of

if TYPE_CHECKING:
    from torch import Tensor

Step = Callable[..., Any]
STATE = "state"  # what a step may call the state, beside the op's own name for it


def decode(
    op: str, *, contract: Contract | str | None = None, state: str | None = None
) -> Callable[[Step], Kernel]:
    """Makes a kernel of `op` from a step, `step(state, token...) -> (output, state)`.

    The step's first parameter is the state, in the op's layout [B, ...]; the others are
    the op's tensors by name, those with tokens without their axis of time: q [B, H, K]
    of q [B, T, H, K]. A step that returns the output alone has changed the state in
    place. The contract is `structure=sequential` unless one is given.

    `state` names the format in which the caller keeps the state, by default that of
    the op's states, fp32 (fp64 in an fp64 case). In a shorter one there is no initial
    state, which would have to be rounded before it is used.

    Raises CaseInvalid for a step without a state, or with parameters that the op does
    not have.
    """
    if state is not None and state not in FORMATS:
        expected = ", ".join(FORMATS)
        raise CaseInvalid(f"decode state: expected one of {expected}; got {state!r}")
    if isinstance(contract, str):
        contract = parse_contract(contract)
    used = contract or Contract(
        structure=Structure(kind="sequential"), state=state or "compute"
    )

    def made(step: Step) -> Kernel:
        return Kernel(
            name=getattr(step, "__name__", type(step).__name__),
            op=op,
            call=over_sequence(op_named(op), step, state),
            contract=used,
            edge_sizes=True,
        )

    return made


def over_sequence(op: Op, step: Step, state: str | None = None) -> Callable[..., Any]:
    """The step as a callable in the op's calling form."""
    parameters = _parameters(op, step)
    keeps_own = state is None or state == "fp32"
    if keeps_own:
        parameters.append(Parameter(op.state, Parameter.KEYWORD_ONLY, default=None))

    def call(**arguments: Any) -> "tuple[Tensor, Tensor]":
        start = arguments.pop(op.state, None)
        return _run(op, step, state, arguments, start)

    call.__name__ = call.__qualname__ = getattr(step, "__name__", "step")
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameters(op: Op, step: Step) -> list[Parameter]:
    """The step's parameters but the state, to be given by name."""
    given = list(signature(step).parameters.values())
    if not given or given[0].name not in (STATE, op.state, op.outputs[1].name):
        got = given[0].name if given else "no parameter"
        raise CaseInvalid(
            f"decode: expected a step whose first parameter is {STATE}, and then "
            f"tensors of {op.name} by name; got {got}"
        )
    known = {spec.name for spec in op.inputs} | set(op.switches)
    for parameter in given[1:]:
        if parameter.name not in known and parameter.default is Parameter.empty:
            raise CaseInvalid(
                f"decode: {op.name} has no {parameter.name}; expected some of "
                f"{', '.join(sorted(known - {op.state}))}"
            )
    return [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in given[1:]
        if parameter.name in known
    ]


def _run(
    op: Op,
    step: Step,
    state: str | None,
    arguments: dict[str, Any],
    start: "Tensor | None",
) -> "tuple[Tensor, Tensor]":
    """The step over all tokens: outputs side by side, and the last state."""
    import torch

    tensors = {n: x for n, x in arguments.items() if isinstance(x, torch.Tensor)}
    others = {n: x for n, x in arguments.items() if n not in tensors and x is not None}
    sizes = sizes_of(op, tensors)
    sequence = op.outputs[0]
    like = next(x for n, x in tensors.items() if time_axis(op, n, x) is not None)
    own = torch.float64 if like.dtype == torch.float64 else torch.float32
    kept = own if state is None else getattr(torch, format_named(state).torch_name)
    if start is None:
        shape = [sizes[axis] for axis in spec_of(op, op.state).axes]
        carried = like.new_zeros(shape, dtype=kept)
    else:
        carried = start.to(kept, copy=True)
    outputs = []
    # A step gets the formats it was given; autograd adds up what its tokens share wide.
    short = {n: x.dtype for n, x in tensors.items()}
    wide = widened(op, tensors)
    for t in range(sizes[op.time_axis]):
        token = {n: _at(op, n, x, t).to(short[n]) for n, x in wide.items()}
        output, carried = _both(step(carried, **token, **others), carried)
        outputs.append(output)
    if outputs:
        whole = torch.stack(outputs, sequence.axes.index(op.time_axis))
    else:
        whole = like.new_zeros([sizes[axis] for axis in sequence.axes])
    return whole, carried.to(own, copy=not outputs)


def _both(returned: Any, before: "Tensor") -> "tuple[Tensor, Tensor]":
    """The token's output and the next state, which may be the one before, changed."""
    if not isinstance(returned, tuple | list):
        return returned, before
    if len(returned) != 2:
        raise ValueError(
            f"step: expected the output, or (output, state); got {len(returned)} values"
        )
    output, state = returned
    return output, state


def _at(op: Op, name: str, tensor: "Tensor", t: int) -> "Tensor":
    """What a tensor holds of one token, contiguous."""
    axis = time_axis(op, name, tensor)
    return tensor if axis is None else tensor.select(axis, t).contiguous()
