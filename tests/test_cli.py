"""The command line: exit codes, one clear line for each mistake, and JSON always."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import scancheck.gate
from scancheck import __version__
from scancheck.adapters.catalog import adapters
from scancheck.case import Case
from scancheck.cli import main
from scancheck.kernel import Kernel
from scancheck.recipes.case_list import case_list
from scancheck.record import RunRecord
from scancheck.registry import kernels
from scancheck.report.case_progress import case_progress
from scancheck.report.failure import failure_json

KERNELS = """
import torch
from scancheck import Kernel

def scan(a, b, initial_state):
    h, states = initial_state, []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h

def forgetful(a, b, initial_state):
    half = a.shape[1] // 2
    first = scan(a[:, :half], b[:, :half], initial_state)[0] if half else b[:, :0]
    second, final = scan(a[:, half:], b[:, half:], torch.zeros_like(initial_state))
    return torch.cat([first, second], dim=1), final

def raises(a, b):
    raise ValueError("no kernel image")

def exits(a, b):
    raise SystemExit(0)

def wrong_shape(a, b):
    return b[..., None]

def wrong_dtype(a, b):
    return b.double()

def not_a_number(a, b):
    return b * float("nan")

def view(a, b):
    return b

def in_place(a, b):
    b += 1
    return b.clone()

def too_many(a, b):
    return b, b, b

def interrupted(a, b):
    raise KeyboardInterrupt

def wrong_arguments(x, y):
    return x

def positional(a, b, /):
    return b

elsewhere = Kernel(
    name="elsewhere", op="linear_scan", call=scan, unavailable="no such device"
)
number = 3
"""

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in an empty folder that holds `k.py`; gives its code."""
    (tmp_path / "k.py").write_text(KERNELS)
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["scancheck", *arguments])
        return main()

    return call


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate judges only the first cases of its plan."""

    def first(*arguments: Any, **named: Any) -> list[Case]:
        return case_list(*arguments, **named)[:2]

    monkeypatch.setattr("scancheck.gate.loop.case_list", first)


def kept(path: str = "out.json") -> dict[str, Any]:
    """The JSON that a run wrote."""
    data = json.loads(Path(path).read_text())
    assert isinstance(data, dict)
    return data


LINEAR = ("--op", "linear_scan")

MISTAKES = [
    pytest.param(("nope", *LINEAR), "target 'nope' is unknown", id="target"),
    pytest.param(("nope.py:f", *LINEAR), "nope.py does not exist", id="file"),
    pytest.param(("k.py", *LINEAR), "name the callable too", id="no-callable"),
    pytest.param(("k.py:scam", *LINEAR), "did you mean scan", id="attribute"),
    pytest.param(("k.py:number", *LINEAR), "expected a callable; got int", id="int"),
    pytest.param(("broken.py:f", *LINEAR), "no_such_package", id="import"),
    pytest.param(("no_such_module:f", *LINEAR), "no module named", id="module"),
    pytest.param(("k.py:scan",), "--op is needed", id="op-missing"),
    pytest.param(
        ("k.py:scan", "--op", "linear"), "op 'linear' is unknown", id="op-unknown"
    ),
    pytest.param(
        ("model.linear_scan.sequential.plain", "--op", "selective_scan"),
        "is a kernel of linear_scan; got --op selective_scan",
        id="op-of-another",
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--dtype", "fp8"), "expected one of fp8_e4m3", id="dtype"
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--dtype", "fp32,"), "between commas", id="dtype-empty"
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--contract", "computer=fp32"),
        "contract key 'computer' is unknown",
        id="contract-key",
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--contract", "comp=kahan,log=diff"),
        "contract contradicts itself: comp=kahan against log=diff",
        id="contract-contradiction",
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--contract", "none.toml"),
        "none.toml: cannot be read",
        id="contract-file",
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--profile", "fast"),
        "--profile: expected quick or full; got 'fast'",
        id="profile",
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--require", "h0"), "--require h0", id="require"
    ),
    pytest.param(
        ("k.py:scan", *LINEAR, "--case", "x"), "no such case in this run", id="case"
    ),
    pytest.param(("k.py:scan", *LINEAR, "--seed", "x"), "--seed", id="seed-text"),
    pytest.param(
        ("k.py:scan", *LINEAR, "--seed", "-1"), "expected 0 or more", id="seed-negative"
    ),
    pytest.param(("k.py:scan", "--rtol", "1"), "No such option: --rtol", id="option"),
    pytest.param((), "Missing argument 'TARGET'", id="nothing"),
    pytest.param(
        ("k.py:wrong_arguments", *LINEAR), "needs x, y", id="foreign-arguments"
    ),
    pytest.param(
        ("k.py:positional", *LINEAR), "by position only", id="positional-arguments"
    ),
    (
        ("k.py:scan", *LINEAR, "--device", "gpu"),
        "--device: expected cpu, cuda or cuda:N; got 'gpu'",
    ),
    (
        ("k.py:scan", *LINEAR, "--case-time", "soon"),
        "--case-time: expected a time as 30s, 5m or 1h; got 'soon'",
    ),
    (
        ("model.linear_scan.sequential.plain", "--device", "cuda"),
        "--device: model.linear_scan.sequential.plain runs on cpu; got cuda",
    ),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES)
def test_mistake_is_one_line_and_exit_2(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    """Each mistake of a user ends in one line, exit code 2, and the same in JSON."""
    assert run("verify", *arguments, "--json", "out.json") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("scancheck: ")
    assert told in captured.err
    data = kept()
    assert (data["verdict"], data["exit_code"]) == ("USAGE", 2)
    assert f"scancheck: {data['message']}\n" == captured.err


@pytest.mark.parametrize(
    ("path", "told"),
    [(".", "is a folder"), ("nowhere/out.json", "the folder nowhere does not exist")],
)
def test_json_that_cannot_be_written_is_told_before_the_run(
    run: Run, capsys: pytest.CaptureFixture[str], path: str, told: str
) -> None:
    """A path that cannot be written is a usage error, and nothing is judged first."""
    assert run("verify", "k.py:scan", *LINEAR, "--json", path) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("list", "kernel"), ("report", "--profile", "x")]
)
def test_mistake_of_other_commands(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """The other commands tell a wrong value in one line, with exit code 2."""
    assert run(*arguments) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [((), "none.parquet"), (("--seed", "1"), "none.parquet has them already")],
)
def test_report_of_stored_rows(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    """Rows that cannot be read, or a seed for rows that have one, are usage errors."""
    assert run("report", "none.parquet", *options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--inputs", "none.npz"), "none.npz: does not exist"),
        (("--inputs", "k.py"), "expected a .safetensors or .npz file; got '.py'"),
        (("--inputs", "x.npz", "--seed", "1"), "--inputs has its own tensors"),
        (("--op", "linear_scan"), "--op belongs to --inputs FILE"),
        (("r.parquet", "--fresh"), "r.parquet has them already"),
        (("r.parquet", "--inputs", "x.npz"), "r.parquet has them already"),
        (("-o", "k.py"), "-o k.py: cannot be made"),
        (("--device", "tpu"), "--device: expected cpu, cuda or cuda:N; got 'tpu'"),
        (("--device", "cuda", "--inputs", "x.npz"), "--inputs is for the CPU models"),
        (("r.parquet", "--device", "cuda"), "r.parquet has them already"),
    ],
)
def test_mistakes_of_report(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    """Options that do not fit, and files that are none, are told in one line."""
    assert run("report", *arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_kernel_that_cannot_run_here_is_exit_4(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel without its device is no verdict on it: the reason, and exit code 4."""
    assert run("verify", "k.py:elsewhere", "--json", "out.json") == 4
    assert capsys.readouterr().err == (
        "scancheck: k.py:elsewhere cannot run here: no such device\n"
    )
    assert kept()["verdict"] == "UNAVAILABLE"


def test_device_that_is_not_here_is_exit_4(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason in one line, for each command that runs a kernel."""
    monkeypatch.setattr(
        "scancheck.runner.device.why_no_cuda", lambda: "torch is built without CUDA"
    )
    for command in (
        ("verify", "k.py:scan", *LINEAR),
        ("fuzz", "k.py:scan", *LINEAR, "--cases", "1"),
    ):
        assert run(*command, "--device", "cuda:1") == 4
        assert capsys.readouterr().err.endswith(
            "scancheck: k.py:scan cannot run on cuda:1: torch is built without CUDA\n"
        )
    assert run("report", "--device", "cuda", "-o", "page") == 4
    assert capsys.readouterr().err == (
        "scancheck: report cannot run on cuda: torch is built without CUDA\n"
    )
    assert not Path("page").exists()


def test_report_without_cupy_is_exit_4(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that torch can use is not enough for the CUDA kernels."""
    (first,) = [k for k in kernels() if k.name == "cuda.linear_scan.single_pass.plain"]
    missing = replace(first, unavailable="CuPy is not installed")
    monkeypatch.setattr("scancheck.kernels.cuda.catalog.kernels", lambda: (missing,))
    monkeypatch.setattr("scancheck.runner.device.why_no_cuda", lambda: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert run("report", "--device", "cuda:0") == 4
    assert capsys.readouterr().err == (
        "scancheck: report cannot run on cuda:0: CuPy is not installed\n"
    )


@pytest.fixture
def broken_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that fails inside."""

    def judge(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("a bug of ours\nwith two lines")

    monkeypatch.setattr(scancheck.gate, "verify", judge)


@pytest.mark.usefixtures("broken_gate")
def test_internal_failure_is_exit_4_and_keeps_its_traceback(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure of scancheck itself is one line that says where the traceback is."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("verify", "k.py:scan", *LINEAR, "--json", "out.json") == 4
    told = capsys.readouterr().err
    assert told.startswith("scancheck: internal failure: RuntimeError: a bug of ours (")
    assert told.count("\n") == 1
    (file,) = tmp_path.glob("scancheck-traceback-*.txt")
    assert str(file) in told
    assert "with two lines" in file.read_text()
    assert kept()["verdict"] == "HARNESS"


@pytest.mark.usefixtures("broken_gate")
def test_traceback_is_shown_on_demand(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --traceback it is printed."""
    assert run("verify", "k.py:scan", *LINEAR, "--traceback") == 4
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_interrupt_outside_the_gate_is_exit_4(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while nothing is judged yet leaves its JSON too."""

    def judge(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scancheck.gate, "verify", judge)
    assert run("verify", "k.py:scan", *LINEAR, "--json", "out.json") == 4
    assert kept()["verdict"] == "INTERRUPTED"


@pytest.mark.usefixtures("few_cases")
def test_interrupt_of_a_run_keeps_what_was_judged(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C inside a kernel ends in exit code 4, the text, and a whole record."""
    assert run("verify", "k.py:interrupted", *LINEAR, "--json", "out.json") == 4
    assert capsys.readouterr().out.startswith("INTERRUPTED  k.py:interrupted")
    data = kept()
    assert (data["verdict"], data["exit_code"]) == ("INTERRUPTED", 4)
    assert data["target"] == "k.py:interrupted"


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(
    ("name", "verdict", "told"),
    [
        ("raises", "ERROR", "ValueError: no kernel image"),
        ("exits", "ERROR", "SystemExit"),
        ("wrong_shape", "ERROR", "shape"),
        ("wrong_dtype", "ERROR", "float64"),
        ("not_a_number", "NONFINITE", "NaN"),
        ("view", "FAIL", "b"),
        ("in_place", "FAIL", "b"),
    ],
)
def test_misbehaving_kernel_has_a_verdict(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    name: str,
    verdict: str,
    told: str,
) -> None:
    """Whatever a kernel does wrong is red, with exit code 1 and its reason."""
    assert run("verify", f"k.py:{name}", *LINEAR, "--json", "out.json") == 1
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{verdict}  k.py:{name}")
    assert captured.err == ""
    data = kept()
    assert (data["verdict"], data["exit_code"]) == (verdict, 1)
    assert any(told in finding["reason"] for finding in data["findings"])


@pytest.mark.usefixtures("few_cases")
def test_more_outputs_than_the_op_has_is_a_usage_error(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three outputs of an op with two cannot be named: the user has to say which."""
    assert run("verify", "k.py:too_many", *LINEAR) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_right_kernel_passes_and_wrong_one_is_replayed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A right kernel ends in 0; a wrong one in 1, and its replay line in 1 again."""
    assert run("verify", "k.py:scan", *LINEAR, "--json", "pass.json") == 0
    assert capsys.readouterr().out.startswith("PASS  k.py:scan  linear_scan fp32")
    assert kept("pass.json")["exit_code"] == 0

    assert run("verify", "k.py:forgetful", *LINEAR, "--json", "fail.json") == 1
    finding = kept("fail.json")["findings"][0]
    assert f"replay: {finding['replay']}" in capsys.readouterr().out
    program, *replay = finding["replay"].split()
    assert program == "scancheck"
    assert run(*replay, "--json", "again.json") == 1
    again = kept("again.json")
    assert sum(again["counts"].values()) == 1
    assert again["findings"][0]["values"] == finding["values"]


def test_text_that_nobody_reads_changes_no_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, few_cases: None
) -> None:
    """When the reader of a pipe leaves early, the exit code stays the verdict's."""

    def closed(*arguments: Any) -> None:
        raise SystemExit(1)  # what rich does with a broken pipe

    monkeypatch.setattr("scancheck.report.text.render", closed)
    code = run("verify", "k.py:scan", *LINEAR, "--json", "out.json")
    assert code == kept()["exit_code"] != 1


def test_version_and_module_entry() -> None:
    """`python -m scancheck --version` prints the version."""
    arguments = [sys.executable, "-m", "scancheck", "--version"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout == f"scancheck {__version__}\n"


def test_list_shows_every_registered_kernel(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each registered name is in the list, whole and once."""
    assert run("list") == 0
    words = capsys.readouterr().out.split()
    for kernel in kernels():
        assert words.count(kernel.name) == 1


def test_list_says_why_an_adapter_cannot_run(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that cannot run here is listed with `no` and the reason."""
    missing = Kernel(
        name="theirs.scan", op="linear_scan", call=print, unavailable="not installed"
    )
    monkeypatch.setattr("scancheck.adapters.catalog.adapters", lambda: (missing,))
    assert run("list", "adapters") == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row == [
        "theirs.scan",
        "linear_scan",
        "no",
        "no",
        "CPU",
        "fp32",
        "no",
        "not",
        "installed",
    ]


def test_list_says_which_version_an_adapter_is_for(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a kernel's packages that is installed, also where it cannot run."""
    theirs = Kernel(
        name="theirs.scan",
        op="linear_scan",
        call=print,
        packages=("not-there-at-all", "numpy"),
        unavailable="of a wrong version",
    )
    monkeypatch.setattr("scancheck.adapters.catalog.adapters", lambda: (theirs,))
    assert run("list", "adapters") == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[2:5] == ["numpy", version("numpy"), "no"]


def test_every_adapter_names_its_package() -> None:
    """The version in the listing is that of the distribution a kernel comes from."""
    named = {"torch.associative_scan.generic": "torch", "flash_scan": "triton"}
    for kernel in adapters():
        first = named.get(kernel.name, kernel.name.partition(".")[0])
        assert kernel.packages
        assert first.startswith(kernel.packages[0].partition("-")[0])


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("ops", "initial_state[B,D]"),
        ("recipes", "exact_dyadic"),
        ("formats", "bf16"),
        ("contracts", "chunk(C, inner, carry, order)"),
    ],
)
def test_list_of(
    run: Run, capsys: pytest.CaptureFixture[str], what: str, told: str
) -> None:
    """The lists show ops with axes, recipes, formats, and contract keys with values."""
    assert run("list", what) == 0
    assert told in capsys.readouterr().out


def test_env_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """`env --json` is one object of texts, which names version and torch."""
    assert run("env", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["scancheck"] == __version__
    assert "torch" in facts


def test_failure_has_the_keys_of_a_record() -> None:
    """Readers of the JSON find every key of a verdict in a failure too."""
    fields = {"schema_version", *RunRecord.__slots__}
    assert set(failure_json("USAGE", 2, "no")) == fields | {"message"}


def test_progress_shows_on_a_terminal_alone() -> None:
    """Without a terminal there is no callback; with one a bar counts the cases."""
    with case_progress(Console(file=io.StringIO())) as on_case:
        assert on_case is None
    stream = io.StringIO()
    with case_progress(Console(file=stream, force_terminal=True)) as on_case:
        assert on_case is not None
    assert "cases" in stream.getvalue()
