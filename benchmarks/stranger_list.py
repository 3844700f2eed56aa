"""Which strangers are judged beside the adapters, and what their verdicts come from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """One kernel that nobody here wrote, or that stands for what users write."""

    target: str  # registered name, or FILE.py:NAME from the checkout's root
    op: str
    dtypes: tuple[str, ...] = ("fp32", "fp64")
    contract: str | None = None  # as --contract; None: what the kernel declares
    unavailable: str | None = None

    @property
    def name(self) -> str:
        """What its files are called: target and contract without folders and marks."""
        place, _, attribute = self.target.rpartition(":")
        name = f"examples.{attribute}" if Path(place).name else self.target
        parts = [name, *(self.contract or "").replace("=", "_").split(",")]
        return ".".join(filter(None, parts))


EXAMPLES = (
    Stranger(target="examples/heinsen_scan.py:heinsen_scan", op="linear_scan"),
    Stranger(
        target="examples/heinsen_scan.py:heinsen_scan",
        op="linear_scan",
        # Signs and magnitudes over the whole length, and autograd's gradient of them.
        contract="log=full,gate_gradient=reverse_cumsum",
    ),
    Stranger(target="examples/cumprod_scan.py:cumprod_scan", op="linear_scan"),
)

# The packages whose versions decide a target's verdict, by the start of its name.
PACKAGES = {
    "accelerated_scan": ("accelerated-scan", "triton", "torch"),
    "fla": ("fla-core", "triton", "torch"),
    "flash_scan": ("triton", "torch"),
    "jax": ("jax", "torch"),
    "mamba_ssm": ("mamba-ssm", "triton", "torch"),
    "mambapy": ("mambapy", "torch"),
    "mlstm_kernels": ("mlstm_kernels", "triton", "torch"),
    "torch": ("torch",),
    "transformers": ("transformers", "torch"),
    "examples": ("torch",),
}
