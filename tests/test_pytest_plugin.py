"""The pytest plugin: the gate's verdicts in a suite, alone and under pytest-xdist.

Its plumbing is tried on a stand-in for the gate, whose kernels say what the run's
record holds; the last test runs the real one.
"""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scancheck.report.text import BRIEF

pytest_plugins = ["pytester"]

# pytester gives its sessions another home; what Numba has compiled stays in ours.
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")

STAND_IN = '''
"""A gate that gives the record that the kernel describes."""

import json
import sys
import types

from scancheck.errors import CaseInvalid, DeviceLost, KernelUnavailable
from scancheck.record import Finding, RunRecord

FINDING = dict(
    check="oracle", verdict="FAIL", tensor="h", ratio=31.2, rho=None,
    first_wrong_index=(0, 64, 3), place=None, cause="carry",
    reason="values are beyond the budget. Likely cause: the carry is wrong",
    advice="look at the carry", case={}, case_id="case-1", file=None,
    replay="scancheck verify k.py:f --case case-1",
)
RECORD = dict(
    verdict="PASS", exit_code=0, op="linear_scan", dtype="fp32", p=1e-6,
    contract="default", contract_declared=False, gradients=False, counts={"PASS": 3},
    vacuous=0, elements=100, worst_ratio={"h": 0.5}, worst_rho={}, seen=(), unseen=(),
    not_judged=(), environment={}, duration_s=0.1, replay="scancheck verify k.py:f",
)


class Result:
    def __init__(self, record):
        self.record, self.verdict = record, record.verdict

    def __bool__(self):
        return self.record.exit_code == 0


def verify(target, **arguments):
    with open("calls.jsonl", "a") as stream:
        stream.write(json.dumps(arguments) + "\\n")
    changes = dict(target())
    if "unavailable" in changes:
        raise KernelUnavailable(changes["unavailable"])
    if "lost" in changes:
        raise DeviceLost(changes["lost"])
    if "invalid" in changes:
        raise CaseInvalid(changes["invalid"])
    if arguments.get("case_id", "case-1") != "case-1":
        raise CaseInvalid("--case case-2: no such case in this run")
    findings = (Finding(**FINDING),) if changes.get("exit_code") == 1 else ()
    facts = dict(profile=arguments["profile"], seed=arguments["seed"])
    facts |= dict(target=target.__name__, findings=findings)
    return Result(RunRecord(**(RECORD | facts | changes)))


gate = types.ModuleType("scancheck.gate")
gate.verify = verify
sys.modules["scancheck.gate"] = gate
'''

SUITE = """
import pytest

def good():
    return {"worst_ratio": {"h": 0.25, "final_state": 0.75}}

def bad():
    return {"verdict": "FAIL", "exit_code": 1, "worst_ratio": {"h": 31.2, "da": None}}

def unseen():
    return {"verdict": "BLIND", "exit_code": 3, "unseen": ["input a", "last token"]}

def test_good(verify):
    assert verify(good, op="linear_scan").verdict == "PASS"

@pytest.mark.scan(kernel=bad, op="linear_scan")
def test_bad(verify):
    verify()

def test_unseen(scancheck_verify):
    scancheck_verify(unseen, op="linear_scan")

def test_of_something_else():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the stand-in, and tests of a kernel of each kind."""
    pytester.makeconftest(STAND_IN)
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """One pytest session in a process of its own, without plugins slow to load."""
    without = [
        f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "jaxtyping")
    ]
    return pytester.runpytest_subprocess(*without, *arguments)


def calls(pytester: pytest.Pytester) -> list[dict[str, object]]:
    """The arguments of every call of the stand-in."""
    return [json.loads(line) for line in read(pytester, "calls.jsonl").splitlines()]


def read(pytester: pytest.Pytester, name: str) -> str:
    """A file of the session's folder."""
    return Path(pytester.path, name).read_text()


def summary_of(result: pytest.RunResult) -> list[str]:
    """The lines of the plugin's section."""
    text = result.stdout.str()
    section = re.search(r"^=+ scancheck =+\n(.*?)^=+ ", text, re.M | re.S)
    assert section is not None, text
    return section.group(1).splitlines()


ALONE_AND_SPREAD = pytest.mark.parametrize("spread", [(), ("-n", "2")])


@ALONE_AND_SPREAD
def test_verdicts_and_summary(suite: pytest.Pytester, spread: tuple[str, ...]) -> None:
    """PASS passes, all else fails, and the summary is the same with xdist."""
    result = run(suite, *spread)
    result.assert_outcomes(passed=2, failed=2)
    assert summary_of(result) == [
        "worst error / budget in 3 runs:",
        "  inf       da            bad fp32  test_suite.py::test_bad",
        "  31.2      h             bad fp32  test_suite.py::test_bad",
        "  0.75      final_state   good fp32  test_suite.py::test_good",
        "  0.5       h             unseen fp32  test_suite.py::test_unseen",
        "  0.25      h             good fp32  test_suite.py::test_good",
        "FAIL bad fp32  test_suite.py::test_bad",
        "  h: values are beyond the budget. Likely cause: the carry is wrong; "
        "scancheck verify k.py:f --case case-1",
        "BLIND unseen fp32  test_suite.py::test_unseen",
        "  not seen: input a, last token",
    ]


def test_message_is_short_and_without_frames_of_the_plugin(
    suite: pytest.Pytester,
) -> None:
    """A failing test shows the user's line and at most twelve lines of text."""
    result = run(suite, "-k", "test_bad")
    lines = [line for line in result.outlines if line.startswith("E ")]
    assert 3 < len(lines) <= BRIEF
    assert "AssertionError: FAIL  bad" in lines[0]
    assert lines[-1].endswith("replay: scancheck verify k.py:f --case case-1")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


@ALONE_AND_SPREAD
def test_rows_and_junit_hold_every_result(
    suite: pytest.Pytester, spread: tuple[str, ...]
) -> None:
    """Each result is a line of the rows file, and a property in the JUnit file."""
    run(suite, *spread, "--scancheck-rows", "rows.jsonl", "--junitxml", "junit.xml")
    rows = [json.loads(line) for line in read(suite, "rows.jsonl").splitlines()]
    assert {(row["test"], row["verdict"]) for row in rows} == {
        ("test_suite.py::test_good", "PASS"),
        ("test_suite.py::test_bad", "FAIL"),
        ("test_suite.py::test_unseen", "BLIND"),
    }
    tree = ElementTree.fromstring(read(suite, "junit.xml"))
    found = {
        str(case.get("name")): json.loads(str(entry.get("value")))["verdict"]
        for case in tree.iter("testcase")
        for entry in case.iter("property")
        if entry.get("name") == "scancheck"
    }
    assert found == {"test_good": "PASS", "test_bad": "FAIL", "test_unseen": "BLIND"}


@pytest.mark.parametrize(
    ("options", "marked", "ini", "profile", "seed"),
    [
        pytest.param((), "", "", "quick", 0, id="default"),
        pytest.param(
            (),
            "",
            'scancheck_profile = "full"\nscancheck_seed = 1',
            "full",
            1,
            id="ini",
        ),
        pytest.param(
            (), "profile='quick', seed=2", "scancheck_seed = 1", "quick", 2, id="marker"
        ),
        pytest.param(
            ("--scancheck-profile=full", "--scancheck-seed=0"),
            "profile='quick', seed=2",
            "scancheck_seed = 1",
            "full",
            0,
            id="command-line",
        ),
    ],
)
def test_order_of_settings(
    suite: pytest.Pytester,
    options: tuple[str, ...],
    marked: str,
    ini: str,
    profile: str,
    seed: int,
) -> None:
    """The command line comes first, then the marker, then the ini keys."""
    suite.makepyprojecttoml(f"[tool.pytest]\n{ini}\n")
    suite.makepyfile(
        test_suite=f"""
        import pytest

        @pytest.mark.scan(op="linear_scan", {marked})
        def test_it(verify):
            verify(lambda: {{}})
        """
    )
    result = run(suite, *options)
    result.assert_outcomes(passed=1)
    (call,) = calls(suite)
    assert (call["op"], call["profile"], call["seed"]) == ("linear_scan", profile, seed)
    if not marked:
        result.stdout.fnmatch_lines(f"scancheck: profile={profile}, seed={seed}*")


def test_requirements_reach_the_ops_that_have_them(suite: pytest.Pytester) -> None:
    """A session's demand is added where the op knows the name, and nowhere else."""
    suite.makepyfile(
        test_suite="""
        import pytest

        @pytest.mark.scan(op="linear_scan", require=["initial_state"])
        def test_linear(verify):
            verify(lambda: {})

        @pytest.mark.scan(op="selective_scan")
        def test_selective(verify):
            verify(lambda: {})
        """
    )
    run(suite, "--scancheck-require=final_state", "--scancheck-require=range")
    linear, selective = calls(suite)
    assert linear["require"] == ["initial_state", "final_state", "range"]
    assert selective["require"] == ["range"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--scancheck-require=h0",), "--scancheck-require: expected available*h0"),
        (("--scancheck-profile=fast",), "*--scancheck-profile*fast*"),
        (("--scancheck-xfails=none.txt",), "*scancheck xfails*none.txt*"),
        (("--scancheck-rows=nowhere/rows.jsonl",), "*scancheck rows*nowhere*"),
    ],
)
def test_wrong_option_is_a_usage_error(
    suite: pytest.Pytester, options: tuple[str, ...], told: str
) -> None:
    """A wrong value of an option ends the session at once, in one line."""
    result = run(suite, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"*{told}")


UNAVAILABLE = """
def test_it(verify):
    verify(lambda: {"unavailable": "no such device"}, op="linear_scan")
"""


def test_device_comes_from_the_option_the_marker_or_the_ini_file(
    suite: pytest.Pytester,
) -> None:
    """In this order, and the header tells it; without one the kernel's own is taken."""
    suite.makepyfile(
        test_suite="""
        import pytest

        def test_plain(verify):
            verify(lambda: {}, op="linear_scan")

        @pytest.mark.scan(op="linear_scan", device="cuda:1")
        def test_marked(verify):
            verify(lambda: {})
        """
    )
    run(suite)
    assert [call["device"] for call in calls(suite)] == [None, "cuda:1"]
    Path(suite.path, "calls.jsonl").unlink()
    suite.makeini("[pytest]\nscancheck_device = cuda")
    run(suite).stdout.fnmatch_lines("scancheck: *device=cuda*")
    assert [call["device"] for call in calls(suite)] == ["cuda", "cuda:1"]
    Path(suite.path, "calls.jsonl").unlink()
    run(suite, "--scancheck-device=cpu")
    assert [call["device"] for call in calls(suite)] == ["cpu", "cpu"]


def test_workers_share_the_devices(suite: pytest.Pytester) -> None:
    """Under pytest-xdist `cuda` is the next device for each worker."""
    cuda = "types.SimpleNamespace(device_count=lambda: 2)"
    torch = f"sys.modules['torch'] = types.SimpleNamespace(cuda={cuda})"
    suite.makeconftest(f"{STAND_IN}\n{torch}\n")
    suite.makepyfile(
        test_suite="""
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(verify, number):
            verify(lambda: {}, op="linear_scan")
        """
    )
    run(suite, "-n", "2", "--scancheck-device=cuda").assert_outcomes(passed=6)
    assert {call["device"] for call in calls(suite)} == {"cuda:0", "cuda:1"}


def test_lost_device_is_no_skip(suite: pytest.Pytester) -> None:
    """A device that an earlier kernel has made unusable fails the test."""
    suite.makepyfile(
        test_suite="""
        def test_it(verify):
            verify(lambda: {"lost": "cuda:0 is lost"}, op="linear_scan")
        """
    )
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*cuda:0 is lost*")


def test_kernel_that_cannot_run_here_is_skipped(suite: pytest.Pytester) -> None:
    """Without its device a kernel is skipped with the reason, and no row is made up."""
    suite.makepyfile(test_suite=UNAVAILABLE)
    result = run(suite, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines("SKIPPED*no such device")


def test_require_available_turns_the_skip_into_a_failure(
    suite: pytest.Pytester,
) -> None:
    """A job that must judge everything cannot go green by skipping."""
    suite.makepyfile(test_suite=UNAVAILABLE)
    result = run(suite, "--scancheck-require=available")
    result.assert_outcomes(failed=1)


def test_kernel_glob_deselects_other_scan_tests(suite: pytest.Pytester) -> None:
    """Scan tests of other kernels are left out, tests of other things are not."""
    result = run(suite, "--scancheck-kernel=go*", "-rs")
    result.assert_outcomes(passed=2, deselected=1, skipped=1)
    result.stdout.fnmatch_lines("SKIPPED*--scancheck-kernel go[*]")


def test_case_is_replayed_alone(suite: pytest.Pytester) -> None:
    """`--scancheck-case` asks every test for that case."""
    run(suite, "--scancheck-case=case-1").assert_outcomes(passed=2, failed=2)
    assert {call["case_id"] for call in calls(suite)} == {"case-1"}


def test_case_that_no_test_has_is_no_success(suite: pytest.Pytester) -> None:
    """A replay that judged nothing skips the tests and does not end in success."""
    result = run(suite, "--scancheck-case=case-2")
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no test has the case case-2" in summary_of(result)


def test_xfails_file(suite: pytest.Pytester) -> None:
    """Listed scan tests are expected to fail; one that passes is a failure."""
    Path(suite.path, "xfails.txt").write_text(
        "test_suite.py::test_bad  # known\n\n*::test_[gu]*\n*something_else\n"
    )
    result = run(suite, "--scancheck-xfails=xfails.txt")
    result.assert_outcomes(xfailed=2, failed=1, passed=1)
    result.stdout.fnmatch_lines("*XPASS(strict)*")


@pytest.mark.parametrize(
    ("test", "told"),
    [
        pytest.param(
            "@pytest.mark.scan(rtol=1)\ndef test_it(verify):\n    verify(print)",
            "scan marker: expected keyword arguments named kernel, *; got rtol",
            id="marker",
        ),
        pytest.param(
            "def test_it(verify):\n    verify()",
            "verify: expected a kernel, as in verify(my_scan) *",
            id="no-kernel",
        ),
        pytest.param(
            "def test_it(verify):\n    verify(lambda: {'invalid': 'op: no'})",
            "op: no",
            id="invalid",
        ),
    ],
)
def test_mistake_is_one_line(suite: pytest.Pytester, test: str, told: str) -> None:
    """A mistake in a test fails it with one line and no traceback."""
    suite.makepyfile(test_suite=f"import pytest\n\n{test}\n")
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(told)
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("During handling*")
    result.stdout.no_fnmatch_line("test_suite.py:[0-9]*")


def test_interrupt_stops_the_session(suite: pytest.Pytester) -> None:
    """Ctrl-C during a run ends pytest as anywhere else."""
    suite.makepyfile(
        test_suite="""
        def test_it(verify):
            verify(lambda: {"verdict": "INTERRUPTED", "exit_code": 4})

        def test_never():
            pass
        """
    )
    result = run(suite)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes()


def test_other_suites_do_not_notice_it(pytester: pytest.Pytester) -> None:
    """A session without scan tests has no section, and works without the plugin."""
    pytester.makepyfile("def test_it():\n    pass")
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= scancheck =*")
    without = run(pytester, "-p", "no:scancheck")
    without.assert_outcomes(passed=1)
    without.stdout.no_fnmatch_line("scancheck:*")
    refused = run(pytester, "-p", "no:scancheck", "--scancheck-seed=1")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


REAL = """
import torch

def scan(a, b):
    h, states = torch.zeros_like(b[:, 0]), []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)

def late(a, b):
    return scan(torch.roll(a, 1, dims=1), b)

def test_right(verify):
    verify(scan, op="linear_scan")

def test_wrong(verify):
    verify(late, op="linear_scan")
"""


def test_real_gate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right kernel passes, a wrong one fails, and its case alone fails again."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    pytester.makepyfile(test_real=REAL)
    result = run(pytester, "--scancheck-rows=rows.jsonl")
    result.assert_outcomes(passed=1, failed=1)
    rows = [json.loads(line) for line in read(pytester, "rows.jsonl").splitlines()]
    case = rows[1]["findings"][0]["case_id"]
    again = run(pytester, f"--scancheck-case={case}", "-k", "wrong")
    again.assert_outcomes(failed=1)
    assert any(case in line for line in summary_of(again))
