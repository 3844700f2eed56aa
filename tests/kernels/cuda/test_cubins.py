"""CUDA sources compile without a driver, and say what they take."""

from itertools import islice
from pathlib import Path

import pytest

from scancheck.errors import KernelUnavailable
from scancheck.kernels.cuda import compile as compiling
from scancheck.kernels.cuda.catalog import sources
from scancheck.kernels.cuda.compile import SOURCES, cubin, resources, warnings
from scancheck.kernels.cuda.cubins import ARCHITECTURES, compiled, covering
from scancheck.kernels.cuda.toolkit import compiler_unavailable

needs_compiler = pytest.mark.skipif(
    compiler_unavailable() is not None, reason=str(compiler_unavailable())
)

KERNEL = 'extern "C" __global__ void kernel(float* x) {{ {body} x[0] = 1.0f; }}'


@pytest.fixture
def sources_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of sources, and a cache of its own."""
    monkeypatch.setattr(compiling, "SOURCES", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiling._cubin.cache_clear()
    return tmp_path


@needs_compiler
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_source_compiles_without_a_warning(arch: str) -> None:
    """Every source gives cubins for the architecture, and no warning."""
    rows = list(compiled((arch,)))
    assert {row.source for row in rows} == set(sources())
    assert not [row for row in rows if row.warnings]
    assert all(0 < row.resources.registers <= 255 for row in rows)


def test_every_source_file_is_listed() -> None:
    """No .cu file of the package is left out, and none is listed that is not there."""
    files = {path.name for path in SOURCES.glob("*.cu")}
    assert files == set(sources()) | {"functions_check.cu"}


def test_covering_instances_miss_no_argument() -> None:
    """A few instances have every value of every template argument."""
    instances = [f"k<{a}, D<{b}, 1>, {c}>" for a in "xyz" for b in "pq" for c in "12"]
    chosen = covering(instances)
    assert len(chosen) < len(instances)
    for values in ("xyz", "pq", "12"):
        assert all(any(v in name for name in chosen) for v in values)


@needs_compiler
def test_cubin_is_kept_until_a_source_changes(sources_folder: Path) -> None:
    """A kept cubin is read again; an edit of the source or of a header is compiled."""
    (sources_folder / "k.cu").write_text('#include "h.cuh"\n' + KERNEL.format(body=""))
    (sources_folder / "h.cuh").write_text("")
    kept = sources_folder / "cache" / "scancheck" / "cuda"

    def files_after_compiling() -> int:
        compiling._cubin.cache_clear()
        assert cubin("k.cu", ("kernel",), "sm_90").image.startswith(b"\x7fELF")
        return len(list(kept.iterdir()))

    assert files_after_compiling() == 1
    assert files_after_compiling() == 1
    (sources_folder / "h.cuh").write_text("// edited\n")
    assert files_after_compiling() == 2


@needs_compiler
def test_damaged_cubin_is_compiled_again(sources_folder: Path) -> None:
    """What is left of a broken write is not taken for a cubin."""
    (sources_folder / "k.cu").write_text(KERNEL.format(body=""))
    image = cubin("k.cu", ("kernel",), "sm_90").image
    (file,) = islice((sources_folder / "cache" / "scancheck" / "cuda").iterdir(), 2)
    file.write_bytes(b"{")
    compiling._cubin.cache_clear()
    assert cubin("k.cu", ("kernel",), "sm_90").image == image


@needs_compiler
def test_warnings_and_spills_are_told(sources_folder: Path) -> None:
    """A warning is a line of its own; resources count registers and spilled bytes."""
    (sources_folder / "k.cu").write_text(KERNEL.format(body="int unused;"))
    built = cubin("k.cu", ("kernel",), "sm_90")
    assert "never referenced" in " ".join(warnings(built))
    assert resources(built)["kernel"].registers > 0


@needs_compiler
def test_error_shows_the_compilers_words(sources_folder: Path) -> None:
    """A source that does not compile is told with NVRTC's log."""
    (sources_folder / "k.cu").write_text(KERNEL.format(body="missing = 1;"))
    with pytest.raises(KernelUnavailable, match=r'(?s)k\.cu does not.*"missing"'):
        cubin("k.cu", ("kernel",), "sm_90")


def test_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CuPy the message says what to install."""
    monkeypatch.setattr(compiling, "compiler_unavailable", lambda: "CuPy is missing")
    with pytest.raises(KernelUnavailable, match=r"linear_scan\.cu.*CuPy is missing"):
        cubin("linear_scan.cu", (), "sm_90")
