"""Where flash-linear-attention has no gradients, told before its kernels are run."""

from typing import Any

import pytest

from scancheck.adapters import fla, fla_gradients
from scancheck.adapters.fla_gradients import EVEN, gradient_sizes, no_gradients
from scancheck.adapters.fla_rows import ROWS

BY_NAME = {row.function: row for row in ROWS}
REFUSED = (
    "chunk_simple_gla",
    "chunk_gated_delta_rule",
    "chunk_gated_delta_product",
)
# A backward that takes V below 9 with no block of 16.
NARROW = ("chunk_gla", "chunk_rwkv6", "chunk_rwkv7", "chunk_dplr_delta_rule")
INFERENCE = (
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "fused_recurrent_rwkv7",
    "fused_recurrent_dplr_delta_rule",
)


def on(monkeypatch: pytest.MonkeyPatch, **told: Any) -> None:
    """A machine with such GPUs, Triton and TileLang."""
    machine = {"capabilities": ((9, 0),), "triton": "3.6.0", "tilelang": False} | told
    monkeypatch.setattr(fla_gradients, "capabilities", lambda: machine["capabilities"])
    monkeypatch.setattr(fla_gradients, "version", lambda name: machine[name])
    monkeypatch.setattr(fla_gradients, "find_spec", lambda name: machine[name] or None)


def test_chunk_forms_refuse_odd_widths_in_16_bits() -> None:
    """Those that call chunk_bwd_dv, interpreted too."""
    for interpreted in (False, True):
        sizes = {
            n: gradient_sizes(r, interpreted=interpreted) for n, r in BY_NAME.items()
        }
        found = {name for name, one in sizes.items() if one is EVEN}
        assert found == {
            "chunk_linear_attn",
            "chunk_simple_gla",
            "chunk_retention",
            "chunk_lightning_attn",
        }
    assert [EVEN.binds(dtype) for dtype in ("fp16", "bf16", "fp32")] == [1, 1, 0]


def test_narrow_values_do_not_compile() -> None:
    """In three kernels and every dtype; the interpreter takes them."""
    for name, row in BY_NAME.items():
        sizes = gradient_sizes(row, interpreted=False)
        narrow = sizes is not None and sizes.least > 1
        assert narrow == (name in NARROW)
        assert gradient_sizes(row, interpreted=True) in (None, EVEN)
        if narrow:
            assert sizes is not None and "bwd_kernel" in sizes.why
            # The block is the next power of two.
            assert [1 << (v - 1).bit_length() for v in (8, sizes.least)] == [8, 16]


@pytest.mark.parametrize(
    ("told", "refuses"),
    [
        ({}, True),
        ({"triton": "3.7.0"}, True),
        ({"triton": "3.7.1"}, False),
        ({"triton": "3.3.1"}, False),
        ({"triton": "3.6.0+git1"}, True),
        ({"capabilities": ((8, 0),)}, False),
        ({"capabilities": ()}, False),
        ({"tilelang": True}, False),
    ],
)
def test_gated_chunks_refuse_hopper_with_some_versions_of_triton(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], refuses: bool
) -> None:
    """Three kernels alone, compiled alone, and the reason says what to install."""
    on(monkeypatch, **told)
    found = {
        name: no_gradients(row, interpreted=False) for name, row in BY_NAME.items()
    }
    for name, reason in found.items():
        assert (reason is not None) == (
            name in INFERENCE or (name in REFUSED and refuses)
        )
        if name in REFUSED and refuses:
            assert "install Triton 3.7.1" in str(reason)
            assert no_gradients(BY_NAME[name], interpreted=True) is None


def test_what_is_refused_is_no_part_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It declares no gradients, and its listing says why."""
    on(monkeypatch)
    monkeypatch.setattr(fla, "device_unavailable", lambda: None)
    kernels = {kernel.name[4:]: kernel for kernel in fla.fla_kernels()}
    for name, kernel in kernels.items():
        assert kernel.gradients == (name not in (*REFUSED, *INFERENCE))
        assert kernel.gradients == (kernel.no_gradients is None)
        assert ("no gradients here" in str(kernel.note)) == (name in REFUSED)
