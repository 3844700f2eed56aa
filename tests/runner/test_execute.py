"""Whatever a kernel does wrong becomes data, named as what it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scancheck.errors import CaseInvalid
from scancheck.formats import FloatArray
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import model
from scancheck.ops import OPS
from scancheck.ops.calling import Calling, called
from scancheck.recipes.inputs import Inputs
from scancheck.runner import Outcome, execute

LINEAR_SCAN = OPS["linear_scan"]
SHAPE = (2, 5, 3)


def inputs(shape: tuple[int, int, int] = SHAPE, *, state: bool = False) -> Inputs:
    """Small integers and halves, exact in every format."""
    steps = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    tensors = {"a": np.full(shape, 0.5), "b": steps % 7 - 3}
    if state:
        tensors["initial_state"] = np.ones((shape[0], shape[2]))
    return Inputs(tensors=tensors, switches={})


def ones(*names: str, shape: tuple[int, int, int] = SHAPE) -> dict[str, FloatArray]:
    """Cotangents of ones for these outputs."""
    shapes = {"h": shape, "final_state": (shape[0], shape[2])}
    return {name: np.ones(shapes[name]) for name in names}


def run(call: Callable[..., Any], **options: Any) -> Outcome:
    """The outcome of a linear_scan callable in fp32."""
    kernel = Kernel(name="tried", op="linear_scan", call=call)
    given = options.pop("inputs", inputs())
    return execute(kernel, LINEAR_SCAN, given, "fp32", **options)


def kind(outcome: Outcome) -> str | None:
    """The kind of the outcome's problem."""
    return outcome.problem.kind if outcome.problem else None


def loop(*, a: Tensor, b: Tensor) -> Tensor:
    """A right kernel: the recurrence token by token."""
    h, rows = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        rows.append(h)
    return torch.stack(rows, 1)


def test_right_kernel_has_no_problem() -> None:
    """Values, gradients and repeats of a right kernel, and nothing else."""
    outcome = run(loop, cotangents=ones("h"))
    h = np.zeros((2, 3))
    given = inputs().tensors
    for t in range(5):
        h = given["a"][:, t] * h + given["b"][:, t]
        assert (outcome.outputs["h"][:, t] == h).all()
    assert outcome.problem is None
    assert outcome.returned == ("h",)
    assert (outcome.gradients["b"][:, -1] == 1.0).all()
    assert outcome.missing_gradients == ()
    assert not outcome.differs["h"].any()
    assert set(outcome.gradient_differs) == {"a", "b"}
    assert outcome.seconds > 0.0


def test_gradients_only_when_asked_for() -> None:
    """The kernel is called `runs` times, and twice more when given cotangents."""
    calls = []

    def counted(*, a: Tensor, b: Tensor) -> Tensor:
        calls.append(b.requires_grad)
        return a * b

    assert run(counted, runs=4).gradients == {}
    assert calls == [False] * 4
    calls.clear()
    run(counted, cotangents=ones("h"))
    assert calls == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    "kernel",
    [*controls(), *faulty(), model("linear_scan", "chunk", "plain")],
    ids=lambda kernel: kernel.name,
)
def test_built_in_kernels_run(kernel: Kernel) -> None:
    """Planted bugs return both outputs, and only what changes inputs is a problem."""
    op = OPS[kernel.op]
    sizes = {"B": 1, "T": 70, "L": 70, "D": 2, "N": 2, "G": 1}
    tensors = {
        spec.name: np.full([sizes[axis] for axis in spec.axes], 0.5)
        for spec in op.inputs
        if spec.name != "g"
    }
    tensors |= {"A": -np.ones((2, 2))} if "A" in tensors else {}
    cotangents = {
        spec.name: np.ones([sizes[axis] for axis in spec.axes]) for spec in op.outputs
    }
    given = Inputs(tensors=tensors, switches=dict.fromkeys(op.switches, True))
    outcome = execute(kernel, op, given, kernel.dtypes[0], cotangents=cotangents)
    kind = outcome.problem.kind if outcome.problem is not None else None
    assert kind == ("input_changed" if kernel.symptom == "input_changed" else None)
    assert outcome.returned == tuple(spec.name for spec in op.outputs)
    assert set(outcome.gradients) == set(tensors)


def raises(*, a: Tensor, b: Tensor) -> Tensor:
    """A kernel that fails."""
    raise ValueError("no such tile")


def shows_source(*, a: Tensor, b: Tensor) -> Tensor:
    """A kernel that fails as compilers do, with source between place and reason."""
    raise ValueError(
        f"at 52:18:\n\n    x = dot(b_do, b_v){' ' * 400}\n    ^\ntoo small\n"
    )


def points_at_a_call(*, a: Tensor, b: Tensor) -> Tensor:
    """A kernel that fails as Triton does in a function that it calls."""
    try:
        shows_source(a=a, b=b)
    except ValueError as error:
        raise TypeError("at 4:8:\n    z = helper(x, x)\n        ^\n") from error
    raise AssertionError


def exits(*, a: Tensor, b: Tensor) -> Tensor:
    """A kernel that wants to end the process."""
    raise SystemExit(3)


def recurses(*, a: Tensor, b: Tensor) -> Tensor:
    """A kernel that never comes back."""
    return recurses(a=a, b=b)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (raises, "ValueError: no such tile (test_execute.py:"),
        (shows_source, "ValueError: at 52:18: ... too small (test_execute.py:"),
        (points_at_a_call, "TypeError: at 4:8: ... too small (test_execute.py:"),
        (exits, "SystemExit: 3 (test_execute.py:"),
        (recurses, "RecursionError: maximum recursion depth exceeded"),
        (lambda *, a, b: torch.stack([a[0, 0], b[0]]), "RuntimeError: stack expects"),
    ],
)
def test_raising_kernel_is_data(call: Callable[..., Any], what: str) -> None:
    """One line says what was raised and where in the kernel's own file."""
    outcome = run(call)
    assert kind(outcome) == "raised"
    assert outcome.problem is not None
    assert outcome.problem.message.startswith(f"raised {what}")
    assert "test_execute.py:" in outcome.problem.message
    assert "\n" not in outcome.problem.message
    assert "scancheck/runner" not in outcome.problem.detail
    assert outcome.outputs == {}


def test_keyboard_interrupt_passes_through() -> None:
    """Ctrl-C inside a kernel is the user's and ends the run."""

    def interrupted(*, a: Tensor, b: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupted)


@pytest.mark.parametrize(
    ("call", "expected", "message"),
    [
        (lambda *, a, b: b[:, :2].clone(), "wrong_shape", "(2, 5, 3); got (2, 2, 3)"),
        (lambda *, a, b: b.double(), "wrong_dtype", "torch.float32; got torch.float64"),
        (lambda *, a, b: b.to(torch.complex64), "wrong_dtype", "got torch.complex64"),
        (lambda *, a, b: b.numpy().copy(), "not_tensor", "numpy.ndarray"),
        (lambda *, a, b: b.to_sparse(), "not_tensor", "torch.sparse_coo"),
        (lambda *, a, b: {"h": b}, "not_tensor", "builtins.dict"),
        (lambda *, a, b: b.to("meta"), "device", "cpu; got meta"),
        (lambda *, a, b: None, "wrong_count", "no output; expected a tensor"),
        (lambda *, a, b: (), "wrong_count", "a tuple of h, final_state"),
        (lambda *, a, b: (a * b, b.clone()), "wrong_shape", "final_state: expected"),
        (
            lambda *, a, b: (a * b, (a * b)[:, -1].bfloat16()),
            "wrong_dtype",
            "final_state: expected dtype torch.float32",
        ),
    ],
)
def test_wrong_outputs_are_named(
    call: Callable[..., Any], expected: str, message: str
) -> None:
    """Shape, dtype, kind, device and number of outputs are the op's, or it is said."""
    outcome = run(call)
    assert kind(outcome) == expected
    assert outcome.problem is not None
    assert message in outcome.problem.message
    assert outcome.outputs == {}


def test_third_output_is_a_usage_error() -> None:
    """More outputs than the op has is the caller's mistake, not the kernel's."""
    with pytest.raises(CaseInvalid, match=r"at most 2 .*got 3"):
        run(lambda *, a, b: (a * b, b[:, 0], b))


def test_none_in_a_place_is_an_output_not_returned() -> None:
    """None stands for an output that the kernel does not give."""
    assert run(lambda *, a, b: (a * b, None)).returned == ("h",)
    assert run(lambda *, a, b: [None, b[:, -1].clone()]).returned == ("final_state",)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_tensors_have_the_dtype_of_their_kind(dtype: str) -> None:
    """Storage tensors come in the case's dtype, states in fp32, or fp64 with fp64."""
    seen: dict[str, torch.dtype] = {}

    def watched(*, a: Tensor, b: Tensor, initial_state: Tensor) -> Any:
        seen.update(b=b.dtype, initial_state=initial_state.dtype)
        return a * b, initial_state.clone()

    kernel = Kernel(name="tried", op="linear_scan", call=watched)
    outcome = execute(kernel, LINEAR_SCAN, inputs(state=True), dtype)
    wide = torch.float64 if dtype == "fp64" else torch.float32
    short = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, wide)
    assert outcome.problem is None
    assert seen == {"b": short, "initial_state": wide}


def test_written_input_is_seen() -> None:
    """A kernel that scans in place is told which input it changed."""

    def in_place(*, a: Tensor, b: Tensor) -> Tensor:
        b[:, 1:] += a[:, 1:] * b[:, :-1]
        return b.clone()

    outcome = run(in_place)
    assert kind(outcome) == "input_changed"
    assert outcome.changed_inputs == ("b",)
    assert outcome.returned == ("h",)


def test_input_written_with_its_own_values_counts_as_unchanged() -> None:
    """Only bits matter: a write of the same value is no change."""

    def rewritten(*, a: Tensor, b: Tensor) -> Tensor:
        b.copy_(b.clone())
        return a * b

    assert run(rewritten).problem is None


def test_sign_of_zero_in_an_input_is_a_change() -> None:
    """A zero that becomes minus zero is seen although it compares equal."""

    def negated(*, a: Tensor, b: Tensor) -> Tensor:
        b[b == 0.0] = -0.0
        return a * b

    assert run(negated).changed_inputs == ("b",)


@pytest.mark.parametrize(
    "call",
    [
        lambda *, a, b: b,
        lambda *, a, b: b.view(2, 5, 3),
        lambda *, a, b: (a * b, b[:, -1]),
        lambda *, a, b: a.as_strided((2, 5, 3), (0, 0, 0)),
    ],
    ids=["itself", "reshaped", "last-token", "expanded"],
)
def test_view_of_an_input_is_seen(call: Callable[..., Any]) -> None:
    """An output that lives in an input's memory is named, its values are kept."""
    outcome = run(call)
    assert kind(outcome) == "aliases_input"
    assert "h" in outcome.outputs


def past_the_end(tensor: Tensor, extra: int) -> Tensor:
    """The tensor as one row with `extra` elements more than it has."""
    size = (tensor.numel() + extra,)
    return tensor.as_strided(size, (1,), tensor.storage_offset())


def test_read_past_the_end_is_nan() -> None:
    """An element from behind the input poisons the output that uses it."""

    def reads_next(*, a: Tensor, b: Tensor) -> Tensor:
        return (past_the_end(b, 1)[1:] * 1.0).view(b.shape)

    outcome = run(reads_next)
    assert outcome.problem is None
    assert np.isnan(outcome.outputs["h"]).sum() == 1
    assert np.isnan(outcome.outputs["h"][-1, -1, -1])


@pytest.mark.parametrize("where", [-1, 0])
def test_write_outside_an_input_is_seen(where: int) -> None:
    """A write behind or before an input is told, though all values are as before."""

    def writes_outside(*, a: Tensor, b: Tensor) -> Tensor:
        first = b.storage_offset() - 1
        b.as_strided((b.numel() + 2,), (1,), first)[where] = 0.0
        return a * b

    outcome = run(writes_outside)
    assert kind(outcome) == "wrote_outside"
    assert outcome.changed_inputs == ()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 7, 1), (2, 50, 3), (2, 500, 8), (4, 4096, 64)]
)
def test_unwritten_output_is_nan(shape: tuple[int, int, int]) -> None:
    """What a kernel never writes holds no plausible number, at any size."""

    def unwritten(*, a: Tensor, b: Tensor) -> Any:
        return torch.empty_like(b), torch.empty_like(b[:, 0])

    outcome = run(unwritten, inputs=inputs(shape))
    for values in outcome.outputs.values():
        assert np.isnan(values).all()


def test_output_that_stops_early_is_nan_after_the_first_run_too() -> None:
    """The right values of an earlier run are not handed out again as fresh memory."""

    def stops_early(*, a: Tensor, b: Tensor) -> Tensor:
        h = torch.empty_like(b)
        if stops_early.calls == 0:  # type: ignore[attr-defined]
            h.copy_(a * b)
        else:
            h[:, :-1] = (a * b)[:, :-1]
        stops_early.calls += 1  # type: ignore[attr-defined]
        return h

    stops_early.calls = 0  # type: ignore[attr-defined]
    outcome = run(stops_early)
    assert outcome.differs["h"][:, -1].all()
    assert not outcome.differs["h"][:, :-1].any()


def test_random_kernel_differs_in_the_same_way_every_time() -> None:
    """Noise shows as a difference between runs, and a replay gives the same noise."""

    def noisy(*, a: Tensor, b: Tensor) -> Tensor:
        h = a * b
        h[0, 2] += torch.rand(3)
        return h

    torch.manual_seed(1)
    first = run(noisy)
    torch.manual_seed(2)
    second = run(noisy)
    assert first.differs["h"][0, 2].all()
    assert first.differs["h"].sum() == 3
    assert (first.outputs["h"] == second.outputs["h"]).all()


def test_difference_in_the_last_run_is_seen() -> None:
    """All runs are compared with the first, not only the second."""

    def late(*, a: Tensor, b: Tensor) -> Tensor:
        late.calls += 1  # type: ignore[attr-defined]
        return a * b if late.calls < 3 else -(a * b)  # type: ignore[attr-defined]

    late.calls = 0  # type: ignore[attr-defined]
    assert run(late).differs["h"].all()


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (0, 0, 3)])
def test_empty_tensors_run(shape: tuple[int, int, int]) -> None:
    """T = 0 and B = 0 reach the kernel, and an empty view is no alias."""
    outcome = run(
        lambda *, a, b: a * b, inputs=inputs(shape), cotangents=ones("h", shape=shape)
    )
    assert outcome.problem is None
    assert outcome.outputs["h"].shape == shape
    assert outcome.gradients["a"].shape == shape
    assert kind(run(lambda *, a, b: b, inputs=inputs(shape))) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -2.0, 1e30])
def test_any_value_reaches_the_kernel(value: float) -> None:
    """Infinite, NaN, negative and huge decays are handed over as they are."""
    value = float(np.float32(value))
    given = inputs()
    given.tensors["a"][0, 1, 0] = value
    outcome = run(lambda *, a, b: a.clone(), inputs=given)
    assert outcome.problem is None
    assert np.array_equal(outcome.outputs["h"], given.tensors["a"], equal_nan=True)


def test_refused_parameter_is_a_usage_error() -> None:
    """A case that passes what the kernel does not take is not run."""
    with pytest.raises(CaseInvalid, match="takes no initial_state"):
        run(loop, inputs=inputs(state=True))


@pytest.mark.parametrize(
    "cotangents", [{"h": np.ones((2, 5, 4))}, {"y": np.ones(SHAPE)}]
)
def test_cotangents_that_do_not_fit_are_an_error(
    cotangents: dict[str, FloatArray],
) -> None:
    """A wrong cotangent is the harness's fault and never blamed on the kernel."""
    with pytest.raises(ValueError, match="cotangents: expected"):
        run(loop, cotangents=cotangents)


def seen(given: dict[str, Any]) -> Callable[..., Tensor]:
    """A kernel that keeps what it is told of its sequences, and changes it."""

    def call(*, a: Tensor, b: Tensor, **how: Any) -> Tensor:
        given.update(
            {name: x.clone() if x is not True else x for name, x in how.items()}
        )
        for x in how.values():
            if x is not True:
                x.zero_()
        return b.clone()

    return call


@pytest.mark.parametrize(
    ("calling", "argument", "values"),
    [
        (Calling(cu_seqlens=(0, 0, 5)), "cu_seqlens", [0, 0, 5]),
        (Calling(reverse=True), "reverse", True),
        (
            Calling(lengths=(2, 5)),
            "attention_mask",
            [[True, True, False, False, False], [True] * 5],
        ),
    ],
)
def test_how_it_is_called_is_passed_anew_each_time(
    calling: Calling, argument: str, values: Any
) -> None:
    """Offsets and masks come as tensors that no earlier call has written to."""
    given: dict[str, Any] = {}
    names = ("a", "b", argument)
    kernel = Kernel(name="k", op="linear_scan", call=seen(given), supports=names)
    shape = (1 if calling.cu_seqlens else 2, 5, 3)
    outcome = execute(kernel, called(LINEAR_SCAN, calling), inputs(shape), "fp32")
    assert outcome.problem is None
    assert list(given) == [argument]
    assert (given[argument] is True) or given[argument].tolist() == values
    assert values is True or given[argument].dtype in (torch.int64, torch.bool)


def test_a_call_that_is_not_taken_is_refused() -> None:
    """The argument is named."""
    kernel = Kernel(name="k", op="linear_scan", call=loop)
    packed = called(LINEAR_SCAN, Calling(cu_seqlens=(0, 5)))
    with pytest.raises(CaseInvalid, match="takes no cu_seqlens, which this case"):
        execute(kernel, packed, inputs((1, 5, 3)), "fp32")


def test_what_is_put_out_at_padding_is_not_judged() -> None:
    """NaN there, also from run to run, is no fault; it reads as zero."""

    def call(*, a: Tensor, b: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        noise = torch.full_like(b, float("nan"))
        assert attention_mask is not None
        return torch.where(attention_mask[..., None], b, noise)

    kernel = Kernel(name="k", op="linear_scan", call=call)
    padded = called(LINEAR_SCAN, Calling(lengths=(2, 5)))
    outcome = execute(kernel, padded, inputs(), "fp32")
    assert outcome.problem is None
    assert not outcome.outputs["h"][0, 2:].any()
    assert np.isfinite(outcome.outputs["h"]).all()
    assert not outcome.differs["h"].any()


def test_states_of_packed_sequences_have_their_own_number() -> None:
    """A final state for each batch row is of the wrong shape."""

    def call(*, a: Tensor, b: Tensor, cu_seqlens: Tensor | None = None) -> Any:
        return loop(a=a, b=b), b[:, -1].float().clone()

    kernel = Kernel(name="k", op="linear_scan", call=call)
    packed = called(LINEAR_SCAN, Calling(cu_seqlens=(0, 2, 5)))
    outcome = execute(kernel, packed, inputs((1, 5, 3)), "fp32")
    assert kind(outcome) == "wrong_shape"
