"""The pytest plugin: a `verify` fixture and a `scan` marker with the gate's verdicts.

pytest loads this module in every session of an environment, so it loads nothing else
until a kernel is judged. No option loosens a budget.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scancheck import pytest_findings

if TYPE_CHECKING:
    from scancheck.gate import Result

PROPERTY = "scancheck"  # name of the user property, and in JUnit files
PROFILES = ("quick", "full")
FIXTURES = ("verify", "scancheck_verify")
# What the marker may give: the arguments of `scancheck.verify`, and the kernel.
MARKER_KEYS = (
    "kernel",
    "op",
    "dtypes",
    "contract",
    "gradients",
    "require",
    "profile",
    "seed",
    "device",
)
# As --scancheck-require: a kernel that cannot run here fails instead of being skipped.
AVAILABLE = "available"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The command-line options and the ini keys."""
    group = parser.getgroup("scancheck", "verdicts on scan kernels")
    group.addoption(
        "--scancheck-profile",
        choices=PROFILES,
        default=None,
        help="how much to try (ini: scancheck_profile; default: quick)",
    )
    group.addoption(
        "--scancheck-seed",
        type=int,
        default=None,
        metavar="N",
        help="seed of the cases (ini: scancheck_seed; default: 0)",
    )
    group.addoption(
        "--scancheck-device",
        default=None,
        metavar="cpu|cuda[:N]",
        help="where kernels run (ini: scancheck_device; default: the kernel's own)",
    )
    group.addoption(
        "--scancheck-require",
        action="append",
        default=None,
        metavar="NAME",
        help="an input or output that must be judged where an op has it, `empty`, "
        "`range` (RANGE is red), or `available`: a kernel that cannot run here fails "
        "instead of being skipped; repeatable (ini: scancheck_require)",
    )
    group.addoption(
        "--scancheck-rows",
        default=None,
        metavar="PATH",
        help="write every result there as a line of JSON (ini: scancheck_rows)",
    )
    group.addoption(
        "--scancheck-xfails",
        default=None,
        metavar="FILE",
        help="test ids or patterns, one a line, of scan tests that are expected to "
        "fail (ini: scancheck_xfails)",
    )
    group.addoption(
        "--scancheck-kernel",
        default=None,
        metavar="GLOB",
        help="only scan tests whose kernel has such a name",
    )
    group.addoption(
        "--scancheck-case", default=None, metavar="ID", help="replay one case"
    )
    parser.addini("scancheck_profile", "how much to try", "string", "quick")
    parser.addini("scancheck_seed", "seed of the cases", "int", 0)
    parser.addini("scancheck_device", "where kernels run", "string", "")
    parser.addini("scancheck_require", "what must be judged", "args", [])
    parser.addini("scancheck_rows", "file of results, JSON lines", "string", "")
    parser.addini("scancheck_xfails", "file of expected failures", "string", "")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, checks the settings, and starts the collector of rows."""
    config.addinivalue_line(
        "markers",
        f"scan({', '.join(MARKER_KEYS)}): arguments of `verify` in this test",
    )
    config.addinivalue_line(
        "markers", f"{pytest_findings.MARKER}({pytest_findings.HELP}"
    )
    config.pluginmanager.register(pytest_findings, "scancheck-findings")
    profile = _setting(config, "profile")
    if profile not in PROFILES:
        raise pytest.UsageError(
            f"scancheck_profile: expected quick or full; got {profile!r}"
        )
    _check_required(_setting(config, "require"))
    if not hasattr(config, "workerinput"):  # workers send their rows to the controller
        rows = _Rows(_path(config, "rows"), config.getoption("scancheck_case"))
        config.pluginmanager.register(rows, "scancheck-rows")


def pytest_report_header(config: pytest.Config) -> str:
    """The settings that are in force."""
    told = {
        "profile": _setting(config, "profile"),
        "seed": _setting(config, "seed"),
        "device": _setting(config, "device"),
        "require": ",".join(_setting(config, "require")),
        "rows": _setting(config, "rows"),
        "xfails": _setting(config, "xfails"),
        "kernel": config.getoption("scancheck_kernel"),
        "case": config.getoption("scancheck_case"),
    }
    listed = ", ".join(f"{k}={v}" for k, v in told.items() if v not in (None, ""))
    return f"scancheck: {listed}"


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselects the scan tests of other kernels, and marks the expected failures."""
    pattern = config.getoption("scancheck_kernel")
    if pattern is not None:
        other = [item for item in items if _is_other(item, pattern)]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if item not in other]
    patterns = tuple(_xfail_patterns(config))
    for item in items:
        if _is_scan(item) and any(_fits(item.nodeid, p) for p in patterns):
            reason = "listed in the scancheck xfails file"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture
def verify(request: pytest.FixtureRequest) -> "Callable[..., Result]":
    """Judges a kernel as `scancheck.verify` does; fails the test unless it passes.

    Takes the arguments of `scancheck.verify`; those that are left out come from the
    test's `scan` marker. Command line, marker and ini keys decide on profile, seed and
    device in this order. Gives the result back, raises AssertionError when it is no
    pass, and skips the test when the kernel cannot run here.
    """
    return _judge_for(request)


@pytest.fixture
def scancheck_verify(request: pytest.FixtureRequest) -> "Callable[..., Result]":
    """The same as `verify`, for suites in which that name is taken."""
    return _judge_for(request)


def _judge_for(request: pytest.FixtureRequest) -> "Callable[..., Result]":
    """The function behind the fixtures, for one test."""

    def judge(target: Any = None, **given: Any) -> "Result":
        __tracebackhide__ = True
        arguments = {**_marker_arguments(request.node), **given}
        kernel = arguments.pop("kernel", None) if target is None else target
        arguments.pop("kernel", None)
        if kernel is None:
            pytest.fail(
                "verify: expected a kernel, as in verify(my_scan) or "
                "@pytest.mark.scan(kernel=my_scan); got none",
                pytrace=False,
            )
        return _judged(request, kernel, arguments)

    return judge


def _judged(
    request: pytest.FixtureRequest, kernel: Any, arguments: dict[str, Any]
) -> "Result":
    """The passed result; every other outcome ends the test in its own way."""
    __tracebackhide__ = True
    from scancheck.errors import CaseInvalid, DeviceLost, KernelUnavailable
    from scancheck.gate import verify
    from scancheck.record import to_json

    config = request.config
    wanted = config.getoption("scancheck_kernel")
    if wanted is not None and not _named_so(kernel, wanted):
        pytest.skip(f"--scancheck-kernel {wanted}")
    case = config.getoption("scancheck_case")
    arguments |= {
        "profile": _setting(config, "profile", arguments.get("profile")),
        "seed": _setting(config, "seed", arguments.get("seed")),
        "device": _device(config, arguments.get("device")),
    }
    if case is not None:
        arguments["case_id"] = case
    result, refusal = None, None
    try:
        arguments["require"] = _required(config, kernel, arguments)
        result = verify(kernel, **arguments)
    except (CaseInvalid, DeviceLost, KernelUnavailable) as error:
        refusal = error
    if result is None:  # outside the handler, so that no traceback is chained
        text = str(refusal)
        available = AVAILABLE in _setting(config, "require")
        if isinstance(refusal, KernelUnavailable) and not available:
            pytest.skip(text)
        if case is not None and text.startswith("--case "):
            pytest.skip(f"--scancheck-case {case} is no case of this test")
        pytest.fail(text, pytrace=False)
    row = json.dumps(to_json(result.record), allow_nan=False)
    request.node.user_properties.append((PROPERTY, row))
    if result.verdict == "INTERRUPTED":
        raise KeyboardInterrupt
    if not result:
        from scancheck.report.text import brief

        raise AssertionError(brief(result.record))
    return result


def _marker_arguments(node: pytest.Item) -> dict[str, Any]:
    """What the test's `scan` markers say, the closest one first."""
    found: dict[str, Any] = {}
    for marker in node.iter_markers("scan"):
        unknown = sorted(set(marker.kwargs) - set(MARKER_KEYS))
        if unknown or marker.args:
            got = unknown[0] if unknown else repr(marker.args[0])
            pytest.fail(
                "scan marker: expected keyword arguments named "
                f"{', '.join(MARKER_KEYS)}; got {got}",
                pytrace=False,
            )
        found = {**marker.kwargs, **found}
    return found


def _setting(config: pytest.Config, name: str, given: Any = None) -> Any:
    """The effective value: command line, what the test gives, ini key, default."""
    option = config.getoption(f"scancheck_{name}")
    if option is not None:
        return option
    return config.getini(f"scancheck_{name}") if given is None else given


def _device(config: pytest.Config, given: str | None) -> str | None:
    """The effective device: `cuda` is one after the other for workers of xdist."""
    device = _setting(config, "device", given) or None
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if device != "cuda" or not worker.removeprefix("gw").isdecimal():
        return device
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{int(worker.removeprefix('gw')) % count}" if count else device


def _required(
    config: pytest.Config, kernel: Any, arguments: dict[str, Any]
) -> tuple[str, ...]:
    """The test's own requirements, and those of the session that the op has."""
    own = tuple(arguments.get("require") or ())
    session = _setting(config, "require")
    if not session:
        return own
    from scancheck.ops import op_named
    from scancheck.registry import resolve_target

    op = op_named(resolve_target(kernel, arguments.get("op"))[0].op)
    known = {s.name for s in op.inputs + op.outputs} | {*op.switches, "empty", "range"}
    return own + tuple(name for name in session if name in known)


def _check_required(names: Iterable[str]) -> None:
    """Raises UsageError for a session's requirement that no op knows."""
    if not (asked := set(names) - {AVAILABLE, "empty", "range"}):
        return
    from scancheck.ops import OPS

    known = {s.name for op in OPS.values() for s in op.inputs + op.outputs}
    known |= {switch for op in OPS.values() for switch in op.switches}
    if unknown := sorted(asked - known):
        raise pytest.UsageError(
            f"--scancheck-require: expected available, empty, range or one of "
            f"{', '.join(sorted(known))}; got {unknown[0]}"
        )


def _path(config: pytest.Config, name: str) -> Path | None:
    """The file of a setting: relative to the current folder, or to the ini file's."""
    if option := config.getoption(f"scancheck_{name}"):
        return config.invocation_params.dir / str(option)
    ini = config.getini(f"scancheck_{name}")
    return config.rootpath / str(ini) if ini else None


def _xfail_patterns(config: pytest.Config) -> Iterator[str]:
    path = _path(config, "xfails")
    if path is None:
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise pytest.UsageError(f"scancheck xfails: {error}") from error
    yield from (p for line in lines if (p := line.partition("#")[0].strip()))


def _fits(nodeid: str, pattern: str) -> bool:
    """Whether it is that id, or fits as a pattern; ids hold brackets themselves."""
    return nodeid == pattern or fnmatchcase(nodeid, pattern)


def _is_scan(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("scan") is not None or any(
        name in fixtures for name in FIXTURES
    )


def _is_other(item: pytest.Item, pattern: str) -> bool:
    """Whether it is a scan test of a kernel that is known to have another name."""
    if not _is_scan(item):
        return False
    callspec = getattr(item, "callspec", None)
    kernels = [m.kwargs.get("kernel") for m in item.iter_markers("scan")]
    kernels.append(callspec.params.get("kernel") if callspec is not None else None)
    known = [kernel for kernel in kernels if kernel is not None]
    return bool(known) and not any(_named_so(k, pattern) for k in known)


def _named_so(kernel: Any, pattern: str) -> bool:
    """Whether the target fits the pattern, whole or by the part after its colon."""
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", None)
    if name is None:
        name = f"{kernel.__module__}:{getattr(kernel, '__qualname__', '')}"
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(":")[2], pattern)


class _Rows:
    """Gathers the results of all workers, and writes and sums them up."""

    def __init__(self, path: Path | None, case: str | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.path, self.case = path, case
        if path is not None:
            try:
                path.write_text("", encoding="utf-8")
            except OSError as error:
                raise pytest.UsageError(f"scancheck rows: {error}") from error

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the rows out of a test's last report, which holds them all."""
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                row = {"test": report.nodeid, **json.loads(str(value))}
                self.rows.append(row)
                if self.path is not None:
                    with self.path.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A replay that judged nothing is no success."""
        if self.case is not None and not self.rows and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """The worst ratios and all verdicts that are no pass."""
        if self.case is not None and not self.rows:
            terminalreporter.section("scancheck")
            terminalreporter.line(f"no test has the case {self.case}")
        if not self.rows:
            return
        from scancheck.report.run_summary import summary

        terminalreporter.section("scancheck")
        for line in summary(self.rows):
            terminalreporter.line(line)
