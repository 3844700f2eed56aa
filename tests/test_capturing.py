"""A running model's call leaves its tensors in a file, and is otherwise untouched."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scancheck import capture
from scancheck.captured import read_captured
from scancheck.errors import CaseInvalid

CALLS: list[int] = []


def selective_scan_fn(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """As mamba_ssm calls it; gives back u."""
    CALLS.append(1)
    return u


def arguments(scale: float = 1.0) -> dict[str, Any]:
    """Arguments of one call."""
    return {
        "u": scale * torch.randn(1, 4, 8, requires_grad=True).transpose(1, 2),
        "delta": -torch.rand(1, 8, 4),
        "A": -torch.rand(8, 2),
        "B": torch.randn(1, 2, 4),
        "C": torch.randn(1, 2, 4),
    }


def test_a_call_is_recorded_as_it_was(tmp_path: Path) -> None:
    """Tensors, switches and results are those of the call; the rest is left out."""
    module = SimpleNamespace(scan=selective_scan_fn)
    given = arguments()
    path = tmp_path / "c.safetensors"
    with capture(module, "scan", path, op="selective_scan"):
        got = module.scan(*given.values(), delta_softplus=True, return_last_state=True)
    assert got is given["u"]
    assert module.scan is selective_scan_fn
    found = read_captured(str(path))
    assert set(found.tensors) == set(given)
    assert all(torch.equal(found.tensors[n], t) for n, t in given.items())
    assert found.switches == {"delta_softplus": True}
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_names_and_number_of_the_call(tmp_path: Path) -> None:
    """Another name is mapped to the op's, and a later call can be chosen."""

    def scan(gates: Any, **rest: Any) -> Any:
        return rest["x"]

    module = SimpleNamespace(scan=scan)
    path = tmp_path / "c.safetensors"
    calls = [(-torch.rand(1, 6, 2), torch.randn(1, 6, 2)) for _ in range(3)]
    with capture(
        module, "scan", path, op="linear_scan", call=1, names={"gates": "g", "x": "b"}
    ):
        for gates, x in calls:
            module.scan(gates, x=x)
    found = read_captured(str(path))
    assert torch.equal(found.tensors["g"], calls[1][0])
    assert torch.equal(found.tensors["b"], calls[1][1])


def test_a_call_that_never_comes(tmp_path: Path) -> None:
    """Fewer calls than asked for is an error, after the model ran."""
    module = SimpleNamespace(scan=selective_scan_fn)
    path = tmp_path / "c.safetensors"
    with (
        pytest.raises(CaseInvalid, match="at least 2 calls of scan; got 1"),
        capture(module, "scan", path, op="selective_scan", call=1),
    ):
        module.scan(**arguments())
    assert not path.exists()
    assert module.scan is selective_scan_fn


def test_an_error_of_the_model_is_its_own(tmp_path: Path) -> None:
    """What the model raises comes through, and the function is restored."""
    module = SimpleNamespace(scan=selective_scan_fn)
    with (
        pytest.raises(ZeroDivisionError),
        capture(module, "scan", tmp_path / "c.safetensors", op="selective_scan"),
    ):
        raise ZeroDivisionError
    assert module.scan is selective_scan_fn


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "missing"}, "expected a function 'missing'"),
        ({"op": "mamba"}, "op 'mamba' is unknown"),
        ({"call": -1}, "expected 0 or more; got -1"),
        ({"path": "none/c.safetensors"}, "the folder cannot be written"),
    ],
)
def test_wrong_arguments_are_told_before_the_model_runs(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Nothing runs for an hour to find that the file cannot be written."""
    module = SimpleNamespace(scan=selective_scan_fn)
    given = {"name": "scan", "path": "c.safetensors", "op": "selective_scan"} | changes
    with (
        pytest.raises(CaseInvalid, match=message),
        capture(
            module,
            given["name"],
            tmp_path / given["path"],
            op=given["op"],
            call=given.get("call", 0),
        ),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": torch.ones(8, 2, dtype=torch.complex64)}, "A: expected a real tensor"),
        ({"C": None}, "the call has no C"),
        ({"B": 1.5}, "B: expected a real tensor; got <class 'float'>"),
    ],
)
def test_a_call_that_is_not_the_ops(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """A call without the op's tensors says what it lacks, and leaves no file."""
    module = SimpleNamespace(scan=selective_scan_fn)
    with (
        pytest.raises(CaseInvalid, match=message),
        capture(module, "scan", tmp_path / "c.safetensors", op="selective_scan"),
    ):
        module.scan(**(arguments() | change))
    assert list(tmp_path.iterdir()) == []
