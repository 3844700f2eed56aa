"""The page of the oracles' speed, and what is measured for it; times need a device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_oracles
import oracle_page
import pytest
from figures import Figure
from oracle_page import Job, Page

from scancheck.ops import OPS

FIGURE = Figure(name="one", shape="T1 D2", value=1e9, unit="/s", target=5e10)
KNOWN = {"cuda_device": "X", "commit": "abc"}
SMALL = {"B": 1, "T": 5, "H": 2, "HV": 2, "K": 18, "V": 3}


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of no device is freed, and every call takes a second."""
    for module in (oracle_page, cuda_oracles):
        monkeypatch.setattr(module, "free_memory", lambda: None)
    monkeypatch.setattr(cuda_oracles, "seconds", lambda run: (run(), 1.0)[1])


def job(name: str, value: float | Exception) -> Job:
    """A job that has been done, or that fails."""

    def measure() -> Figure:
        if isinstance(value, Exception):
            raise value
        return replace(FIGURE, name=name, value=value)

    return Job(name=name, shape=FIGURE.shape, measure=measure)


def kept(page: Page) -> tuple[dict[str, Any], str]:
    """The figures by name, as they are written, and the page."""
    data = json.loads(page.output.with_suffix(".json").read_text())
    by_name = {one["name"]: one for one in data["figures"]}
    return by_name | {"not measured": data["not_measured"]}, page.output.read_text()


def test_a_figure_that_fails_is_told_and_the_next_one_comes(tmp_path: Path) -> None:
    """With its reason in one line, and without a value."""
    page = Page(tmp_path / "new" / "page.md", KNOWN)
    jobs = [job("slow", 1e9), job("broken", MemoryError("no\nroom")), job("fast", 6e10)]
    for one in jobs:
        page.add(one)
    page.write([one.key for one in jobs])
    figures, text = kept(page)
    assert [name for name in figures if name != "not measured"] == ["slow", "fast"]
    assert (figures["slow"]["passed"], figures["fast"]["passed"]) == (False, True)
    reason = "MemoryError: no"
    assert figures["not measured"][0] == {
        "name": "broken",
        "shape": "T1 D2",
        "reason": reason,
    }
    assert f"- broken, T1 D2: {reason}" in text
    assert "oracles on X" in text
    assert "| slow | T1 D2 | >= 5e+10 | 1e+09 /s | FAIL |" in text
    assert text.count("PASS") == 1


def test_figures_join_those_of_the_page(tmp_path: Path) -> None:
    """Each keeps its commit; what is measured anew, or fails, replaces the old one."""
    jobs = [job("a", 1e9), job("b", 2e9), job("c", 3e9), job("gone", 4e9)]
    page = Page(tmp_path / "page.md", KNOWN)
    for one in jobs:
        page.add(one)
    page.write([one.key for one in jobs])
    again = Page(page.output, KNOWN | {"commit": "def", "numpy": "9"})
    again.take_up()
    again.add(job("b", 6e10))
    again.add(job("c", ValueError("not so")))
    again.write([one.key for one in jobs[:3]])
    figures, text = kept(again)
    assert [name for name in figures if name != "not measured"] == ["a", "b"]
    assert (figures["a"]["commit"], figures["b"]["commit"]) == ("abc", "def")
    assert figures["b"]["value"] == 6e10
    assert "- c, T1 D2: ValueError: not so" in text
    first, second = text.index("numpy 9"), text.index("Environment: commit abc")
    assert first < second


def test_the_page_before_takes_part(tmp_path: Path) -> None:
    """Its figures have no commit of their own; another device's are refused."""
    path = tmp_path / "page.md"
    old = {"name": "a", "shape": f"T1{oracle_page.NO_PLAIN_PASS}", "value": 2.0}
    figure = old | {"unit": "", "target": 3.0, "at_least": False, "passed": True}
    data = {"environment": KNOWN, "figures": [figure]}
    path.with_suffix(".json").write_text(json.dumps(data))
    page = Page(path, KNOWN | {"commit": "def"})
    page.take_up()
    page.write([("a", "T1")])
    assert kept(page)[0]["a"] == figure | {"commit": "abc"}
    with pytest.raises(SystemExit, match=r"has figures of X; here is Y"):
        Page(path, {"cuda_device": "Y"}).take_up()


@pytest.mark.parametrize("name", cuda_oracles.MATRIX_STATES)
def test_matrix_states_are_measured(
    name: str, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both figures of an op run, here with few tokens."""
    monkeypatch.setattr(cuda_oracles, "HEADS", SMALL)
    cuda_oracles.heads_inputs.cache_clear()
    jobs = [one for one in cuda_oracles.matrix_states() if one.shape.startswith(name)]
    groups, keys, lanes = OPS[name].group_shape(SMALL)
    assert [one.name for one in jobs] == [
        "certified fp64, call",
        "sequential budget, call",
    ]
    for one in jobs:
        assert one.measure().value == groups * keys * lanes * SMALL["T"]
    cuda_oracles.heads_inputs.cache_clear()


def test_only_what_matches_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures else stay, and the exit code is theirs too."""
    monkeypatch.setattr(cuda_oracles, "environment", lambda peers: KNOWN)
    monkeypatch.setattr(cuda_oracles, "judging", lambda: iter(()))
    monkeypatch.setattr(cuda_oracles, "matrix_states", lambda: iter(()))
    path = str(tmp_path / "page.md")
    jobs = [job("gla", 6e10), job("kda", 7e10)]
    monkeypatch.setattr(cuda_oracles, "rates", lambda: iter(jobs))
    assert cuda_oracles.main(["-o", path]) == 0
    jobs[0] = job("gla", 1e9)
    assert cuda_oracles.main(["-o", path, "--match", "^kda"]) == 0
    assert cuda_oracles.main(["-o", path, "--match", "gla, T1"]) == 1
    with pytest.raises(SystemExit, match="no figure has it"):
        cuda_oracles.main(["-o", path, "--match", "rwkv"])
