"""Every recipe with what it is for, the group it belongs to and where it applies."""

from collections.abc import Callable
from dataclasses import dataclass

from scancheck.recipes import (
    cancellation,
    decays,
    drives,
    exact,
    gates,
    impulses,
    range_edges,
    realistic,
)
from scancheck.recipes.chains import Chains, Plan, Tensors, from_chains

FORM_A = ("linear_scan", "a")
FORM_G = ("linear_scan", "g")
SELECTIVE = ("selective_scan", None)
LINEAR = (FORM_A, FORM_G)
EVERYWHERE = (FORM_A, FORM_G, SELECTIVE)

GROUPS = ("decay", "cancellation", "range", "exact", "edges", "realistic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An input family, named by the hazard it carries."""

    name: str
    hazard: str  # what goes wrong on it, in one sentence
    tensors: Callable[[Plan], Tensors]  # unrounded values in the op's layout
    group: str  # one of GROUPS
    supports: tuple[tuple[str, str | None], ...] = EVERYWHERE  # (op, form)
    independent_roundings: bool = False  # rho and lambda may judge (numerics 2.8)
    exact: bool = False  # every order of combination gives the exact result

    @property
    def profile(self) -> str:
        """`realistic` for what published models draw, else `adversarial`."""
        return "realistic" if self.group == "realistic" else "adversarial"


def _recipe(
    tensors: Callable[[Plan], Tensors],
    hazard: str,
    group: str,
    supports: tuple[tuple[str, str | None], ...] = EVERYWHERE,
    **facts: bool,
) -> Recipe:
    """The recipe of a function that speaks of an op's tensors."""
    return Recipe(
        name=tensors.__name__,
        hazard=hazard,
        tensors=tensors,
        group=group,
        supports=supports,
        **facts,
    )


def _chains(
    recipe: Callable[[Plan], Chains],
    hazard: str,
    group: str,
    supports: tuple[tuple[str, str | None], ...] = EVERYWHERE,
    **facts: bool,
) -> Recipe:
    """The recipe of a function that speaks of chains alone."""
    return Recipe(
        name=recipe.__name__,
        hazard=hazard,
        tensors=from_chains(recipe),
        group=group,
        supports=supports,
        **facts,
    )


# The quick profile runs these: no one's class of bug is shown by the others.
QUICK = (
    _chains(
        decays.gaussian_slow,
        "Ordinary data whose memory spans chunks: any wrong carry, at ordinary size.",
        "decay",
        independent_roundings=True,
    ),
    _recipe(
        exact.exact_dyadic,
        "Any indexing, masking or ordering fault, with zero tolerance.",
        "exact",
        exact=True,
    ),
    _chains(
        impulses.impulse_at_chunk_edge,
        "A decay applied once too often or too rarely at a chunk edge.",
        "edges",
    ),
    _chains(
        decays.decay_near_one,
        "A gate cast to a short format becomes 1 and the memory endless.",
        "decay",
    ),
    _chains(
        cancellation.telescoping_cancellation,
        "Carry and local part cancel, and what is left is their rounding.",
        "cancellation",
    ),
    _chains(
        decays.unit_decay,
        "A pure sum: a state in a short format stops growing.",
        "decay",
    ),
    _chains(
        decays.exact_reset,
        "A missed reset, or 0 times infinity where the past is divided out.",
        "edges",
    ),
    _chains(
        decays.mixed_time_scales,
        "Differences of large cumulative gates lose the small ones.",
        "decay",
        independent_roundings=True,
    ),
    _chains(
        decays.decay_near_zero,
        "Decays near underflow: flushed terms, ratios of zeros, overflow of exp(-c).",
        "range",
    ),
    _chains(
        decays.softplus_tails,
        "The branch of softplus at 20, and log(1 + exp(x)) that rounds to 0.",
        "edges",
        (SELECTIVE,),
    ),
    _chains(
        range_edges.subnormal_state,
        "Subnormal values flushed to zero, or scaled by a power that overflows.",
        "range",
    ),
    _recipe(
        range_edges.dip_and_regrow,
        "Ratios of prefix products, where the product is small for a while.",
        "range",
        (FORM_A,),
    ),
    _recipe(
        range_edges.dip_out_of_range,
        "Products of decays leave the range though every state is in it.",
        "range",
        (FORM_A,),
    ),
    _recipe(
        range_edges.negative_decay,
        "A logarithm or square root of the decay, or its sign lost.",
        "cancellation",
        (FORM_A,),
    ),
    _recipe(
        range_edges.growth,
        "A kernel that takes decays to be at most 1, log gates or A negative.",
        "range",
    ),
)

# Only the full profile and drawn cases run these.
ONLY_FULL = (
    _chains(
        decays.every_memory_length,
        "A fault that lives at one memory length: none, within, over or beyond chunks.",
        "decay",
    ),
    _chains(
        gates.strong_gates,
        "A gate's gradient from reverse cumulative sums, lost among other terms.",
        "decay",
    ),
    _chains(
        drives.constant_drive_and_decay,
        "Every step rounds alike: bias that averages would hide, and stagnation.",
        "decay",
    ),
    _chains(
        gates.one_strong_gate_per_chunk,
        "One large gate ruins the cumulative sum after it, or moves by a token.",
        "decay",
    ),
    _recipe(
        cancellation.prescribed_condition,
        "An error relative to what was added up, where little is left of it.",
        "cancellation",
        LINEAR,
    ),
    _chains(
        drives.drives_of_many_scales,
        "Small terms swamped by large ones in another order of additions.",
        "cancellation",
    ),
    _chains(
        gates.cumulative_gate_at_limit,
        "exp of a chunk's gates turns subnormal or zero, its inverse overflows.",
        "range",
    ),
    _recipe(
        gates.most_negative_gate,
        "Sums of masking gates overflow; their differences are NaN.",
        "range",
        (FORM_G,),
    ),
    _recipe(
        range_edges.rise_and_fall,
        "A product over a chunk overflows though every state is moderate.",
        "range",
        (FORM_A,),
    ),
    _recipe(
        range_edges.isolated_growth,
        "A decay of 2**30 clamped to 1, or a log gate clamped to 0.",
        "range",
        LINEAR,
    ),
    _recipe(
        exact.values_tell_their_place,
        "A value from another token, channel, row or tile.",
        "exact",
        exact=True,
    ),
    _recipe(
        drives.noncommuting_steps,
        "An operator called with its operands swapped, or a scan that runs back.",
        "edges",
        LINEAR,
    ),
    _chains(
        drives.large_first_state,
        "An initial state forgotten, applied twice or not decayed; one of zeros.",
        "edges",
    ),
    _recipe(
        drives.signed_zeros,
        "0 / 0 and log(-0) in ratio and log forms, or -0 taken for negative.",
        "edges",
        (FORM_A,),
    ),
    _chains(
        decays.large_step_bias,
        "Both ends of softplus by the bias alone, and d A rounded before exp.",
        "edges",
        (SELECTIVE,),
    ),
    _recipe(
        realistic.mamba_initialisation,
        "Mamba at initialisation: A = -1..-N, steps of 1e-3 to 1e-1.",
        "realistic",
    ),
    _recipe(
        realistic.mamba2_initialisation,
        "Mamba-2 at initialisation: one A of -16 to -1 per channel.",
        "realistic",
    ),
    _recipe(
        realistic.hgrn_lower_bounds,
        "HGRN: forget gates above a lower bound per layer.",
        "realistic",
        LINEAR,
    ),
    _recipe(
        realistic.rg_lru_decays,
        "RG-LRU of Griffin: slow decays to the power of a gate.",
        "realistic",
        LINEAR,
    ),
    _recipe(
        realistic.min_gru_gates,
        "minGRU: decay 1 - z, drive z h.",
        "realistic",
        LINEAR,
    ),
    _recipe(
        realistic.gla_gates,
        "Gated linear attention: log sigmoid gates, divided by 16.",
        "realistic",
        LINEAR,
    ),
    _recipe(
        realistic.mlstm_forget_gates,
        "mLSTM of xLSTM: forget gates near 1 by a bias of 3 to 6.",
        "realistic",
        LINEAR,
    ),
    _recipe(
        realistic.deep_log_gates,
        "Log gates from 0 to -316 next to each other.",
        "realistic",
        LINEAR,
    ),
)
