"""The hardware's ex2 on the CPU: its table, its edges and its error model."""

from pathlib import Path

import numpy as np
import pytest

from scancheck.errors import RecordUnreadable
from scancheck.kernels.cuda.error_models import FAST_ERRORS
from scancheck.kernels.models import cuda_ex2
from scancheck.kernels.models.cuda_arithmetic import Float32Array
from scancheck.kernels.models.jit import jit

U = 2.0**-24


@jit(cache=False, _nrt=False)
def _fill(x, table, result):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        result[i] = cuda_ex2.exp2(x[i], table)


def ex2(*x: float) -> Float32Array:
    """ex2.approx.ftz of each number."""
    numbers = np.array(x, dtype=np.float32)
    result = np.empty_like(numbers)
    _fill(numbers, cuda_ex2.table(), result)
    return result


def test_table_is_unpacked_from_what_packed_gives() -> None:
    """The file holds the table: packing the unpacked one gives its bytes back."""
    path = Path(cuda_ex2.__file__).parent / "ex2_sm_90.zlib"
    assert cuda_ex2.packed(cuda_ex2.table()) == path.read_bytes()


def test_damaged_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One other value, or no table at all, is named and not used."""
    other = cuda_ex2.table().copy()
    other[12345] = np.nextafter(other[12345], np.float32(2.0))
    monkeypatch.setattr(cuda_ex2, "__file__", str(tmp_path / "cuda_ex2.py"))
    unpack = cuda_ex2.table.__wrapped__
    with pytest.raises(RecordUnreadable, match=r"ex2_sm_90\.zlib: expected a packed"):
        unpack()
    (tmp_path / "ex2_sm_90.zlib").write_bytes(cuda_ex2.packed(other))
    with pytest.raises(RecordUnreadable, match="expected a table with SHA-256"):
        unpack()


def test_special_values() -> None:
    """Integers are exact, ends of the range as the hardware has them, NaN is NaN."""
    integers = np.arange(-126.0, 128.0)
    assert np.array_equal(ex2(*integers), 2.0**integers)
    assert ex2(128.0, 1e30, np.inf).tolist() == [np.inf] * 3
    assert ex2(-126.00001, -127.0, -1e30, -np.inf).tolist() == [0.0] * 4
    assert ex2(0.0, -0.0, 1e-40, 1e-9, -1e-9).tolist() == [1.0] * 5
    assert np.isnan(ex2(np.nan))[0]


def test_arguments_are_cut_to_multiples_of_2_to_the_minus_23() -> None:
    """All arguments between two multiples give what the one nearer to 0 gives."""
    multiples = np.random.default_rng(0).integers(1, 2**22, 500) * 2.0**-23
    for sign in (1.0, -1.0):
        at = ex2(*(sign * multiples))
        below = np.nextafter(multiples + 2.0**-23, 0.0, dtype=np.float32)
        assert np.array_equal(ex2(*(sign * below)), at)


def test_error_is_within_the_stated_one() -> None:
    """On arguments of every size the error model of Fast's exp2 holds."""
    bits = np.arange(0, 2**32, 40093, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[(x >= -126.0) & (x < 128.0)]
    exact = np.exp2(x.astype(np.float64))
    error = np.abs(ex2(*x) - exact) / exact
    assert error.max() <= FAST_ERRORS["exp2"].e0 * U
