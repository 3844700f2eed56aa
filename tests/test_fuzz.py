"""`scancheck fuzz` and `replay`: found, shrunk, kept, and run again elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest

from scancheck.campaign import run
from scancheck.campaign.finding_file import read_finding, write_finding
from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.fuzz_commands import duration
from scancheck.gate.fuzz import fuzz
from scancheck.gate.replay import replay
from scancheck.recipes.catalog import RECIPES
from scancheck.runner.device import why_no_cuda

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
CARRY = "faulty.linear_scan.carry_uses_own_total"
CORRECT = "control.linear_scan.chunked_reference"
FORGETS = """
import torch

def scan(a, b):
    h, states = torch.zeros_like(b[:, 0]), []
    for t in range(a.shape[1]):
        h = a[:, t] * (h if t % 8 else 0 * h) + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)
"""


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh process of the command line in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "scancheck", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a campaign against a planted bug, and its run.json."""
    folder = tmp_path_factory.mktemp("campaign")
    result = fuzz(CARRY, dtypes=["fp32"], cases=40, output=folder)
    assert result.exit_code == 1
    return folder, json.loads((folder / "run.json").read_text())


def test_a_planted_bug_is_found_named_and_shrunk(
    campaign: tuple[Path, dict[str, Any]],
) -> None:
    """One finding has the bug's cause, one channel, and the fewest tokens there are."""
    folder, record = campaign
    assert record["verdict"] == "FAIL" and record["exit_code"] == 1
    assert sum(record["counts"].values()) == 40
    named = [f for f in record["findings"] if f["cause"] == "carry_total"]
    assert len(named) == 1
    stored = read_finding(Path(named[0]["file"]))
    sizes = dict(stored.case.sizes)
    assert (sizes["B"], sizes["D"], sizes["T"]) == (1, 1, 65)
    assert stored.finding.values and stored.finding.place is not None
    assert stored.campaign["seed"] == 0
    drawn = stored.campaign["drawn"]["recipe"]
    assert named[0]["profile"] == stored.finding.profile == RECIPES[drawn].profile
    assert {Path(f["file"]).parent for f in record["findings"]} == {folder}


def test_a_finding_is_replayed_in_a_fresh_process_elsewhere(
    campaign: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Exit code 1 while it fails, in the same way; 0 for a kernel that is right."""
    _, record = campaign
    file = record["findings"][0]["file"]
    again = command("replay", file, "--json", "replayed.json", cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    assert "fails in the same way" in again.stdout
    told = json.loads((tmp_path / "replayed.json").read_text())
    for name in ("cause", "profile"):
        assert told["findings"][0][name] == record["findings"][0][name]
    inputs = f", {told['findings'][0]['profile']} inputs"
    assert inputs in " ".join(again.stdout.split())
    right = command("replay", file, CORRECT, cwd=tmp_path)
    assert right.returncode == 0, right.stderr
    assert "no longer fails" in right.stdout


def test_a_finding_is_replayed_where_it_failed(
    campaign: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """On a device of that kind, whatever its number, or on the one that is named."""
    _, record = campaign
    stored = read_finding(Path(record["findings"][0]["file"]))
    assert stored.campaign["device"] == record["device"] == "cpu"
    file = tmp_path / "of_a_gpu.safetensors"
    write_finding(replaced(stored, campaign={"device": "cuda:7"}), file)
    if why_no_cuda() is not None:
        with pytest.raises(
            KernelUnavailable, match=r"on cuda: .*failed on cuda:7, and"
        ):
            replay(file)
    again = replay(file, device="cpu").record
    assert (again.verdict, again.device, again.device_asked) == ("FAIL", "cpu", True)
    assert again.replay.endswith(" --device cpu")


def test_the_same_seed_finds_the_same(
    campaign: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Counts, causes and file contents repeat, whatever the number of processes."""
    folder, record = campaign
    fuzz(CARRY, dtypes=["fp32"], cases=40, workers=1, output=tmp_path)
    again = json.loads((tmp_path / "run.json").read_text())
    assert again["counts"] == record["counts"]
    assert again["worst_ratio"] == record["worst_ratio"]
    causes = [
        [(f["cause"], f["case_id"]) for f in r["findings"]] for r in (again, record)
    ]
    assert sorted(causes[0]) == sorted(causes[1])
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in folder.iterdir()}


def test_a_correct_kernel_has_no_finding(tmp_path: Path) -> None:
    """Hundreds of trials, gradients too: nothing red, nothing unseen, no file."""
    result = fuzz(CORRECT, cases=200, gradients=True, seed=1, output=tmp_path)
    assert result.record.findings == ()
    assert result.exit_code == 0, result.explain()
    assert sum(result.record.counts.values()) == 200
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_kernel_of_the_users_own_is_named_again_for_a_replay(tmp_path: Path) -> None:
    """No file chooses what is run: the target is in the command that is printed."""
    source = tmp_path / "own.py"
    source.write_text(FORGETS)
    out = tmp_path / "out"
    arguments = ("--op", "linear_scan", "--cases", "20", "-o", str(out))
    found = command("fuzz", "own.py:scan", *arguments, cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "seed 0" in found.stderr and "cases/s" in found.stderr
    finding, *_ = json.loads((out / "run.json").read_text())["findings"]
    assert finding["cause"] == "carry_dropped"
    assert f"replay {finding['file']} own.py:scan" in found.stdout
    # With one edge, a carry taken too early explains it as well.
    assert dict(finding["case"]["sizes"])["T"] == 17
    refused = command("replay", finding["file"], cwd=tmp_path)
    assert refused.returncode == 2
    assert "does not choose what is run" in refused.stderr
    assert refused.stderr.count("\n") == 1
    again = command("replay", finding["file"], "own.py:scan", cwd=tmp_path)
    assert again.returncode == 1


def test_an_interrupt_keeps_what_was_found(tmp_path: Path) -> None:
    """Ctrl-C ends with code 4 and says so; findings and run.json are there."""
    said, complained = tmp_path / "stdout", tmp_path / "stderr"
    command = [sys.executable, "-m", "scancheck", "fuzz", CARRY]
    with said.open("w") as out, complained.open("w") as error:
        process = subprocess.Popen(
            [*command, "--time", "10m", "-o", "out"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=error,
            # What is started in the background may have been told to ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    deadline = time.monotonic() + 240.0
    while not list(tmp_path.glob("out/*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 4, complained.read_text()
    assert said.read_text().startswith("INTERRUPTED")
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["verdict"] == "INTERRUPTED"
    files = [finding["file"] for finding in record["findings"]]
    assert files and all(read_finding(tmp_path / file) for file in files)


def test_a_crash_is_a_finding_that_replays(tmp_path: Path) -> None:
    """ERROR with the place, shrunk, and ERROR again when it is replayed."""
    source = tmp_path / "own.py"
    source.write_text(
        "import ctypes\nimport torch\n\ndef scan(a, b):\n"
        "    if a.shape[1] > 20:\n        ctypes.string_at(0)\n    return b.clone()\n"
    )
    result = fuzz(
        f"{source}:scan", op="linear_scan", cases=6, output=tmp_path / "out", workers=1
    )
    crash = next(f for f in result.record.findings if f.verdict == "ERROR")
    assert "SIGSEGV" in crash.reason and "own.py:6" in crash.reason
    assert crash.file is not None
    assert crash.case["sizes"]["T"] == 21
    again = replay(crash.file, f"{source}:scan")
    assert again.verdict == "ERROR" and again.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no.such.kernel"], "is unknown"),
        ([CORRECT, "--time", "soon"], "--time: expected a time as 30s, 5m or 1h"),
        ([CORRECT, "--cases", "0"], "cases: expected more than 0"),
        ([CORRECT, "--profile", "huge"], "profile: expected quick or full"),
        ([CORRECT, "--seed", "-1"], "seed: expected 0 or more"),
        ([CORRECT, "--dtype", "int8"], "dtype: expected one of"),
        ([CORRECT, "-o", "file/out"], "-o file/out: cannot be made"),
    ],
)
def test_a_mistake_gives_one_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and one clear line, before any case is judged."""
    from scancheck.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["scancheck", "fuzz", *arguments])
    assert main() == 2
    error = capsys.readouterr().err
    assert told in error.splitlines()[-1]
    assert "Traceback" not in error


def test_durations_have_units() -> None:
    """Seconds, minutes and hours; anything else is refused."""
    assert [duration("t", x) for x in ("90", "1.5s", "5m", "2 h")] == [
        90,
        1.5,
        300,
        7200,
    ]
    for text in ("", "0", "-5s", "5d", "m", "1e9", "nan"):
        with pytest.raises(CaseInvalid, match="t: expected a time"):
            duration("t", text)


def test_a_folder_of_findings_is_one_line_of_a_suite(
    campaign: tuple[Path, dict[str, Any]], pytester: pytest.Pytester
) -> None:
    """Each file is a test: green for a kernel that is right, red for the one kept."""
    folder, record = campaign
    kept = len(record["findings"])
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.scan_findings({str(folder)!r}, kernel={CORRECT!r})
        def test_fixed(replay_finding):
            replay_finding()

        @pytest.mark.scan_findings({str(folder)!r})
        def test_kept(replay_finding):
            replay_finding()

        @pytest.mark.scan_findings("nowhere")
        def test_none(replay_finding):
            replay_finding()
        """
    )
    # A process of its own: pytester forgets what a session within this one imported,
    # and parts of Numba cannot be imported twice.
    run = pytester.runpytest_subprocess("-k", "fixed or kept", "-p", "no:cacheprovider")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*no finding (*.safetensors) in *nowhere*"])
    pytester.makepyfile(
        f"""
        import pytest
        from scancheck.registry import resolve_target

        KERNEL = resolve_target({CORRECT!r}, None)[0]

        @pytest.mark.scan_findings({str(folder)!r}, kernel=KERNEL)
        def test_fixed(replay_finding):
            replay_finding()

        @pytest.mark.scan_findings({str(folder)!r})
        def test_kept(replay_finding):
            replay_finding()
        """
    )
    run = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=kept, failed=kept)


def test_a_long_case_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still being judged long after the time is over is left."""
    monkeypatch.setattr(run, "LATE_S", 0.5)
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\n\ndef scan(a, b):\n    time.sleep(600)\n    return b\n"
    )
    started = time.monotonic()
    result = fuzz(
        f"{slow}:scan",
        op="linear_scan",
        seconds=1.0,
        case_limit_s=0.5,
        output=tmp_path / "findings",
    )
    assert time.monotonic() - started < 300.0
    assert (result.exit_code, sum(result.record.counts.values())) == (3, 0)
