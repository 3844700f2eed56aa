"""The recipes by name, with what each is for and where it applies."""

from collections.abc import Callable
from dataclasses import dataclass

from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.recipes import cancellation, decays, exact, impulses, range_edges
from scancheck.recipes.chains import Chains, Plan, Tensors, from_chains

FORM_A = ("linear_scan", "a")
FORM_G = ("linear_scan", "g")
SELECTIVE = ("selective_scan", None)
EVERYWHERE = (FORM_A, FORM_G, SELECTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An input family, named by the hazard it carries."""

    name: str
    hazard: str  # what goes wrong on it, in one sentence
    tensors: Callable[[Plan], Tensors]  # unrounded values in the op's layout
    supports: tuple[tuple[str, str | None], ...] = EVERYWHERE  # (op, form)
    independent_roundings: bool = False  # rho and lambda may judge (numerics 2.8)
    exact: bool = False  # every order of combination gives the exact result


def _chains(
    recipe: Callable[[Plan], Chains],
    hazard: str,
    *,
    independent_roundings: bool = False,
) -> Recipe:
    """The recipe of a function that speaks of chains alone."""
    return Recipe(
        name=recipe.__name__,
        hazard=hazard,
        tensors=from_chains(recipe),
        independent_roundings=independent_roundings,
    )


_ALL = (
    _chains(
        decays.gaussian_slow,
        "Ordinary data whose memory spans chunks: any wrong carry, at ordinary size.",
        independent_roundings=True,
    ),
    Recipe(
        name="exact_dyadic",
        hazard="Any indexing, masking or ordering fault, with zero tolerance.",
        tensors=exact.exact_dyadic,
        exact=True,
    ),
    _chains(
        impulses.impulse_at_chunk_edge,
        "A decay applied once too often or too rarely at a chunk edge.",
    ),
    _chains(
        decays.decay_near_one,
        "A gate cast to a short format becomes 1 and the memory endless.",
    ),
    _chains(
        cancellation.telescoping_cancellation,
        "Carry and local part cancel, and what is left is their rounding.",
    ),
    _chains(
        decays.unit_decay,
        "A pure sum: a state in a short format stops growing.",
    ),
    _chains(
        decays.exact_reset,
        "A missed reset, or 0 times infinity where the past is divided out.",
    ),
    _chains(
        decays.mixed_time_scales,
        "Differences of large cumulative gates lose the small ones.",
        independent_roundings=True,
    ),
    _chains(
        decays.decay_near_zero,
        "Decays near underflow: flushed terms, ratios of zeros, overflow of exp(-c).",
    ),
    Recipe(
        name="softplus_tails",
        hazard="The branch of softplus at 20, and log(1 + exp(x)) that rounds to 0.",
        tensors=from_chains(decays.softplus_tails),
        supports=(SELECTIVE,),
    ),
    _chains(
        range_edges.subnormal_state,
        "Subnormal values flushed to zero, or scaled by a power that overflows.",
    ),
    Recipe(
        name="dip_and_regrow",
        hazard="Ratios of prefix products, where the product is small for a while.",
        tensors=range_edges.dip_and_regrow,
        supports=(FORM_A,),
    ),
    Recipe(
        name="dip_out_of_range",
        hazard="Products of decays leave the range though every state is in it.",
        tensors=range_edges.dip_out_of_range,
        supports=(FORM_A,),
    ),
    Recipe(
        name="negative_decay",
        hazard="A logarithm or square root of the decay, or its sign lost.",
        tensors=range_edges.negative_decay,
        supports=(FORM_A,),
    ),
    Recipe(
        name="growth",
        hazard="A kernel that takes decays to be at most 1, log gates or A negative.",
        tensors=range_edges.growth,
    ),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def recipes_for(op: str, form: str | None = None) -> tuple[Recipe, ...]:
    """The recipes that apply to an op, and to a form of it where it has several."""
    return tuple(r for r in RECIPES.values() if (op, form) in r.supports)


def accepts_everything(op: str) -> frozenset[str]:
    """All inputs, switches and key layouts of an op, as a kernel may accept them."""
    known = op_named(op)
    names = {spec.name for spec in known.inputs} | set(known.switches)
    if op == "selective_scan":
        names |= {"keys=grouped", "keys=constant"}
    return frozenset(names)


def recipes_taken(
    op: str, accepts: frozenset[str], requires: frozenset[str] = frozenset()
) -> list[tuple[Recipe, str | None]]:
    """Each recipe in each form that a kernel with these inputs can be given.

    Raises CaseInvalid when it takes none of the op's forms.
    """
    forms: list[str | None] = [None]
    if op_named(op).forms:
        forms = [form for form in ("a", "g") if form in accepts]
    if not forms:
        raise CaseInvalid(f"accepts: expected a or g for {op}; got neither")
    unfit_for_exact = requires & {"z", "delta_softplus"}
    return [
        (recipe, form)
        for recipe in RECIPES.values()
        for form in forms
        if (op, form) in recipe.supports and not (recipe.exact and unfit_for_exact)
    ]
