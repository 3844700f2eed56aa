"""Evidence of the CUDA kernels: what is drawn, what is wrong, what is written."""

from pathlib import Path
from typing import Any

import cuda_bits
import cuda_graphs
import cuda_planted
import cuda_sanitizer
import cuda_verify
import pytest
import torch
from cuda_cases import LINEAR, SELECTIVE, WIDER, Case, Drawn, cases_of, drawn

from scancheck.kernels.faulty.cuda_sources import FAULTS

NAME = "cuda.linear_scan.single_pass.plain"
SMALL = [case for case in cases_of(NAME) if case.sizes[1] < 20]


def model(name: str, given: Drawn) -> dict[str, Any]:
    """In place of a device: the model again."""
    return cuda_bits.of_model(name, given, "cpu")


@pytest.mark.parametrize(
    "op", ["linear_scan.single_pass.kahan", "selective_scan.auto.fast"]
)
def test_cases_are_what_they_say(op: str) -> None:
    """The same numbers each time, in the format, and views of wider rows with NaN."""
    name = f"cuda.{op}"
    for case in list(cases_of(name))[:12]:
        first, again = drawn(name, case, "bf16"), drawn(name, case, "bf16")
        for key, x in first.tensors.items():
            assert torch.equal(x, again.tensors[key])
            assert bool(x.isfinite().all())
        whole = first.tensors["b" if "b" in first.tensors else "u"]
        assert whole.dtype == torch.bfloat16
        assert tuple(whole.shape) == case.sizes[:3]
        if case.first is not None:
            assert whole.storage_offset() == case.first
            assert whole.stride(-2) == whole.shape[-1] + WIDER
            assert bool(whole._base.isnan().any())


def test_cases_reach_the_ends_of_the_range() -> None:
    """Subnormal results and overflows are among those compared, and tails."""
    found = [case for case in cases_of(NAME) if case.gates in ("subnormal", "growing")]
    counts = cuda_bits.compared(NAME, "fp32", found, model, "cpu")
    assert counts["h"].subnormal > 1000
    assert counts["h"].not_finite > 1000
    assert counts["h"].differing == 0
    assert {1, 255, 256, 257} <= {case.sizes[1] for case in LINEAR}
    assert {1, 3, 16, 64, 256} <= {case.sizes[3] for case in SELECTIVE}


def test_one_bit_is_seen() -> None:
    """A value that is off by one unit of the last place is counted and located."""

    def off(name: str, given: Drawn) -> dict[str, Any]:
        found = model(name, given)
        found["d b"].view(torch.int32)[0, 1, 0] += 1
        return found

    cases = [case for case in SMALL if case.sizes[1] == 2]
    counts = cuda_bits.compared(NAME, "fp32", cases, off, "cpu")
    assert {k: c.differing for k, c in counts.items() if c.differing} == {"d b": 2}
    assert counts["d b"].first.startswith("(0, 1, 0) of 1x2x1, usual, a")
    assert counts["d b"].runs_differing == 0


def test_runs_that_differ_are_seen() -> None:
    """A value that changes in the last of the runs is counted."""
    runs = []

    def changing(name: str, given: Drawn) -> dict[str, Any]:
        found = model(name, given)
        runs.append(name)
        if len(runs) % cuda_bits.RUNS == 0:
            found["final_state"] += 1
        return found

    counts = cuda_bits.compared(NAME, "fp16", SMALL[:1], changing, "cpu")
    assert counts["final_state"].runs_differing == counts["final_state"].values == 6
    assert counts["final_state"].differing == 0


def bit_row(**changes: str) -> dict[str, str]:
    """A row as it must be."""
    row = dict.fromkeys(cuda_bits.FIELDS, "0") | {"kernel": NAME, "dtype": "fp32"}
    return row | {"tensor": "h", "values": "10", "commit": "c"} | changes


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"differing": "1", "first": "(0,)"}, 1),
        ({"runs_differing": "1"}, 1),
        ({"values": "0"}, 1),
    ],
)
def test_bits_exit_code(tmp_path: Path, changes: dict[str, str], code: int) -> None:
    """One differing value, or none compared, is a failure; so is a missing kernel."""
    asked = [(NAME, "fp32")]
    rows = [bit_row(**changes)]
    assert cuda_bits.run(asked, tmp_path, [], lambda: [rows]) == code
    told = (tmp_path / "bit_equality.md").read_text()
    assert ("(0,)" in told) == ("first" in changes)
    assert cuda_bits.read_rows(tmp_path / "bit_equality.csv") == rows
    assert cuda_bits.run([*asked, (NAME, "bf16")], tmp_path, rows, list) == 1


def test_models_are_compiled_once() -> None:
    """Kernels whose models have the same loops share a compilation."""
    apart = cuda_bits.compiled_apart(cuda_bits.names())
    assert len(apart) == 5
    assert cuda_bits.compiled_apart(apart) == apart
    orders = {tuple(name.split(".")[1:3]) for name in apart}
    assert ("selective_scan", "time") in orders


def test_planted_exit_code(tmp_path: Path) -> None:
    """Each fault must be red and named; rows of an earlier run count."""
    fault = FAULTS[0]
    row = dict.fromkeys(cuda_planted.FIELDS, "") | {"commit": "c"}
    row |= {"fault": cuda_planted.name_of(fault), "cases_until_red": "1"}
    assert cuda_planted.run([fault], tmp_path, [], lambda: [row]) == 1
    named = row | {"cases_until_named": "2"}
    assert cuda_planted.run([fault], tmp_path, [row], lambda: [named]) == 0
    assert cuda_planted.run([fault], tmp_path, [named], list) == 0
    assert cuda_planted.run(list(FAULTS[:2]), tmp_path, [named], list) == 1
    assert "1 red, 1 named" in (tmp_path / "planted_sources.md").read_text()


@pytest.mark.parametrize("against", [None, *cuda_graphs.FIELDS[5:9]])
def test_graph_rows(tmp_path: Path, against: str | None) -> None:
    """Each of the figures that must be 0 counts, and so does comparing nothing."""
    row = dict.fromkeys(cuda_graphs.FIELDS, "0") | {"values": "5", "commit": "c"}
    if against is not None:
        row[against] = "1"
    assert cuda_graphs.as_it_must_be(row) == (against is None)
    assert not cuda_graphs.as_it_must_be(row | {"values": "0"})
    row["kernel"] = NAME
    wrong = 0 if against is None else 1
    assert cuda_graphs.run([NAME], tmp_path, [], lambda: [[row]]) == wrong
    assert f"5 values: {wrong} rows" in (tmp_path / "cuda_graphs.md").read_text()
    assert cuda_graphs.run([NAME, "other"], tmp_path, [row], list) == 1
    assert (against is None) == (cuda_graphs.told(row) == "")


MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at fault(float *, long long)+0x50
=========     by thread (0,0,0) in block (0,0,0)
worked 1
========= ERROR SUMMARY: 64 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
worked 12
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


def test_summaries_of_the_sanitizer() -> None:
    """Reports, calls and the first lines; without a summary there is no row."""
    row = cuda_sanitizer.row_of("memcheck", "fault", MEMCHECK, 1.0)
    assert (row["calls"], row["reports"]) == ("1", "64")
    assert row["first"].startswith(
        "Invalid __global__ write of size 4 bytes / at fault"
    )
    assert cuda_sanitizer.as_it_must_be(row)
    assert not cuda_sanitizer.as_it_must_be(row | {"work": "linear_scan"})
    row = cuda_sanitizer.row_of("racecheck", "linear_scan", RACECHECK, 1.0)
    assert (row["calls"], row["reports"], row["first"]) == ("12", "0", "")
    assert cuda_sanitizer.as_it_must_be(row)
    for work in ("fault", cuda_sanitizer.MISSING_BARRIER):
        assert not cuda_sanitizer.as_it_must_be(row | {"work": work})
    assert not cuda_sanitizer.as_it_must_be(row | {"calls": "0"})
    with pytest.raises(ValueError, match="expected a summary"):
        cuda_sanitizer.row_of("memcheck", "linear_scan", "worked 12\n", 1.0)


def test_sanitizer_exit_code(tmp_path: Path) -> None:
    """What was asked for must be there and as it must be."""
    clean = cuda_sanitizer.row_of("racecheck", "linear_scan", RACECHECK, 1.0)
    asked = [("racecheck", "linear_scan")]
    assert cuda_sanitizer.run(asked, tmp_path, [], lambda: [clean]) == 0
    assert "PASS" in (tmp_path / "sanitizer.md").read_text()
    asked.append(("racecheck", "fault"))
    assert cuda_sanitizer.run(asked, tmp_path, [clean], list) == 1


def test_sources_for_the_sanitizer_can_be_made() -> None:
    """Each text that is replaced for racecheck stands in its source, once."""
    from scancheck.kernels.cuda import compile

    usual = compile.SOURCES
    edits = cuda_sanitizer.EVERY_LANE_ARRIVES, cuda_sanitizer.NOT_WAITING
    with cuda_sanitizer.edited_sources(*edits):
        for file in cuda_sanitizer.EVERY_LANE_ARRIVES:
            text = (compile.SOURCES / file).read_text()
            assert "Gate::open(gate, 32 * WARPS)" in text
            assert "lane == 0) Gate" not in text
        rows = (compile.SOURCES / "selective_scan_rows.cuh").read_text()
        assert "Gate::pass" not in rows
    assert usual == compile.SOURCES
    with (
        pytest.raises(SystemExit, match=r"gate\.cuh: expected once 'nowhere'"),
        cuda_sanitizer.edited_sources({"gate.cuh": (("nowhere", ""),)}),
    ):
        pass


def test_verify_lines_and_what_they_may_be() -> None:
    """Every kernel in each format; full where shapes choose, and that in time."""
    lines = list(cuda_verify.lines(""))
    assert len(set(lines)) == len(lines)
    profiles = {(name, profile) for name, _, profile in lines}
    assert (NAME, "full") in profiles
    assert ("cuda.selective_scan.auto.fast", "full") in profiles
    assert ("cuda.linear_scan.single_pass64.plain", "quick") in profiles
    assert ("cuda.linear_scan.single_pass.plain.state_bf16", "quick") in profiles
    row = dict.fromkeys(cuda_verify.FIELDS, "1") | {"kernel": NAME, "dtype": "fp32"}
    row |= {"profile": "full", "verdict": "PASS", "seconds": "19.9"}
    assert cuda_verify.as_it_must_be(row)
    for change in ({"seconds": "20.1"}, {"verdict": "FAIL"}, {"values": "0"}):
        assert not cuda_verify.as_it_must_be(row | change)
    assert cuda_verify.as_it_must_be(row | {"profile": "quick", "seconds": "60"})
    assert "1 commands, 1 PASS" in cuda_verify.page([row])


def test_labels_tell_cases_apart() -> None:
    """Each case of a kernel has its own words."""
    for name in (NAME, "cuda.selective_scan.auto.accurate"):
        labels = [case.label for case in cases_of(name)]
        assert len(set(labels)) == len(labels)
    assert Case(sizes=(1, 2, 3)).label == "1x2x3, usual, nothing optional, whole"
