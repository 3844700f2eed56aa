"""The compilation cache, and the fused multiply-add."""

from pathlib import Path

import numba
import numpy as np
import pytest

from scancheck import jit as jit_module
from scancheck.jit import fma_of, jit_of
from scancheck.kernels.models import jit as of_models
from scancheck.oracles import jit as of_oracles


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory remembered from other tests, and none left for them."""
    monkeypatch.setattr(
        jit_module, "_cache_directory", jit_module._cache_directory.__wrapped__
    )
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")


def test_cache_lies_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache directory is below XDG_CACHE_HOME and named after the sources."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = Path(jit_module._cache_directory("numba", ()))
    assert directory.parent == tmp_path / "scancheck" / "numba"
    assert directory.is_dir()
    monkeypatch.setattr(jit_module, "_source_hash", lambda folders: "edited")
    assert Path(jit_module._cache_directory("numba", ())).name == "edited"


def test_numba_setting_is_left_alone(tmp_path: Path) -> None:
    """Decorating changes Numba's cache directory for its own duration only."""

    @jit_of("numba", (tmp_path,))(cache=False)
    def one() -> int:
        return 1

    assert numba.config.CACHE_DIR == ""
    assert one() == 1


def test_unwritable_folder_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no directory can be made, Numba's own default is used."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert jit_module._cache_directory("numba", ()) == ""


def test_every_compiled_source_counts(tmp_path: Path) -> None:
    """The hash changes with any byte and the name of a file that compiles functions."""
    hashes = []
    for name, text in (("a.py", "@jit"), ("a.py", "@jit "), ("b.py", "@jit ")):
        (tmp_path / name).write_text(text)
        hashes.append(jit_module._source_hash((tmp_path,)))
    assert len(set(hashes)) == 3
    (tmp_path / "plain.py").write_text("nothing compiled")
    assert jit_module._source_hash((tmp_path,)) == hashes[-1]


def test_folders_of_the_caches_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracles with bounds, and models, have a cache each, of their own folders."""
    seen = {}

    def remember(name: str, folders: tuple[Path, ...]) -> str:
        seen[name] = [folder.name for folder in folders]
        return ""

    monkeypatch.setattr(jit_module, "_cache_directory", remember)
    for module in (of_oracles, of_models):
        module.jit(cache=False)(abs_of)
    assert seen == {"numba": ["oracles", "bounds"], "numba-models": ["models"]}


def abs_of(x: float) -> float:
    """Something to compile."""
    return abs(x)


@pytest.mark.parametrize(
    ("kind", "unit"), [(numba.float32, np.float32), (numba.float64, np.float64)]
)
def test_fma_rounds_once(kind: numba.types.Float, unit: type[np.floating]) -> None:
    """(1 + u)(1 - u) - 1 is -u^2, which two roundings make 0."""
    fused = fma_of(kind)

    @numba.njit
    def fma(a, b, c):  # type: ignore[no-untyped-def]
        return fused(a, b, c)

    u = unit(np.finfo(unit).eps)
    assert fma(unit(1.0) + u, unit(1.0) - u, unit(-1.0)) == -u * u
