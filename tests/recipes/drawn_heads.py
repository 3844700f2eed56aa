"""Small cases of the ops with heads, and the states that their step formulas give."""

from typing import Any

import numpy as np

from scancheck.case import Case, make_case
from scancheck.formats import FloatArray
from scancheck.ops import op_named
from scancheck.ops.normal_form import state_inputs
from scancheck.recipes import RECIPES, Inputs, build
from scancheck.recipes.op_rules import rules_of

CHUNK = 16
HEAD_OPS = (
    "linear_attention",
    "normalized_linear_attention",
    "simple_gla",
    "retention",
    "lightning_attention",
    "gla",
    "rwkv6",
    "ssd",
    "delta_rule",
    "gated_delta_rule",
    "gated_delta_product",
    "kda",
    "rwkv7",
)
HEAD_RECIPES = [
    (recipe.name, op)
    for recipe in RECIPES.values()
    for op, _ in recipe.supports
    if op in HEAD_OPS
]
DELTA_OPS = ("delta_rule", "gated_delta_rule", "gated_delta_product", "kda", "rwkv7")


def head_sizes(op: str, *, exact: bool = False) -> dict[str, int]:
    """Sizes beside B and T: two key heads, and where they may be more, four of values.

    Exact recipes need a power of 4 for K.
    """
    keys = 4 if exact else 5
    if op == "ssd":
        return {"H": 4, "P": 3, "G": 2, "N": keys}
    if "HV" in op_named(op).size_names:
        return {"H": 2, "HV": 4, "K": keys, "V": 3}
    if "M" in op_named(op).size_names:
        return {"M": 2, "H": 3, "K": keys, "V": 3}
    return {"H": 2, "K": keys, "V": 3}


def head_case(
    recipe: str,
    op: str,
    *,
    dtype: str = "fp32",
    steps: int = 8 * CHUNK + 5,
    seed: int = 1,
    **options: Any,
) -> Case:
    """A case with 2 rows and chunks of 16, with all optional inputs."""
    exact = RECIPES[recipe].exact
    state = dict.fromkeys(state_inputs(op_named(op)), True)
    options = {**state, "chunk": CHUNK, **options}
    if op == "ssd" and exact:
        options |= {"z": False, "dt_softplus": False}
    sizes = {"B": 2, "T": steps, **head_sizes(op, exact=exact)}
    return make_case(op, sizes, dtype=dtype, recipe=recipe, seed=seed, options=options)


def head_tensors(recipe: str, op: str, **about: Any) -> dict[str, FloatArray]:
    """The tensors of such a case."""
    return build(head_case(recipe, op, **about)).tensors


def states_and_outputs(op: str, inputs: Inputs) -> tuple[FloatArray, FloatArray]:
    """States [T, B, HV, K, V] and outputs [T, B, HV, V] before D and z, in float64.

    Written from the step of each op, one token after the other.
    """
    made = inputs.tensors
    if op == "gated_delta_product":
        steps = made["k"].shape[2]
        single = Inputs(tensors=single_steps(made), switches={})
        states, outputs = states_and_outputs("gated_delta_rule", single)
        return states[steps - 1 :: steps], outputs[steps - 1 :: steps]
    values = made["x" if op == "ssd" else "v"]
    heads = values.shape[2]

    def of_heads(name: str) -> FloatArray:
        """[B, T, H, K] with a copy for each value head."""
        return np.repeat(made[name], heads // made[name].shape[2], axis=2)

    written, read = ("B", "C") if op == "ssd" else ("k", "r")
    keys = of_heads(written)
    reads = of_heads(read if read in made else "q")
    state = made[op_named(op).state]
    state = state.transpose(0, 1, 3, 2) if op == "ssd" else state
    scale = 1.0 if rules_of(op).scaled_by is None else keys.shape[-1] ** -0.5
    states, outputs = [], []
    for t in range(values.shape[1]):
        before = state
        k, v, r = keys[:, t, ..., None], values[:, t, :, None, :], reads[:, t]
        decay = decay_of(op, inputs, t)
        if op == "rwkv7":
            erased = (made["a"][:, t, ..., None] * state).sum(2, keepdims=True)
            state = decay * state + made["b"][:, t, ..., None] * erased + k * v
        elif op in DELTA_OPS:
            state = decay * state
            beta = made["beta"][:, t, :, None, None]
            state = state + beta * k * (v - (k * state).sum(2, keepdims=True))
        else:
            step = step_of(inputs)[:, t, :, None, None] if op == "ssd" else 1.0
            state = decay * state + step * k * v
        seen = before + made["u"][..., None] * k * v if op == "rwkv6" else state
        states.append(state)
        read = scale * (seen * r[..., None]).sum(2)
        if op == "normalized_linear_attention":
            sums = made["initial_key_sum"] + keys[:, : t + 1].sum(1)
            read = read / (scale * (sums * r).sum(2, keepdims=True) + 1e-10)
        outputs.append(read)
    return np.stack(states), np.stack(outputs)


def single_steps(made: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """gated_delta_product as gated_delta_rule: a token for each of its steps."""
    steps = made["k"].shape[2]
    in_steps = {
        name: made[name].reshape(len(made[name]), -1, *made[name].shape[3:])
        for name in ("k", "v", "beta")
    }
    gates = np.repeat(made["g"], steps, axis=1)
    gates[:, np.arange(gates.shape[1]) % steps > 0] = 0.0
    reads = np.repeat(made["q"], steps, axis=1)
    return made | in_steps | {"g": gates, "q": reads}


def step_of(inputs: Inputs) -> FloatArray:
    """Step sizes of ssd, [B, T, H]."""
    step: FloatArray = inputs.tensors["dt"] + inputs.tensors["dt_bias"]
    return np.logaddexp(0.0, step) if inputs.switches["dt_softplus"] else step


def decay_of(op: str, inputs: Inputs, t: int) -> Any:
    """What multiplies a state [B, HV, K, V] at a token, in a shape that broadcasts."""
    made = inputs.tensors
    heads = np.arange(made["x" if op == "ssd" else "v"].shape[2])[:, None, None]
    match op:
        case "ssd":
            return np.exp(step_of(inputs)[:, t] * made["A"])[..., None, None]
        case "retention":
            return 1.0 - 2.0 ** (-5.0 - heads)
        case "lightning_attention":
            return np.exp(-8.0 / len(heads) * heads)
        case "simple_gla" | "gated_delta_rule" | "gated_delta_product":
            return np.exp(made["g"][:, t, :, None, None])
        case "gla":
            of_values = np.exp(made["gv"][:, t, :, None, :])
            return np.exp(made["gk"][:, t, ..., None]) * of_values
        case "kda":
            return np.exp(made["g"][:, t, ..., None])
        case "rwkv6" | "rwkv7":
            return np.exp(made["w"][:, t, ..., None])
        case _:
            return 1.0
