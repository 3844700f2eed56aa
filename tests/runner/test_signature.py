"""The signature decides what a kernel is given, and whether it can be called at all."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.kernels.faulty.catalog import controls, faulty
from scancheck.kernels.models.catalog import models
from scancheck.ops import OPS
from scancheck.runner import accepted_parameters

LINEAR = frozenset({"a", "g", "b", "initial_state"})


def accepted(call: Callable[..., Any], op: str = "linear_scan") -> frozenset[str]:
    """What the callable accepts of the op."""
    return accepted_parameters(Kernel(name="tried", op=op, call=call), OPS[op])


class Callable_:
    """An object that is called."""

    def __call__(self, a: Any, b: Any) -> Any:
        """A scan."""


@functools.wraps(lambda a, b: None)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    """A wrapper that shows the signature of what it wraps."""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(lambda a, b: 0, {"a", "b"}, id="plain"),
        pytest.param(lambda *, b, g: 0, {"g", "b"}, id="keyword-only"),
        pytest.param(lambda a, b, **more: 0, LINEAR, id="kwargs"),
        pytest.param(lambda **everything: 0, LINEAR, id="only-kwargs"),
        pytest.param(lambda *args, a, b: 0, {"a", "b"}, id="args"),
        pytest.param(lambda a, b, chunk=64: 0, {"a", "b"}, id="own-option"),
        pytest.param(lambda a, b, initial_state=None: 0, LINEAR - {"g"}, id="state"),
        pytest.param(functools.partial(lambda m, *, a, b: 0, 1), {"a", "b"}, id="part"),
        pytest.param(
            lambda a, b, cu_seqlens=None, reverse=False, **more: 0,
            LINEAR | {"cu_seqlens", "reverse"},
            id="packed",
        ),
        pytest.param(Callable_(), {"a", "b"}, id="object"),
        pytest.param(wrapped, {"a", "b"}, id="wrapped"),
    ],
)
def test_parameters_of_the_signature(
    call: Callable[..., Any], expected: set[str]
) -> None:
    """Parameters that the op has are accepted, in every way of writing them."""
    assert accepted(call) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda a, b, /: 0, "takes a, b by position only", id="positional-only"
        ),
        pytest.param(
            lambda gates, tokens: 0,
            "needs gates, tokens, which linear_scan does not have; "
            "expected parameters named a, b, g, initial_state",
            id="foreign-names",
        ),
        pytest.param(
            lambda a, b, chunk: 0, "needs chunk, which linear_scan", id="foreign-one"
        ),
        pytest.param(
            lambda chunk, **more: 0, "needs chunk, which", id="foreign-beside-kwargs"
        ),
        pytest.param(
            lambda a: 0, "takes no b, which every call of linear_scan", id="no-b"
        ),
        pytest.param(lambda b: 0, "neither form of linear_scan", id="no-form"),
        pytest.param(lambda: 0, "it takes none of its parameters", id="nothing"),
        pytest.param(min, "cannot be read", id="builtin"),
        pytest.param(
            lambda a, b, cu_seqlens: 0,
            "expected a default of cu_seqlens, since most calls do without; got none",
            id="always-packed",
        ),
        pytest.param(
            functools.partial(lambda m, *, a, b: 0), "needs m, which", id="unbound"
        ),
    ],
)
def test_impossible_signature_is_a_usage_error(
    call: Callable[..., Any], message: str
) -> None:
    """What cannot be called with the op's tensors says which parameter is wrong."""
    with pytest.raises(CaseInvalid, match="tried: ") as caught:
        accepted(call)
    assert message in str(caught.value)


def test_lacking_inputs_are_all_named() -> None:
    """selective_scan without A, B and C is refused with all three."""
    with pytest.raises(CaseInvalid, match="takes no A, B, C, which every call"):
        accepted(lambda u, delta, z=None: 0, "selective_scan")


def test_switches_are_parameters() -> None:
    """A boolean switch of the op is accepted like a tensor."""
    found = accepted(lambda u, delta, A, B, C, delta_softplus: 0, "selective_scan")
    assert "delta_softplus" in found


def test_declared_support_comes_before_the_signature() -> None:
    """`supports` narrows what kwargs would take, and may name only the op's own."""
    kernel = Kernel(
        name="tried", op="linear_scan", call=lambda **k: 0, supports=("a", "b")
    )
    assert accepted_parameters(kernel, OPS["linear_scan"]) == {"a", "b"}
    unknown = Kernel(
        name="tried", op="linear_scan", call=lambda **k: 0, supports=("a", "b", "q")
    )
    with pytest.raises(CaseInvalid, match="has no parameter q"):
        accepted_parameters(unknown, OPS["linear_scan"])


@pytest.mark.parametrize(
    "kernel", [*models(), *faulty(), *controls()], ids=lambda kernel: kernel.name
)
def test_built_in_kernels_can_be_called(kernel: Kernel) -> None:
    """Every built-in kernel accepts what its op cannot do without."""
    op = OPS[kernel.op]
    assert op.state in accepted_parameters(kernel, op)
