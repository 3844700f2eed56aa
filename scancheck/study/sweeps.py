"""How much each profile sweeps, as data."""

from dataclasses import dataclass

from scancheck.kernels.models.catalog import VARIANTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeSize:
    """How the everyday gates are swept at one length."""

    steps: int  # tokens
    chains: int  # channels of linear_scan; selective_scan has a quarter, of 16 states
    chunks: tuple[int, ...]  # of every variant
    plain_chunks: tuple[int, ...]  # of plain arithmetic, beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The sizes of a profile.

    Recipes that the catalog does not have are left out, so that a list may name more.
    """

    forms: dict[str, tuple[str | None, ...]]  # by op, of grid, growth and gradients
    chunks: tuple[int, ...]
    also_in_chunks: tuple[str, ...]  # algorithms of the whole grid, beside chunk
    varied: tuple[str, ...]  # storage formats of variants beside plain, in fp32
    steps: int  # of the grid of chunk size x format x variant
    recipes: tuple[str, ...]
    lengths: tuple[int, ...]
    growth_recipes: tuple[str, ...]  # for error against length and position
    growth_seeds: int
    gradient_steps: tuple[int, ...]
    gradient_chunks: tuple[int, ...]
    gradient_recipes: tuple[str, ...]
    hazard_steps: int | None  # of all recipes of the catalog; None: not run
    hazard_varied: tuple[str, ...]  # as varied, for the recipes of the catalog
    regimes: tuple[RegimeSize, ...]
    regime_variants: tuple[str, ...]
    seeds: int  # of the regimes


SWEEPS = {
    "quick": Sweep(
        forms={"linear_scan": ("g",), "selective_scan": (None,)},
        chunks=(16, 64, 256),
        also_in_chunks=(),
        varied=("fp32", "bf16"),
        steps=1024,
        recipes=(
            "gaussian_slow",
            "mixed_time_scales",
            "decay_near_one",
            "decay_near_zero",
            "unit_decay",
        ),
        lengths=(64, 256, 1024, 4096, 16384),
        growth_recipes=("unit_decay", "gaussian_slow"),
        growth_seeds=1,
        gradient_steps=(256,),
        gradient_chunks=(16, 64),
        gradient_recipes=("gaussian_slow",),
        hazard_steps=192,
        hazard_varied=("fp32",),
        regimes=(
            RegimeSize(steps=2048, chains=16, chunks=(64, 256), plain_chunks=()),
            RegimeSize(steps=65536, chains=4, chunks=(256,), plain_chunks=(64,)),
        ),
        regime_variants=("plain", "log_diff", "full"),
        seeds=1,
    ),
    "full": Sweep(
        forms={"linear_scan": ("g", "a"), "selective_scan": (None,)},
        chunks=(16, 32, 64, 128, 256, 1024),
        also_in_chunks=("chunk_tree",),
        varied=("fp32", "fp16", "bf16"),
        steps=2048,
        recipes=(
            "gaussian_slow",
            "mixed_time_scales",
            "decay_near_one",
            "decay_near_zero",
            "unit_decay",
        ),
        lengths=(64, 256, 1024, 2048, 4096, 16384, 65536),
        growth_recipes=("unit_decay", "gaussian_slow", "mixed_time_scales"),
        growth_seeds=1,
        gradient_steps=(512, 8192, 65536),
        gradient_chunks=(16, 256),
        gradient_recipes=("gaussian_slow", "mixed_time_scales"),
        hazard_steps=1024,
        hazard_varied=("fp32", "bf16"),
        regimes=(
            RegimeSize(
                steps=2048, chains=16, chunks=(16, 64, 256, 1024), plain_chunks=()
            ),
            RegimeSize(
                steps=65536, chains=4, chunks=(16, 64, 256, 1024), plain_chunks=()
            ),
        ),
        regime_variants=VARIANTS,
        seeds=1,
    ),
}
