"""The ops in step form: models as differentiable torch functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from step_references import Pair, Tensors, reference

from scancheck.case import make_case
from scancheck.checks.oracle import Request, check_case
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import model
from scancheck.kernels.models.step_calls import FAMILIES
from scancheck.verdict import Verdict

# In test_models_by_spec.py.
ELSEWHERE = ("normalized_linear_attention", "gated_delta_product", "mlstm")
OPS = tuple(op for op in FAMILIES if op not in ELSEWHERE)
GROUPED = tuple(op for op in OPS if op not in ("gla", "rwkv6", "rwkv7"))
LOG_GATES = ("g", "gk", "gv", "w")
NOT_SIGNED = ("beta", "dt", "dt_bias", "z")  # drawn positive, or of a function's domain
STATE_KIND = ("A", "D", "dt_bias", "initial_state", "initial_states")
OPTIONS = [("gla", ("gv",), False)] + [
    ("ssd", absent, softplus)
    for absent in ((), ("D",), ("z",), ("dt_bias",), ("D", "z", "dt_bias"))
    for softplus in (False, True)
]


def sequential(op: str, **options: Any) -> Kernel:
    """The sequential model of an op."""
    return model(op, "sequential", "plain", **options)


def shapes(
    op: str, B: int = 2, T: int = 7, H: int = 2, HV: int = 4, K: int = 3, V: int = 5
) -> dict[str, tuple[int, ...]]:
    """Axes of the op's tensors in its own layout."""
    keys, values, heads = (B, T, H, K), (B, T, HV, V), (B, T, HV)
    match op:
        case "ssd":
            return {
                "x": values,
                "dt": heads,
                "A": (HV,),
                "B": keys,
                "C": keys,
                "D": (HV,),
                "z": values,
                "dt_bias": (HV,),
                "initial_states": (B, HV, V, K),
            }
        case "rwkv7":
            names = dict.fromkeys(("r", "w", "k", "a", "b"), keys)
        case "rwkv6":
            names = {**dict.fromkeys(("r", "k", "w"), keys), "u": (H, K)}
        case _:
            names = dict.fromkeys(("q", "k"), keys)
    if op not in GROUPED:
        values, HV = (B, T, H, V), H
    names["v"] = values
    if op == "gla":
        names |= {"gk": keys, "gv": values}
    if op in ("simple_gla", "gated_delta_rule", "delta_rule", "kda"):
        names |= {"g": heads, "beta": heads}
    if op == "kda":
        names["g"] = (*heads, K)
    if op == "simple_gla":
        del names["beta"]
    if op == "delta_rule":
        del names["g"]
    return {**names, "initial_state": (B, HV, K, V)}


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """State tensors are fp32, or fp64 beside fp64."""
    if name in STATE_KIND and dtype != torch.float64:
        return torch.float32
    return dtype


def draw(op: str, dtype: torch.dtype, **sizes: int) -> Tensors:
    """Inputs of either sign; log gates and A are negative, beta below one."""
    generator = torch.Generator().manual_seed(len(op))
    tensors = {}
    for name, shape in shapes(op, **sizes).items():
        x = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.125
        if name in (*LOG_GATES, "A"):
            x = -x
        elif name not in NOT_SIGNED:
            x = x * (1 - 2 * (torch.rand(shape, generator=generator) < 0.5).double())
        if name == "beta":
            x = x / 1.125
        tensors[name] = x.to(dtype_of(name, dtype))
    return tensors


def with_gradients(
    function: Callable[[Tensors], Pair], tensors: Tensors, cotangents: Pair
) -> Tensors:
    """Outputs, and gradients under the names of their inputs with a "d" in front."""
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    outputs = function(leaves)
    seeds = [c.to(x.dtype) for c, x in zip(cotangents, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds)
    named = dict(zip(("o", "final"), outputs, strict=True))
    named |= {f"d{n}": x for n, x in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in named.items()}


def cotangents_of(op: str, tensors: Tensors) -> Pair:
    """Cotangents of either sign for the sequence output and the final state."""
    generator = torch.Generator().manual_seed(1)
    state = tensors["initial_states" if op == "ssd" else "initial_state"]
    like = tensors["x" if op == "ssd" else "v"]
    first, second = (
        torch.randn(x.shape, generator=generator).to(x.dtype) for x in (like, state)
    )
    return first, second


def assert_within_bound(
    op: str, dtype: str, absent: tuple[str, ...] = (), softplus: bool = False
) -> None:
    """Outputs and gradients are off by no more roundings than the definition has.

    A term passes at most T steps forwards and T backwards. In each it meets two decays
    (two exponentials of exact arguments, 1.01 u each, or in ssd one of d A with
    |d A| <= 3, off by 1.01 u + 3 (1.01 + 2) u, and two products) and one erasure: a sum
    over K forwards or over K and V backwards, and five more operations. Beside that
    are the read-out, the lowering, the epilogue and their pullbacks (20), the sums
    over V and K that gradients are, and those over heads, B and T.
    """
    storage, state = FORMATS[dtype], FORMATS["fp64" if dtype == "fp64" else "fp32"]
    state_dtype = getattr(torch, state.torch_name)
    tensors = draw(op, getattr(torch, storage.torch_name))
    tensors = {name: x for name, x in tensors.items() if name not in absent}
    cotangents = cotangents_of(op, tensors)
    switches = {"dt_softplus": True} if softplus else {}
    named = f"{op}_of_softplus" if softplus else op
    loop = reference(named)
    wide = {name: x.double() for name, x in tensors.items()}
    truth = with_gradients(lambda t: loop(named, t, False), wide, cotangents)
    magnitudes = {
        name: x if name in (*LOG_GATES, *NOT_SIGNED) else x.abs()
        for name, x in wide.items()
    }
    terms = with_gradients(
        lambda t: loop(named, t, True),
        magnitudes,
        (cotangents[0].abs(), cotangents[1].abs()),
    )
    got = with_gradients(
        lambda t: sequential(op).call(**t, **switches), tensors, cotangents
    )
    batch, length, heads, keys, lanes = 2, 7, 4, 3, 5
    per_step = 2 * (1.01 + 9.03) + 2 + keys + lanes + 5
    roundings = 2 * length * per_step + 20 + keys + lanes + heads + batch + length
    # In fp64 the reference itself errs as much.
    allowance = (2.2 if dtype == "fp64" else 1.1) * roundings * state.unit_roundoff
    for name, x in truth.items():
        own = state if got[name].dtype == state_dtype else storage
        allowed = allowance * terms[name]
        allowed += own.unit_roundoff * (x.abs() + allowed) + own.eta
        assert bool(((got[name].double() - x).abs() <= allowed).all()), name
        if name.startswith("d"):
            assert got[name].dtype == tensors[name[1:]].dtype
            assert got[name].shape == tensors[name[1:]].shape


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("op", OPS)
def test_within_bound(op: str, dtype: str) -> None:
    """Every output and gradient differs from float64 autograd by rounding alone."""
    assert_within_bound(op, dtype)


@pytest.mark.parametrize(("op", "absent", "softplus"), OPTIONS)
def test_optional_inputs(op: str, absent: tuple[str, ...], softplus: bool) -> None:
    """Without an optional input, and through softplus, the definition still holds."""
    assert_within_bound(op, "fp64", absent, softplus)


@pytest.mark.parametrize("op", OPS)
def test_absent_initial_state_is_zeros(op: str) -> None:
    """Without an initial state a model gives what it gives from zeros, bit by bit."""
    tensors = draw(op, torch.bfloat16)
    name = FAMILIES[op].state
    zeros = torch.zeros_like(tensors.pop(name))
    absent = sequential(op).call(**tensors)
    given = sequential(op).call(**tensors, **{name: zeros})
    assert all(torch.equal(*pair) for pair in zip(absent, given, strict=True))


@pytest.mark.parametrize("compute", ["fp32", "storage"])
@pytest.mark.parametrize("sizes", [(2, 0), (2, 1), (0, 3), (0, 0)])
@pytest.mark.parametrize("op", OPS)
def test_edge_sizes(op: str, sizes: tuple[int, int], compute: str) -> None:
    """T = 0, T = 1 and B = 0 give outputs and gradients of the right shapes."""
    tensors = draw(op, torch.bfloat16, B=sizes[0], T=sizes[1])
    cotangents = cotangents_of(op, tensors)
    kernel = sequential(op, compute=compute)
    got = with_gradients(lambda t: kernel.call(**t), tensors, cotangents)
    like, state = tensors["x" if op == "ssd" else "v"], FAMILIES[op].state
    assert got["o"].shape == like.shape
    assert got["o"].dtype == torch.bfloat16
    assert got["final"].dtype == torch.float32
    for name, x in tensors.items():
        assert got[f"d{name}"].shape == x.shape
        assert got[f"d{name}"].dtype == x.dtype
    if sizes[1] == 0:
        assert torch.equal(got["final"], tensors[state])
        assert torch.equal(got[f"d{state}"], cotangents[1])


@pytest.mark.parametrize("op", GROUPED)
def test_heads_share_keys(op: str) -> None:
    """Value head j reads the keys of head j // (HV // H), bit by bit."""
    tensors = draw(op, torch.float32)
    shared = ("B", "C") if op == "ssd" else ("q", "k")
    apart = tensors | {name: tensors[name].repeat_interleave(2, 2) for name in shared}
    cotangents = cotangents_of(op, tensors)
    together, alone = (
        with_gradients(lambda t: sequential(op).call(**t), given, cotangents)
        for given in (tensors, apart)
    )
    assert torch.equal(together["o"], alone["o"])
    for name in tensors:
        expected = alone[f"d{name}"]
        if name == "q":
            continue  # scaled after the sum over heads
        if name in shared:
            expected = expected[:, :, ::2] + expected[:, :, 1::2]
        assert torch.equal(together[f"d{name}"], expected), name


def test_bits_of_a_loop_in_float32() -> None:
    """gated_delta_rule in fp32 is the loop one would write, to the bit."""
    tensors = draw("gated_delta_rule", torch.float32, B=1, H=1, HV=1)
    o, final = sequential("gated_delta_rule").call(**tensors)
    arrays = {n: x.numpy()[0] for n, x in tensors.items()}
    q, k, v = (arrays[name][:, 0] for name in ("q", "k", "v"))
    beta, g = arrays["beta"][:, 0], arrays["g"][:, 0]
    state = arrays["initial_state"][0].copy()
    scale = np.float32(3**-0.5)
    for t in range(len(v)):
        decay = np.float32(np.exp(np.float64(g[t])))
        for lane in range(5):
            column = [decay * s for s in state[:, lane]]
            found = column[0] * k[t, 0]
            for i in (1, 2):
                found = found + column[i] * k[t, i]
            value = beta[t] * (v[t, lane] - found)
            state[:, lane] = [column[i] + k[t, i] * value for i in range(3)]
            read = (scale * q[t, 0]) * state[0, lane]
            for i in (1, 2):
                read = read + (scale * q[t, i]) * state[i, lane]
            assert read.dtype == np.float32
            assert o[0, t, 0, lane].numpy() == read
    assert np.array_equal(final.numpy()[0, 0], state)


@pytest.mark.parametrize(
    "op", [op for op in OPS if op not in ("retention", "lightning_attention")]
)
def test_small_integers_are_exact(op: str) -> None:
    """In bf16 arithmetic small integers come out exactly, gradients included."""
    generator = torch.Generator().manual_seed(2)
    tensors = {}
    for name, shape in shapes(op, T=2, K=4, V=3).items():
        x = torch.randint(-1, 2, shape, generator=generator)
        if name in (*LOG_GATES, "A"):
            x = torch.zeros_like(x)
        tensors[name] = x.to(dtype_of(name, torch.bfloat16))
    tensors.pop("z", None)  # silu is of no integer an integer
    cotangents = cotangents_of(op, tensors)
    cotangents = cotangents[0].sign(), cotangents[1].sign()
    kernel = sequential(op, compute="storage")
    got = with_gradients(lambda t: kernel.call(**t), tensors, cotangents)
    wide = {name: x.double() for name, x in tensors.items()}
    loop = reference(op)
    truth = with_gradients(lambda t: loop(op, t, False), wide, cotangents)
    for name, x in truth.items():
        assert bool((x.abs() <= 128).all())
        assert torch.equal(got[name].double(), x), name


def test_narrow_bonus_meets_the_wide_state_exactly() -> None:
    """In bf16 arithmetic rwkv6 reads its fp32 initial state as it is."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    o, _ = sequential("rwkv6", compute="storage").call(
        r=one,
        k=one,
        v=one,
        w=one,
        u=one[0, 0],
        # Rounded to bf16 first, the state would be 2**-8 and the sum a tie to even.
        initial_state=torch.full((1, 1, 1, 1), 2.0**-8 + 2.0**-20),
    )
    assert float(o) == 1.0 + 2.0**-7


@pytest.mark.parametrize("op", ["linear_attention", "delta_rule"])
def test_narrow_sums_take_wide_states_exactly(op: str) -> None:
    """In bf16 arithmetic an fp32 state, or its cotangent, is added to as it is."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    wide = torch.full((1, 1, 1, 1), 2.0**-8 + 2.0**-20)
    # A key of zero writes and erases nothing; the cotangent still has two terms.
    others = {"beta": one[..., 0]} if op == "delta_rule" else {}
    call = sequential(op, compute="storage").call
    state = wide.clone().requires_grad_()
    o, final = call(q=one, k=0 * one, v=one, **others, initial_state=state)
    torch.autograd.backward([o, final], [one, wide])
    assert float(final.detach()) == float(wide.to(torch.bfloat16))
    assert state.grad is not None
    assert float(state.grad) == 1.0 + 2.0**-7
    if op == "linear_attention":
        _, final = call(q=one, k=one, v=one, initial_state=wide)
        assert float(final) == 1.0 + 2.0**-7


@pytest.mark.parametrize("op", OPS)
def test_stored_state_is_that_of_two_calls(op: str) -> None:
    """A state in bf16 every two tokens is what two calls of two tokens hand on.

    Backwards too: the cotangent handed from the second call to the first is rounded.
    """
    tensors = draw(op, torch.float32, T=4)
    state = FAMILIES[op].state
    cotangents = cotangents_of(op, tensors)
    kernel = sequential(op, state="bf16", state_every=2)
    whole = with_gradients(lambda t: kernel.call(**t), tensors, cotangents)
    sequences = FAMILIES[op].sequences

    def part(tokens: slice) -> Tensors:
        return {n: x[:, tokens] if n in sequences else x for n, x in tensors.items()}

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).float()

    first, second = part(slice(0, 2)), part(slice(2, 4))
    plain = sequential(op).call
    _, between = plain(**first)
    second[state] = rounded(between)
    after = with_gradients(
        lambda t: plain(**t), second, (cotangents[0][:, 2:], cotangents[1])
    )
    before = with_gradients(
        lambda t: plain(**t),
        first,
        (cotangents[0][:, :2], rounded(after[f"d{state}"])),
    )
    assert torch.equal(whole["o"], torch.cat([before["o"], after["o"]], 1))
    assert torch.equal(whole["final"], after["final"])
    assert torch.equal(whole[f"d{state}"], before[f"d{state}"])
    for name in sequences & set(tensors):
        halves = torch.cat([before[f"d{name}"], after[f"d{name}"]], 1)
        assert torch.equal(whole[f"d{name}"], halves), name


@pytest.mark.parametrize("heads", [3, 7])
def test_constant_decays_in_fp64_are_those_of_the_op(heads: int) -> None:
    """The op's log decay has 53 bits: one with more is off by a budget in 40 tokens."""
    sizes = {"B": 1, "T": 263, "H": 1, "HV": heads, "K": 7, "V": 2}
    op, options = "lightning_attention", {"initial_state": True}
    kernel = sequential(op)
    for seed in range(3):
        case = make_case(
            op,
            sizes,
            dtype="fp64",
            recipe="impulse_at_chunk_edge",
            seed=seed,
            options=options,
        )
        report = check_case(kernel, case, Request(contract=kernel.contract, runs=1))
        assert report.verdict is Verdict.PASS
