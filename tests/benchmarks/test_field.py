"""The bench of the field: lines, pages, and what could not be judged."""

import json
import subprocess
import sys
from pathlib import Path

import compile_ahead
import field
import pytest

from scancheck.adapters.catalog import adapters
from scancheck.case import make_case

NAME = "torch.associative_scan.generic"


def kernel(name: str) -> object:
    """The adapter of that name."""
    return next(one for one in adapters() if one.name == name)


def test_lines_are_all_adapters_or_those_asked_for() -> None:
    """Each in each of its dtypes, also those that cannot run here."""
    every = [(k.name, dtype) for k, dtype in field.lines("")]
    assert {name for name, _ in every} == {k.name for k in adapters()}
    assert [(k.name, d) for k, d in field.lines(f"{NAME} fp32")] == [(NAME, "fp32")]


@pytest.mark.slow
def test_a_line_is_judged_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Verdict, bits and the JSON of a kernel that is right."""
    words = ["--match", f"{NAME} fp32", "-o", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, field.__file__, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (row,) = field.read_rows(tmp_path / "rows.csv")
    assert (row["verdict"], row["red"]) == ("PASS", "0")
    assert 15 < float(row["bits"]) < 30
    assert float(row["worst_ratio"]) <= 1.0
    record = json.loads((tmp_path / f"{NAME}-fp32.json").read_text())
    assert record["verdict"] == "PASS"
    assert f"| {NAME} | fp32 | PASS |" in (tmp_path / "README.md").read_text()


def test_what_cannot_run_is_told_and_never_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing package has its reason on the page; a crash has its exit code."""
    asked = [(k, d) for k, d in field.lines("") if k.unavailable is not None][:1]
    rows = field.run(asked, tmp_path, "cpu", 0, update=False)
    assert [row["verdict"] for row in rows] == [field.NOT_JUDGED] * len(asked)
    text = (tmp_path / "README.md").read_text() if asked else ""
    for missing, _ in asked:
        assert str(missing.unavailable) in text
    monkeypatch.setattr(field, "__file__", str(tmp_path / "missing.py"))
    row = field.row_of(kernel(NAME), "fp32", "cpu", 0, tmp_path, 1)
    assert row["verdict"] == field.NOT_JUDGED
    assert row["reason"].startswith("process ended with 2")


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Judged lines stay, those that were not judged are tried again."""
    row = dict.fromkeys(field.FIELDS, "") | {"kernel": NAME, "dtype": "fp32"}
    row |= {"verdict": "FAIL", "version": "torch 2", "commit": "c"}
    field.write_rows([row], field.FIELDS, tmp_path / "rows.csv")
    asked = [(kernel(NAME), "fp32")]
    assert field.run(asked, tmp_path, "cpu", 0, update=True) == [row]


def test_a_page_tells_each_cause_once(tmp_path: Path) -> None:
    """With its tensors and the command that replays it; and what was left out."""
    row = dict.fromkeys(field.FIELDS, "") | {"kernel": NAME, "dtype": "fp32"}
    row |= {"verdict": "FAIL", "reason": "its backward refuses"}
    finding = {"verdict": "FAIL", "cause": "short_state", "check": "oracle"}
    found = [
        finding | {"tensor": name, "reason": f"{name} is off", "replay": f"see {name}"}
        for name in ("h", "final_state")
    ]
    text = json.dumps({"findings": found})
    (tmp_path / f"{NAME}-fp32.json").write_text(text, encoding="utf-8")
    page = field.page([row], "cpu", tmp_path)
    told = f"- {NAME} fp32, FAIL short state (h, final_state): h is off. `see h`"
    assert page.count(told) == 1
    assert "see final_state" not in page
    assert f"Without gradients:\n\n- {NAME} fp32: its backward refuses" in page


def test_what_is_compiled_alike_is_called_in_one_process() -> None:
    """Cases of the same heads and widths, whatever their length and batch."""
    sizes = {"B": 1, "T": 3, "H": 1, "HV": 1, "K": 2, "V": 2}
    others: tuple[dict[str, int], ...] = ({}, {"K": 3}, {"T": 5}, {"B": 2}, {"V": 1})
    a, b, c, d, e = (
        make_case("delta_rule", sizes | one, recipe="gaussian_slow", seed=0)
        for one in others
    )
    assert compile_ahead.by_widths([a, b, c, d, e]) == [[a, c, d], [b], [e]]
    compile_ahead.call_all("model.delta_rule.sequential.plain", "cpu", [a, b])
