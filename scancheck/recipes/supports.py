"""Which ops a recipe applies to: kinds of decays and of transitions."""

from scancheck.recipes.op_rules import RULES

Supports = tuple[tuple[str, str | None], ...]  # (op, form)

FORM_A = ("linear_scan", "a")
FORM_G = ("linear_scan", "g")
SELECTIVE = ("selective_scan", None)
LINEAR: Supports = (FORM_A, FORM_G)
SCANS: Supports = (FORM_A, FORM_G, SELECTIVE)


def ops(*names: str) -> Supports:
    """Ops that have a single form."""
    return tuple((name, None) for name in names)


SSD = ops("ssd")
DELTA = ops(*(name for name, rules in RULES.items() if rules.erases))
# Ops whose decays are fixed, or that have none.
FIXED = ops("linear_attention", "retention", "lightning_attention", "delta_rule")
MLSTM = ops("mlstm")
# Ratios: never exact.
NORMALISED = (*ops("normalized_linear_attention"), *MLSTM)
UNDECAYED = ops("linear_attention", "delta_rule")
GATED_DELTA = ops("gated_delta_rule", "gated_delta_product", "kda")
LOG_GATED = (*ops("simple_gla", "gla", "rwkv6"), *GATED_DELTA, *ops("rwkv7"))
ADDITIVE_GATED = ops("simple_gla", "gla", "rwkv6", "ssd")
# RWKV's decays are at most 1 by construction.
GROWING = (*ops("simple_gla", "gla", "ssd"), *GATED_DELTA)
GATED: Supports = (*SCANS, *LOG_GATED, *SSD)
DECAYING: Supports = (*GATED, *MLSTM)
EVERYWHERE: Supports = (*GATED, *FIXED, *NORMALISED)
