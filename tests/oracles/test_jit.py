"""The compilation cache of the oracles."""

from pathlib import Path

import numba
import pytest

from scancheck.oracles import jit as jit_module
from scancheck.oracles.jit import jit


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
    directory = Path(jit_module._cache_directory(tmp_path))
    assert directory.parent == tmp_path / "scancheck" / "numba"
    assert directory.is_dir()
    monkeypatch.setattr(jit_module, "_source_hash", lambda folder: "edited")
    assert Path(jit_module._cache_directory(tmp_path)).name == "edited"


def test_numba_setting_is_left_alone() -> None:
    """Decorating changes Numba's cache directory for its own duration only."""

    @jit(cache=False)
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
    assert jit_module._cache_directory(tmp_path) == ""


def test_every_compiled_source_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash changes with any byte and the name of a file that compiles functions."""
    monkeypatch.setattr(jit_module, "__file__", str(tmp_path / "jit.py"))
    hashes = []
    for name, text in (("a.py", "@jit"), ("a.py", "@jit "), ("b.py", "@jit ")):
        (tmp_path / name).write_text(text)
        hashes.append(jit_module._source_hash(tmp_path))
    assert len(set(hashes)) == 3
    (tmp_path / "plain.py").write_text("nothing compiled")
    assert jit_module._source_hash(tmp_path) == hashes[-1]


def test_another_folder_has_its_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits outside of oracles and bounds leave those compiled, and not the reverse."""
    oracles, other = tmp_path / "oracles", tmp_path / "other"
    for folder in (oracles, other):
        folder.mkdir()
        (folder / "scan.py").write_text("@jit")
    monkeypatch.setattr(jit_module, "__file__", str(oracles / "jit.py"))

    def hashes() -> tuple[str, str]:
        return jit_module._source_hash(oracles), jit_module._source_hash(other)

    first = hashes()
    (other / "scan.py").write_text("@jit edited")
    second = hashes()
    assert second[0] == first[0] and second[1] != first[1]
    (oracles / "scan.py").write_text("@jit edited")
    third = hashes()
    assert third[0] != second[0] and third[1] != second[1]
