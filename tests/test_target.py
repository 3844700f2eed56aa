"""A target names an object, or one line says which part of it is wrong."""

import sys
from pathlib import Path

import pytest

from scancheck.errors import CaseInvalid
from scancheck.target import load, suggestion


def write(path: Path, source: str) -> Path:
    """The file, with its source."""
    path.write_text(source, encoding="utf-8")
    return path


def test_callable_of_a_module() -> None:
    """A dotted module and a dotted attribute are both followed."""
    import json

    assert load("json:dumps") is json.dumps
    assert load("json.decoder:JSONDecoder.decode") is json.JSONDecoder.decode


def test_module_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside the user is found without an installation."""
    write(tmp_path / "my_kernels_here.py", "def scan(a, b): return 'here'\n")
    monkeypatch.chdir(tmp_path)
    assert load("my_kernels_here:scan")(1, 2) == "here"
    assert str(tmp_path) not in sys.path


def test_callable_of_a_file_with_its_neighbours(tmp_path: Path) -> None:
    """A file imports what lies beside it; the search path is as before afterwards."""
    write(tmp_path / "combine_beside.py", "VALUE = 7\n")
    source = "from combine_beside import VALUE\ndef scan(a, b): return VALUE\n"
    path = write(tmp_path / "kernel.py", source)
    before = list(sys.path)
    assert load(f"{path}:scan")(1, 2) == 7
    assert sys.path == before


def test_relative_path_is_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kernel.py:scan` is a file of the current folder."""
    write(tmp_path / "kernel.py", "def scan(a, b): return 3\n")
    monkeypatch.chdir(tmp_path)
    assert load("kernel.py:scan")(1, 2) == 3


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    """Two files called kernel.py are two modules, and hide no installed module."""
    import json

    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "json.py", f"def scan(a, b): return {folder!r}\n")
    assert load(f"{tmp_path / 'one' / 'json.py'}:scan")(1, 2) == "one"
    assert load(f"{tmp_path / 'two' / 'json.py'}:scan")(1, 2) == "two"
    assert sys.modules["json"] is json


def test_file_is_imported_again_after_a_change_only(tmp_path: Path) -> None:
    """The same source is one module; an edited file is read anew."""
    path = write(tmp_path / "kernel.py", "def scan(a, b): return 1\n")
    first = load(f"{path}:scan")
    assert load(f"{path}:scan") is first
    write(path, "def scan(a, b): return 2\n")
    assert load(f"{path}:scan")(1, 2) == 2


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (":scan", "expected package.module:callable"),
        ("json:", "expected package.module:callable"),
        ("jsn:dumps", "no module named 'jsn'; did you mean json"),
        ("json.decodr:f", "no module named 'json.decodr'"),
        ("json.decoder.deeper:f", "no module named 'json.decoder.deeper'"),
        ("..json:dumps", "'..json' is no module name"),
        ("1json:dumps", "'1json' is no module name"),
        ("json:dump_s", "json has no 'dump_s'; did you mean dumps"),
        ("json:decoder.Nothing", "json has no 'decoder.Nothing'"),
        ("missing_file.py:scan", "missing_file.py does not exist"),
        ("nowhere/kernel.py:scan", "nowhere/kernel.py does not exist"),
    ],
)
def test_wrong_target_says_what_is_wrong(target: str, message: str) -> None:
    """Module, file and attribute are each named when they are not there."""
    with pytest.raises(CaseInvalid) as caught:
        load(target)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_close_file_is_suggested(tmp_path: Path) -> None:
    """A misspelt file is answered with its neighbours of a similar name."""
    write(tmp_path / "kernel.py", "")
    with pytest.raises(CaseInvalid, match=r"does not exist; did you mean kernel\.py"):
        load(f"{tmp_path / 'kernels.py'}:scan")
    with pytest.raises(CaseInvalid, match="is a folder"):
        load(f"{tmp_path}:scan")
    with pytest.raises(CaseInvalid, match=r"did you mean kernel\.py"):
        load(f"{tmp_path / 'kernel'}:scan")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (kernel.py:2)"),
        ("\ndef scan(:\n", "SyntaxError: invalid syntax (kernel.py:2)"),
        (
            "import no_such_thing\n",
            "ModuleNotFoundError: No module named 'no_such_thing' (kernel.py:1)",
        ),
        ("raise SystemExit(3)\n", "SystemExit: 3 (kernel.py:1)"),
        ("import json\n\njson.loads('{')\n", "(kernel.py:3)"),
        ("assert False, 'a\\nb'\n", "AssertionError: a (kernel.py:1)"),
    ],
)
def test_failing_import_is_one_line(tmp_path: Path, source: str, message: str) -> None:
    """What importing a file raised is told with the file's own line."""
    path = write(tmp_path / "kernel.py", source)
    with pytest.raises(CaseInvalid) as caught:
        load(f"{path}:scan")
    assert f"importing {path} raised " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    """A file that raised is imported again, not taken half-made from before."""
    path = write(tmp_path / "kernel.py", "def scan(a, b): return 1\nraise ValueError\n")
    before = set(sys.modules), list(sys.path)
    for _ in range(2):
        with pytest.raises(CaseInvalid, match="raised ValueError"):
            load(f"{path}:scan")
    assert (set(sys.modules), list(sys.path)) == before


def test_keyboard_interrupt_during_import_passes(tmp_path: Path) -> None:
    """Ctrl-C while importing is the user's."""
    path = write(tmp_path / "kernel.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(f"{path}:scan")


def test_suggestion_is_empty_when_nothing_is_close() -> None:
    """Names that resemble nothing get no guess."""
    assert suggestion("zzzz", ["kernel"]) == ""
    assert suggestion("kernl", ["kernel", "other"]) == "; did you mean kernel?"
