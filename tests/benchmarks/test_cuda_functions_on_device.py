"""The CUDA functions on a device: the CPU's bits, and the table behind ex2."""

from typing import Any

import numpy as np
import pytest
from cuda_function_sweep import ERROR_BLOCK, HASH_BLOCK, SWEPT, sweep

cupy = pytest.importorskip("cupy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cupy.is_available(), reason="needs a CUDA device"),
]

# Around 1, -1 and the ends of the range, subnormals, infinities and NaN.
BLOCKS = (0, 122, 127, 133, 255, 256, 381, 389, 511)


@pytest.fixture(scope="module")
def module() -> Any:
    """functions_check.cu, compiled for the device."""
    from cuda_function_device import compiled

    return compiled()


def differing(found: dict[str, Any], key: str, name: str, *, tabulated: bool) -> list:
    """The inputs at which blocks begin whose hashes are not the CPU's."""
    wrong = []
    for block in BLOCKS:
        sums = sweep(name, range(block, block + 1), tabulated=tabulated).sums
        per_block = ERROR_BLOCK // HASH_BLOCK
        hashes = slice(block * per_block, (block + 1) * per_block)
        if not np.array_equal(sums[hashes], found[f"{key}_sums"][hashes]):
            wrong.append(hex(block * ERROR_BLOCK))
    return wrong


@pytest.mark.parametrize("name", SWEPT)
def test_reproducible_gives_the_bits_of_the_cpu(module: Any, name: str) -> None:
    """Hashes of whole exponents of inputs are equal."""
    from cuda_function_device import check

    found: dict[str, Any] = {}
    check(module, f"reproducible_{name}", found)
    assert differing(found, f"reproducible_{name}", name, tabulated=False) == []
    assert not found[f"reproducible_{name}_kinds"].any()


def test_ex2_is_its_table_on_all_inputs(module: Any) -> None:
    """All 2^32 inputs of ex2.approx.ftz give what the table says."""
    from cuda_function_device import table_of_ex2

    found: dict[str, Any] = {}
    table_of_ex2(module, found)
    assert found["ex2_mismatches"].sum() == 0


@pytest.mark.parametrize("name", ["exp", "softplus", "sigmoid", "silu"])
def test_tabulated_gives_the_bits_of_the_cpu(module: Any, name: str) -> None:
    """With a known table, the CPU has the bits of functions that use ex2."""
    from cuda_function_device import check

    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("the table is known for sm_90 only")
    found: dict[str, Any] = {}
    check(module, f"tabulated_{name}", found)
    assert differing(found, f"tabulated_{name}", name, tabulated=True) == []


def test_variants_without_clamps_give_the_same_bits(module: Any) -> None:
    """Each function that skips clamps equals the whole one in its domain."""
    from cuda_function_device import variants

    found: dict[str, Any] = {}
    variants(module, found)
    assert not found["variants"].any()
