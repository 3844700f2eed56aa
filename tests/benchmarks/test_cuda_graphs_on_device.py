"""What counts against a call in a CUDA graph is seen on a device."""

import pytest
import torch
from cuda_graphs import beside_pool, on_stream, replayed, synchronises

from scancheck.kernels.cuda.toolkit import unavailable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
Tensors = dict[str, torch.Tensor]


def doubled(tensors: Tensors) -> list[torch.Tensor]:
    """Nothing that a graph cannot do."""
    return [2 * tensors["x"]]


def drawn(seed: int) -> Tensors:
    """One tensor on the device."""
    draw = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(100, generator=draw).cuda()}


def test_a_right_call_passes() -> None:
    """It neither waits nor differs, in graphs and on streams."""
    given = drawn(0)
    assert not synchronises(lambda: doubled(given))
    assert beside_pool(lambda: doubled(given)) == 0
    assert replayed(doubled, given, [drawn(1), drawn(2)]) == 0
    assert on_stream(doubled, given, doubled(given)) == 0


def test_waiting_is_seen() -> None:
    """A value that the host asks for."""
    given = drawn(0)
    assert synchronises(lambda: given["x"].sum().item())


def test_what_the_host_decides_is_seen() -> None:
    """A replay has what the host put in when the graph was captured."""
    calls: list[int] = []

    def counted(tensors: Tensors) -> list[torch.Tensor]:
        calls.append(1)
        return [tensors["x"] + len(calls)]

    assert replayed(counted, drawn(0), [drawn(1)]) > 90


def test_memory_of_another_pool_is_seen() -> None:
    """CuPy's, as of a kernel that makes its results there."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    held = []
    assert beside_pool(lambda: held.append(cupy.empty(2**22))) >= 2**25
