"""What recipes, case lists and strategies have to know of each op, in one place.

How sizes become batch rows, channels and states follows from the op's `group_shape`;
the rest is here, an entry per op.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scancheck.errors import CaseInvalid
from scancheck.ops import OPS, op_named
from scancheck.ops.custom import CustomOp
from scancheck.ops.normal_form import Op, spec_of, value_lanes
from scancheck.recipes.chains import Chains, Plan, Tensors
from scancheck.recipes.heads import (
    delta_rule_tensors,
    gated_delta_product_tensors,
    gated_delta_rule_tensors,
    gla_tensors,
    kda_tensors,
    linear_attention_tensors,
    mlstm_tensors,
    normalized_linear_attention_tensors,
    rwkv6_tensors,
    rwkv7_tensors,
    simple_gla_tensors,
    ssd_tensors,
)
from scancheck.recipes.inputs import DEFAULT_CHUNK
from scancheck.recipes.rosters import (
    GROUPED_SIZES,
    HEAD_SIZES,
    PRODUCT_SIZES,
    SCAN_SIZES,
    SELECTIVE_SIZES,
    SSD_SIZES,
    WIDE_GROUPED,
    WIDE_HEADS,
    WIDE_PRODUCT,
    WIDE_SCAN,
    WIDE_SELECTIVE,
    WIDE_SSD,
    Sizes,
    Wide,
)
from scancheck.recipes.scans import linear_scan_tensors, selective_scan_tensors
from scancheck.recipes.streams import stream, uniform

FORMS = ("a", "g")
KEY_LAYOUTS = ("time", "grouped", "constant")
CHOICES = {"form": FORMS, "keys": KEY_LAYOUTS}
ROUNDING_OPTIONS = ("delta_softplus", "dt_softplus", "z")  # never exact


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRules:
    """How cases of one op are made."""

    tensors: Callable[[Plan, Chains], Tensors]  # chains in the op's layout, unrounded
    options: dict[str, Any]  # optional inputs, switches, forms and layouts; defaults
    lanes: str  # the size that counts channels (of a head, where the op has heads)
    roster: tuple[Sizes, ...]  # sizes of listed cases, all but the length
    wide: Wide  # sizes of many channels with their options
    drawn: Sizes  # the largest drawn sizes
    divisors: tuple[tuple[str, str], ...] = ()  # (whole, part): part divides whole
    scaled_by: str | None = None  # the size whose root divides the output
    erases: bool = False  # a delta rule: keys and beta of a recipe apply


def _grouped(
    tensors: Callable[[Plan, Chains], Tensors],
    *,
    erases: bool = False,
    **options: bool,
) -> OpRules:
    """The rules of an op whose value heads may share key heads."""
    return OpRules(
        tensors=tensors,
        options={"initial_state": False, **options, "chunk": DEFAULT_CHUNK},
        lanes="V",
        roster=GROUPED_SIZES,
        wide=WIDE_GROUPED,
        drawn={"H": 2, "HV": 4, "K": 8, "V": 6},
        divisors=(("HV", "H"),),
        scaled_by="K",
        erases=erases,
    )


def _headed(
    tensors: Callable[[Plan, Chains], Tensors],
    *,
    scaled_by: str | None = "K",
    erases: bool = False,
    **options: bool,
) -> OpRules:
    """The rules of an op whose heads have keys and values of their own."""
    return OpRules(
        tensors=tensors,
        options={"initial_state": False, **options, "chunk": DEFAULT_CHUNK},
        lanes="V",
        roster=HEAD_SIZES,
        wide=WIDE_HEADS,
        drawn={"H": 3, "K": 8, "V": 6},
        scaled_by=scaled_by,
        erases=erases,
    )


RULES: dict[str, OpRules] = {
    "linear_scan": OpRules(
        tensors=linear_scan_tensors,
        options={"form": "a", "initial_state": False, "chunk": DEFAULT_CHUNK},
        lanes="D",
        roster=SCAN_SIZES,
        wide=WIDE_SCAN,
        drawn={"D": 17},
    ),
    "selective_scan": OpRules(
        tensors=selective_scan_tensors,
        options={
            "initial_state": False,
            "D": True,
            "z": True,
            "delta_bias": True,
            "delta_softplus": True,
            "keys": "time",
            "chunk": DEFAULT_CHUNK,
        },
        lanes="D",
        roster=SELECTIVE_SIZES,
        wide=WIDE_SELECTIVE,
        drawn={"D": 6, "N": 16},
        divisors=(("D", "G"),),
    ),
    "linear_attention": _grouped(linear_attention_tensors),
    "normalized_linear_attention": _grouped(
        normalized_linear_attention_tensors, initial_key_sum=False
    ),
    "simple_gla": _grouped(simple_gla_tensors),
    "retention": _grouped(linear_attention_tensors),
    "lightning_attention": _grouped(linear_attention_tensors),
    "gla": _headed(gla_tensors, gv=True),
    "rwkv6": _headed(rwkv6_tensors),
    "ssd": OpRules(
        tensors=ssd_tensors,
        options={
            "initial_states": False,
            "D": True,
            "z": True,
            "dt_bias": True,
            "dt_softplus": True,
            "chunk": DEFAULT_CHUNK,
        },
        lanes="P",
        roster=SSD_SIZES,
        wide=WIDE_SSD,
        drawn={"G": 2, "H": 4, "P": 6, "N": 8},
        divisors=(("H", "G"),),
    ),
    "delta_rule": _grouped(delta_rule_tensors, erases=True),
    "gated_delta_rule": _grouped(gated_delta_rule_tensors, erases=True),
    "gated_delta_product": replace(
        _headed(gated_delta_product_tensors, erases=True),
        roster=PRODUCT_SIZES,
        wide=WIDE_PRODUCT,
        drawn={"H": 3, "K": 8, "V": 6, "M": 3},
    ),
    "kda": _grouped(kda_tensors, erases=True),
    "rwkv7": _headed(rwkv7_tensors, scaled_by=None, erases=True),
    "mlstm": _headed(mlstm_tensors, initial_normalizer=False, initial_max=False),
}


CUSTOM: dict[str, CustomOp] = {}  # ops of a user's own, by the name they go by


def register(custom: CustomOp, name: str) -> None:
    """From here on the op goes by this name, in this process.

    Raises CaseInvalid where a built-in op has the name, or where sizes are not those of
    the op whose recipes draw its tensors.
    """
    if name in OPS and name not in CUSTOM:
        raise CaseInvalid(f"op {name!r} is built in; expected another name")
    like = op_named(custom.like)
    if custom.op.size_names != like.size_names:
        raise CaseInvalid(
            f"op {name}: expected the sizes of {custom.like}, "
            f"{' '.join(like.size_names)}, since its recipes draw the tensors; got "
            f"{' '.join(custom.op.size_names)}"
        )
    known = {spec.name for spec in like.inputs}
    own = [s.name for s in custom.op.inputs if s.name not in known | {*custom.ranges}]
    if own:
        raise CaseInvalid(
            f"op {name}: expected a range for {', '.join(own)}, which {custom.like} "
            "does not have"
        )
    OPS[name] = replace(custom.op, name=name)
    CUSTOM[name] = custom


def drawn_as(op: str) -> str:
    """The op whose recipes draw its tensors: itself, unless it is a user's own."""
    return CUSTOM[op].like if op in CUSTOM else op


def rules_of(op: str) -> OpRules:
    """The rules of an op; raises CaseInvalid for one that no recipe knows yet."""
    if op in CUSTOM:
        rules, inputs = RULES[drawn_as(op)], {s.name for s in CUSTOM[op].op.inputs}
        kept = {n: x for n, x in rules.options.items() if n in inputs | {"chunk"}}
        return replace(rules, options=kept)
    if op not in RULES:
        expected = ", ".join(RULES)
        raise CaseInvalid(f"op {op}: no recipe draws it; expected one of {expected}")
    return RULES[op]


def further_inputs(op: Op, sizes: Mapping[str, int], key: str) -> Tensors:
    """Inputs of a user's own op that no recipe draws, uniform within their range."""
    if op.name not in CUSTOM:
        return {}
    found = {}
    for name, (low, high) in CUSTOM[op.name].ranges.items():
        shape = tuple(sizes[axis] for axis in spec_of(op, name).axes)
        found[name] = uniform(stream(key, name), low, high, shape)
    return found


def channels_of(op: Op, sizes: Mapping[str, int]) -> int:
    """Channels of a batch row: chains of K states each that share no value."""
    of_row = {**sizes, "B": 1}
    heads, _, _ = op.group_shape(of_row)
    return heads * value_lanes(op, of_row)


def chains_of(op: Op, sizes: Mapping[str, int]) -> int:
    """Channels over all batch rows: errors are independent between them at most."""
    return sizes["B"] * channels_of(op, sizes)


def lowered(plan: Plan, chains: Chains) -> Tensors:
    """The tensors of the plan's op."""
    return rules_of(plan.op).tensors(plan, chains)


def from_chains(recipe: Callable[[Plan], Chains]) -> Callable[[Plan], Tensors]:
    """The recipe as a function from a plan to tensors of the plan's op."""
    return lambda plan: lowered(plan, recipe(plan))
