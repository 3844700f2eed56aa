"""linear_scan on a CUDA device against its CPU model, bit by bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from scancheck.kernels.cuda import linear_scan_launch
from scancheck.kernels.cuda.catalog import linear_scan
from scancheck.kernels.cuda.linear_scan_instances import ALGORITHMS
from scancheck.kernels.cuda.toolkit import unavailable
from scancheck.kernels.models import cuda_linear_scan as model
from scancheck.kernels.models.of_cuda_kernels import different

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = (
    (1, 1, 1),
    (2, 7, 3),
    (3, 128, 64),
    (2, 255, 5),
    (2, 257, 66),
    (1, 1000, 130),
    (2, 2048, 32),
    (1, 2177, 8),
    (2, 1300, 136),
)
FORMS = (
    ("single_pass", "plain", "a"),
    ("single_pass", "plain", "g"),
    ("single_pass", "kahan", "a"),
    ("single_pass", "full", "a"),
    ("single_pass", "full", "g"),
    ("single_pass", "segsum", "g"),
    *((algorithm, "plain", "a") for algorithm in list(ALGORITHMS)[1:]),
)
FP32, FP16, BF16 = DTYPES
OPTIONS = (
    (64, "fp32", FP32),
    (128, "fp32", FP16),
    (512, "fp32", FP32),
    (512, "fp32", BF16),
    (256, "bf16", FP32),
    (256, "fp16", BF16),
    (256, "bf16", FP16),
    (64, "fp16", FP32),
)
Tensors = dict[str, torch.Tensor]
Outputs = tuple[torch.Tensor, torch.Tensor]


def drawn(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    gate: str = "a",
    seed: int = 0,
) -> Tensors:
    """Slow decays, of either sign where given themselves; the rest is normal."""
    draw = torch.Generator().manual_seed(seed)
    a = 1 - 0.2 * torch.rand(shape, generator=draw)
    signs = torch.where(torch.rand(shape, generator=draw) < 0.1, -1.0, 1.0)
    b = torch.randn(shape, generator=draw)
    initial = torch.randn((shape[0], shape[2]), generator=draw)
    given = a * signs if gate == "a" else a.log()
    return {gate: given.to(dtype), "b": b.to(dtype), "initial_state": initial}


def on_device(tensors: Tensors) -> Tensors:
    """The same tensors on the device."""
    return {name: x.cuda() for name, x in tensors.items()}


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtypes, shapes and bits, where NaN equals NaN."""
    assert not different(got, expected).any()


def of_model(tensors: Tensors, variant: str, algorithm: str = "single_pass") -> Outputs:
    """What the model gives for the same tensors."""
    gates = {name: tensors.get(name) for name in ("a", "g")}
    states = {name: tensors[name] for name in ("b", "initial_state")}
    orders = model.ORDERS[algorithm], model.BACKWARD_ORDER
    return model.linear_scan(variant, *orders, **gates, **states)


@pytest.mark.parametrize(("algorithm", "variant", "gate"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_model(
    algorithm: str, variant: str, gate: str, dtype: torch.dtype
) -> None:
    """Outputs and gradients are the model's, for any length and channel count."""
    assert_bits_of_the_model(algorithm, variant, gate, dtype)


def assert_bits_of_the_model(
    algorithm: str, variant: str, gate: str, dtype: torch.dtype
) -> None:
    """The same, for every shape."""
    kernel = linear_scan(algorithm, variant).call
    for shape in SHAPES:
        assert_same_results(
            drawn(shape, dtype, gate=gate),
            kernel,
            lambda **leaves: of_model(leaves, variant, algorithm),
        )


@pytest.mark.parametrize(("chunk", "state", "dtype"), OPTIONS)
def test_bits_of_the_model_with_options(
    chunk: int, state: str, dtype: torch.dtype
) -> None:
    """So it is in chunks of any size, and where states are handed on in 16 bits."""
    kernel = linear_scan("single_pass", "plain", chunk=chunk, state=state).call
    orders = model.single_pass(chunk)

    def expected(*, a: Any = None, g: Any = None, b: Any, initial_state: Any) -> Any:
        return model.linear_scan("plain", *orders, a, g, b, initial_state, state=state)

    for shape in (*SHAPES, (1, 5000, 70)):
        gate = "g" if dtype == FP32 and shape[1] % 2 else "a"
        assert_same_results(drawn(shape, dtype, gate=gate), kernel, expected)


def assert_same_results(tensors: Tensors, kernel: Any, expected: Any) -> None:
    """The bits of outputs and gradients are those of the call on the CPU."""
    device_leaves = {name: x.requires_grad_() for name, x in on_device(tensors).items()}
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    got, wanted = kernel(**device_leaves), expected(**leaves)
    bars = [torch.randn(x.shape).to(x.dtype) for x in wanted]
    torch.autograd.backward(got, [bar.cuda() for bar in bars])
    torch.autograd.backward(wanted, bars)
    for one, other in zip(got, wanted, strict=True):
        assert_same_bits(one.detach(), other.detach())
    for name, leaf in device_leaves.items():
        assert_same_bits(leaf.grad, leaves[name].grad)


@pytest.mark.parametrize("variant", ["plain", "kahan"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_two_chunks_a_block(
    dtype: torch.dtype, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What few chains take, taken by every shape: the model's bits."""
    monkeypatch.setattr(linear_scan_launch, "few_chains", lambda *_: True)
    assert_bits_of_the_model("single_pass", variant, "a", dtype)


def test_few_long_chains() -> None:
    """Chains so few and long that a block takes two chunks: the model's bits."""
    tensors = drawn((1, 160000, 64), torch.bfloat16)
    got = linear_scan("single_pass", "plain").call(**on_device(tensors))
    for one, other in zip(got, of_model(tensors, "plain"), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("variant", ["fast", "fast_segsum"])
def test_two_chunks_of_what_has_no_model(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hardware's exponential, the bits of one chunk a block."""
    tensors = on_device(drawn((2, 2177, 72), torch.bfloat16, gate="g"))
    outputs = []
    for few in (False, True):
        monkeypatch.setattr(linear_scan_launch, "few_chains", lambda *_, few=few: few)
        outputs.append(linear_scan("single_pass", variant).call(**tensors))
    for one, other in zip(*outputs, strict=True):
        assert_same_bits(one, other.cpu())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_long_scans_of_every_algorithm(algorithm: str) -> None:
    """Many chunks, more than the tree has groups: still the model's bits."""
    for dtype, shape in ((FP32, (1, 40000, 3)), (torch.bfloat16, (2, 10000, 8))):
        tensors = drawn(shape, dtype)
        got = linear_scan(algorithm, "full").call(**on_device(tensors))
        for one, other in zip(got, of_model(tensors, "full", algorithm), strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("which", ["h", "final_state"])
def test_gradients_of_one_output(which: str) -> None:
    """A cotangent that is absent, or expanded from one number, counts as it should."""
    shape = (2, 700, 36)
    grads = []
    for draw in (on_device, lambda tensors: tensors):
        leaves = {n: x.requires_grad_() for n, x in draw(drawn(shape, FP32)).items()}
        call = (
            linear_scan("single_pass", "plain").call if draw is on_device else on_model
        )
        h, final = call(**leaves)
        (h if which == "h" else final).sum().backward()
        grads.append([x.grad.cpu() for x in leaves.values()])
    for one, other in zip(*grads, strict=True):
        assert_same_bits(one, other)


def on_model(**tensors: torch.Tensor) -> Outputs:
    """The model of the plain kernel, called as it is."""
    return of_model(tensors, "plain")


def test_fast_is_near_the_reproducible_one() -> None:
    """The hardware's exponential changes little and takes logarithms alone."""
    tensors = on_device(drawn((2, 1000, 64), FP32, gate="g"))
    fast, plain = (
        linear_scan("single_pass", v).call(**tensors)[0] for v in ("fast", "plain")
    )
    difference = (fast - plain).abs().max() / plain.abs().max()
    assert 0 < float(difference) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_alignment_change_no_bits(dtype: torch.dtype) -> None:
    """Slices of larger tensors, also from odd places, give what copies give."""
    kernel = linear_scan("single_pass", "plain").call
    wide = drawn((3, 700, 75), dtype)
    cut = {name: wide[name][1:, ::2, 1:65] for name in ("a", "b")}
    cut["initial_state"] = wide["initial_state"][1:, 1:65]
    sliced = {name: x.cuda() for name, x in wide.items()}
    views = {name: sliced[name][1:, ::2, 1:65] for name in ("a", "b")}
    views["initial_state"] = sliced["initial_state"][1:, 1:65]
    expected = of_model(cut, "plain")
    for tensors in (views, {name: x.contiguous() for name, x in views.items()}):
        h, final = kernel(**tensors)
        assert_same_bits(h, expected[0])
        assert_same_bits(final, expected[1])


@pytest.mark.parametrize("channels", [9, 12], ids="{} channels".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan_of_the_model(dtype: torch.dtype, channels: int) -> None:
    """What is not finite stays where the model has it, with and without vectors."""
    tensors = drawn((2, 600, channels), dtype)
    tensors["b"][0, 100, 3] = float("inf")
    tensors["b"][0, 590:, 4] = torch.finfo(dtype).max
    tensors["a"][1, 300, 5] = float("nan")
    tensors["a"][1, 20, 7] = float("inf")
    for variant in ("plain", "kahan", "full"):
        h, final = linear_scan("single_pass", variant).call(**on_device(tensors))
        expected = of_model(tensors, variant)
        assert_same_bits(h, expected[0])
        assert_same_bits(final, expected[1])


def test_a_thousand_launches_of_changing_size_agree() -> None:
    """One workspace serves launches of any size, one after another, with equal bits."""
    kernel = linear_scan("single_pass", "plain").call
    sizes = ((2, 3000, 70), (1, 300, 8), (4, 700, 64))
    inputs = [on_device(drawn(shape, torch.bfloat16)) for shape in sizes]
    first = [kernel(**tensors) for tensors in inputs]
    for k in range(1000):
        which = k % len(inputs)
        again = kernel(**inputs[which])
        assert torch.equal(again[0], first[which][0]), k
        assert torch.equal(again[1], first[which][1]), k


def test_streams_at_once() -> None:
    """Launches on several streams that run together do not disturb each other."""
    kernel = linear_scan("single_pass", "full").call
    tensors = on_device(drawn((4, 4096, 512), torch.float32))
    expected, _ = kernel(**tensors)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(kernel(**tensors)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(h, expected) for h in results)


def captured(
    call: Callable[[], torch.Tensor],
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A CUDA graph of the call, and the tensor that its replays write."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def test_graphs_replayed_at_once() -> None:
    """Two graphs captured on one stream may be replayed on two, with new inputs too."""
    kernel = linear_scan("single_pass", "plain").call
    inputs = [on_device(drawn((4, 4096, 512), FP32, seed=seed)) for seed in (1, 2)]
    expected = [kernel(**tensors)[0] for tensors in inputs]
    torch.cuda.synchronize()
    graphs = [captured(lambda t=tensors: kernel(**t)[0]) for tensors in inputs]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(50):
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, h), right in zip(graphs, expected, strict=True):
        assert torch.equal(h, right)
    for name, x in inputs[0].items():
        x.copy_(inputs[1][name])
    graphs[0][0].replay()
    torch.cuda.synchronize()
    assert torch.equal(graphs[0][1], expected[1])


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
def test_empty_problems(shape: tuple[int, int, int]) -> None:
    """Without steps the final state is the initial one."""
    tensors = on_device(drawn(shape, torch.float32))
    h, final = linear_scan("single_pass", "plain").call(**tensors)
    assert h.shape == shape
    assert torch.equal(final, tensors["initial_state"])


def test_beyond_32_bit_offsets() -> None:
    """The last of more than 2**31 elements is as right as the first."""
    shape = (1, 2**20 + 300, 2056)
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of device memory")
    a = torch.full(shape, 0.5, dtype=torch.bfloat16, device="cuda")
    b = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
    h, final = linear_scan("single_pass", "plain").call(a=a, b=b)
    assert torch.equal(final, torch.full_like(final, 2.0))
    assert bool((h[0, -1] == 2).all()) and bool((h[0, 0] == 1).all())
