"""The ops in chunks of matrix products: the same numbers as their definitions.

Margins in fp64: a term passes at most T (2 K + 10) roundings of the step form's on its
way forwards and as many backwards, inverses of matrices of bounded entries included;
measured are at most 13 u of the largest element with T = 37. Doubling passes through
powers that are larger than the inverse: 860 u there with three keys.
"""

from typing import Any

import pytest
import torch
from step_references import Tensors, reference
from test_step_form import (
    LOG_GATES,
    cotangents_of,
    draw,
    sequential,
    shapes,
    with_gradients,
)

from scancheck.errors import CaseInvalid
from scancheck.kernels.models.chunk_catalog import (
    GATES,
    RANK_ONE,
    VARIANTS,
    chunk_model,
    chunk_models,
)
from scancheck.kernels.models.step_calls import FAMILIES

FP64 = 2.0**-53
FORMS: list[tuple[str, str, dict[str, Any]]] = [
    (op, variant, {}) for op in GATES for variant in VARIANTS[GATES[op]]
]
FORMS += [(op, "log_diff", {"block": 3}) for op in GATES if GATES[op] == "key"]
FORMS += [
    (op, "log_diff" if GATES[op] != "none" else "plain", {"inverse": inverse})
    for op in RANK_ONE
    for inverse in ("block", "neumann")
]


def named(form: tuple[str, str, dict[str, Any]]) -> str:
    """What a parametrised test calls a form."""
    op, variant, options = form
    return chunk_model(op, variant, **options).name


def drawn(op: str, dtype: torch.dtype, gates: float = 1.0, **sizes: int) -> Tensors:
    """Inputs without value gates; keys that are erased are of unit norm."""
    tensors = draw(op, dtype, **sizes)
    tensors.pop("gv", None)

    def unit(x: torch.Tensor) -> torch.Tensor:
        return (x.double() / x.double().norm(dim=-1, keepdim=True)).to(dtype)

    if "beta" in tensors:
        tensors["k"] = unit(tensors["k"])
    if op == "rwkv7":
        tensors["a"] = unit(tensors["a"])
        tensors["b"] = -0.75 * tensors["a"]
    for name in LOG_GATES:
        if name in tensors:
            tensors[name] = gates * tensors[name]
    return tensors


def off(op: str, call: Any, tensors: Tensors) -> float:
    """The largest error of outputs and gradients, relative to their largest element."""
    cotangents = cotangents_of(op, tensors)
    wide = {name: x.double() for name, x in tensors.items()}
    loop = reference(op)
    truth = with_gradients(lambda t: loop(op, t, False), wide, cotangents)
    got = with_gradients(lambda t: call(**t), tensors, cotangents)
    return max(
        float((got[name].double() - x).abs().max() / x.abs().max())
        for name, x in truth.items()
    )


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("form", FORMS, ids=named)
def test_equals_its_definition(form: tuple[str, str, Any], chunk: int) -> None:
    """Outputs and all gradients in fp64, T no multiple of the chunk or shorter."""
    op, variant, options = form
    kernel = chunk_model(op, variant, chunk=chunk, **options)
    margin = 5000 if options.get("inverse") == "neumann" else 200
    assert off(op, kernel.call, drawn(op, torch.float64, T=37)) <= margin * FP64


@pytest.mark.parametrize("gates", [0.01, 30.0, -0.1])
@pytest.mark.parametrize("form", [f for f in FORMS if GATES[f[0]] != "none"], ids=named)
def test_slow_strong_and_growing_gates(
    form: tuple[str, str, Any], gates: float
) -> None:
    """Decays near one, below 1e-100 in a chunk, and above one.

    Factored decays lose a chunk whose exp(-c) is out of range, and one that decays by
    1e-50 as many digits of what is left.
    """
    op, variant, options = form
    if gates == 30.0 and variant == "log_factored":
        gates = 3.0
    kernel = chunk_model(op, variant, chunk=8, **options)
    assert off(op, kernel.call, drawn(op, torch.float64, gates, T=21)) <= 500 * FP64


@pytest.mark.parametrize("variant", ["log_diff", "plain", "log_segsum"])
@pytest.mark.parametrize("op", [op for op in GATES if GATES[op] == "head"])
def test_nothing_flows_through_the_mask(op: str, variant: str) -> None:
    """Gates that multiply to infinity the wrong way round leave no NaN."""
    tensors = drawn(op, torch.float32, 200.0, T=40)
    got = with_gradients(
        lambda t: chunk_model(op, variant, chunk=16).call(**t),
        tensors,
        cotangents_of(op, tensors),
    )
    assert all(bool(x.isfinite().all()) for x in got.values())


def test_segment_sums_take_gates_of_minus_infinity() -> None:
    """A token that forgets all before it: segment sums subtract nothing."""
    tensors = drawn("simple_gla", torch.float64, T=12)
    tensors["g"][:, 5] = -torch.inf
    kernel = chunk_model("simple_gla", "log_segsum", chunk=8)
    o, _ = kernel.call(**tensors)
    truth, _ = reference("simple_gla")("simple_gla", tensors, False)
    assert float((o - truth).abs().max()) <= 100 * FP64 * float(truth.abs().max())


@pytest.mark.parametrize("kernel", chunk_models(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("sizes", [(2, 0), (2, 1), (0, 3), (0, 0)])
def test_edge_sizes(kernel: Any, sizes: tuple[int, int]) -> None:
    """T = 0, T = 1 and B = 0 give outputs and gradients of the right shapes."""
    tensors = drawn(kernel.op, torch.bfloat16, B=sizes[0], T=sizes[1])
    got = with_gradients(
        lambda t: kernel.call(**t), tensors, cotangents_of(kernel.op, tensors)
    )
    like = tensors["x" if kernel.op == "ssd" else "v"]
    assert got["o"].shape == like.shape
    assert got["o"].dtype == torch.bfloat16
    state = tensors[FAMILIES[kernel.op].state]
    assert got["final"].shape == state.shape
    if sizes[1] == 0:
        assert torch.equal(got["final"], state)
    for name, x in tensors.items():
        assert got[f"d{name}"].shape == x.shape
        assert got[f"d{name}"].dtype == x.dtype


@pytest.mark.parametrize("op", GATES)
def test_absent_state_is_zero(op: str) -> None:
    """No initial state gives the bits of zeros."""
    tensors = drawn(op, torch.float32, T=20)
    state = FAMILIES[op].state
    call = chunk_model(op, next(iter(VARIANTS[GATES[op]])), chunk=8).call
    given = call(**{**tensors, state: torch.zeros_like(tensors[state])})
    del tensors[state]
    assert all(torch.equal(x, y) for x, y in zip(given, call(**tensors), strict=True))


@pytest.mark.parametrize("op", ["simple_gla", "gated_delta_rule", "kda"])
def test_state_format_is_that_of_two_calls(op: str) -> None:
    """A state in bf16 between chunks of four is what two calls of four tokens hand on.

    Backwards too: the cotangent handed from the second call to the first is rounded.
    """
    tensors = drawn(op, torch.float32, T=8)
    cotangents = cotangents_of(op, tensors)
    kernel = chunk_model(op, "log_diff", chunk=4, state="bf16")
    whole = with_gradients(lambda t: kernel.call(**t), tensors, cotangents)
    plain = chunk_model(op, "log_diff", chunk=4)

    def piece(tokens: slice, state: torch.Tensor) -> Tensors:
        cut = {n: x[:, tokens] for n, x in tensors.items() if n != "initial_state"}
        return cut | {"initial_state": state}

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).to(torch.float32)

    first = piece(slice(0, 4), tensors["initial_state"])
    _, state = plain.call(**first)
    second = with_gradients(
        lambda t: plain.call(**t),
        piece(slice(4, 8), rounded(state)),
        (cotangents[0][:, 4:], cotangents[1]),
    )
    handed = cotangents[0][:, :4], rounded(second["dinitial_state"])
    first = with_gradients(lambda t: plain.call(**t), first, handed)
    assert torch.equal(whole["final"], second["final"])
    assert torch.equal(whole["o"], torch.cat((first["o"], second["o"]), 1))
    assert torch.equal(whole["dinitial_state"], first["dinitial_state"])
    assert torch.equal(whole["dv"], torch.cat((first["dv"], second["dv"]), 1))


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("op", ["simple_gla", "gla", "gated_delta_rule", "rwkv7"])
def test_short_operands_err_by_their_format(op: str, fmt: str) -> None:
    """Rounded operands are off by more than fp32's roundings and about their own u."""
    u = {"fp16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0**-11}[fmt]
    tensors = drawn(op, torch.float32, T=37)
    short = off(op, chunk_model(op, "log_diff", chunk=8, operands=fmt).call, tensors)
    assert 0.1 * u <= short <= 30 * u


def test_storage_operands_are_exact_inputs() -> None:
    """Operands in the storage format are rounded where they are not inputs."""
    tensors = drawn("linear_attention", torch.bfloat16, T=8, K=4)
    kernel = chunk_model("linear_attention", "plain", chunk=8, operands="storage")
    o, final = kernel.call(**tensors)
    wide, _ = chunk_model("linear_attention", "plain", chunk=8).call(**tensors)
    _, truth = sequential("linear_attention").call(**tensors)
    # One chunk: the final state is a sum of products of inputs; o reads rounded scores.
    assert float((final - truth).abs().max()) <= 2.0**-20
    assert not torch.equal(o, wide)


@pytest.mark.parametrize("op", ["delta_rule", "gated_delta_rule", "kda"])
def test_doubling_fails_where_substitution_does_not(op: str) -> None:
    """One key for all tokens, beta near 2 and no gate (numerics 2.10)."""
    tensors = drawn(op, torch.float32, 0.0, B=1, T=64)
    tensors["k"] = tensors["k"][:, :1].expand(-1, 64, -1, -1).clone()
    tensors["beta"] = torch.full_like(tensors["beta"], 1.75)
    variant = "plain" if op == "delta_rule" else "log_diff"

    def error(inverse: str) -> float:
        return off(op, chunk_model(op, variant, inverse=inverse).call, tensors)

    assert error("substitution") <= 2000 * 2.0**-24
    assert error("block") <= 2000 * 2.0**-24
    assert error("neumann") >= 1.0


def test_larger_chunks_and_names() -> None:
    """Options are in the name, contract and chunk."""
    kernel = chunk_model(
        "kda",
        "log_diff",
        chunk=256,
        block=16,
        inverse="block",
        operands="tf32",
        accumulate="truncate",
        state="bf16",
    )
    assert kernel.name == (
        "model.kda.chunk256_blocks16.log_diff."
        "inverse_block.operands_tf32.accumulate_truncate.state_bf16"
    )
    contract = kernel.contract
    assert contract is not None
    assert (kernel.chunk, contract.structure.chunk, contract.state_every) == (
        256,
        256,
        256,
    )
    assert (contract.operands, contract.accumulate) == ("tf32", "truncate")
    assert (contract.inverse, contract.log) == ("block", "diff")
    assert "fp64" not in kernel.dtypes


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("hgrn", "plain"), {}, "op of hgrn: expected one of linear_attention"),
        (("gla", "plain"), {}, "variant of gla: expected one of log_diff"),
        (("gla", "log_diff"), {"chunk": 0}, "at least 1; got 0"),
        (("gla", "log_diff"), {"block": 64}, "1 to 63 tokens"),
        (("gla", "log_factored"), {"block": 16}, "expected log_diff of an op"),
        (("simple_gla", "log_diff"), {"block": 16}, "a gate per key"),
        (("gla", "log_diff"), {"inverse": "neumann"}, "gla inverts nothing"),
        (("kda", "log_diff"), {"inverse": "lu"}, "inverse of kda: expected one of"),
        (("kda", "log_diff"), {"operands": "fp8"}, "operands of kda"),
        (("kda", "log_diff"), {"accumulate": "up"}, "accumulate of kda"),
        (("kda", "log_diff"), {"state": "fp8"}, "state of kda"),
    ],
)
def test_impossible_models_are_refused(
    arguments: tuple[str, str], options: dict[str, Any], said: str
) -> None:
    """An unknown name or a combination that does not exist is a clear usage error."""
    with pytest.raises(CaseInvalid, match=said):
        chunk_model(*arguments, **options)


def test_shapes_of_the_reference_are_the_ops() -> None:
    """Groups: the models are judged with more value heads than key heads.

    What divides by a sum of keys, or takes several steps a token, has no chunks here.
    """
    assert shapes("simple_gla")["v"][2] == 2 * shapes("simple_gla")["k"][2]
    others = {"gated_delta_product", "mlstm", "normalized_linear_attention"}
    assert set(GATES) == set(FAMILIES) - others
