"""A kernel's process seen from outside: a crash or a hang costs one trial.

The process is made again after each; what it needs is imported once, by the server
that all are forked from, where the platform has one.
"""

import multiprocessing
import re
import signal
import sysconfig
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from scancheck.campaign.trial import Failure, Judged, Loader, Trial, allowed_s
from scancheck.campaign.worker import STARTING_S, serve
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid, ScancheckError
from scancheck.runner.outcome import ProblemKind
from scancheck.verdict import Verdict

# Imported by the server that processes are forked from. The last one is what PyTorch
# imports at the first backward pass, a second each time.
PRELOADED = (
    "scancheck.campaign.worker",
    "scancheck.campaign.preload",
    "torch.fx.experimental.symbolic_shapes",
)
GRACE_S = 5.0  # after which a process that does not end itself is killed
POLL_S = 0.1
LOG_BYTES = 20_000  # of what a dead process left, its last ones
# The one function that calls kernels, as faulthandler writes its frame.
CALLING = re.compile(r'File "[^"]*runner[\\/]attempt\.py", line \d+ in attempt')
TIMEOUT = re.compile(r"^Timeout \(", re.MULTILINE)
FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (\S+)', re.MULTILINE)


class Stopped(Exception):
    """The campaign is over; the trial at hand is not judged."""


class KernelProcess:
    """One process at a time that judges trials of one kernel."""

    def __init__(
        self,
        load: Loader,
        contract: Contract,
        *,
        gradients: bool,
        limit_s: float,
        threads: int,
        stop: Event,
    ) -> None:
        self._arguments = (load, contract, gradients, limit_s)
        self._limit_s, self._threads, self._stop = limit_s, threads, stop
        self._folder = tempfile.TemporaryDirectory(prefix="scancheck-")
        self._log = Path(self._folder.name) / "log"
        self._context = _context()
        self._process: Any = None
        self._connection: Connection | None = None
        self._starting_s = 0.0

    def judge(self, trial: Trial) -> Judged:
        """The outcome of a trial; ERROR where the kernel ends or blocks its process.

        Raises CaseInvalid where the kernel cannot take the trial or cannot be loaded,
        RuntimeError where the harness failed, and Stopped when the campaign is over.
        """
        if self._stop.is_set():
            raise Stopped
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send(trial)
            answer = self._answer(allowed_s(self._limit_s, trial) + self._starting_s)
        except (EOFError, OSError):
            return self._ended(trial)
        except TimeoutError:
            self._kill()
            return self._ended(trial, hung=True)
        self._starting_s = 0.0
        if isinstance(answer, Judged):
            return answer
        if isinstance(answer, KeyboardInterrupt):
            return _error(trial, "raised", str(answer))
        raise answer

    def close(self) -> None:
        """Ends the process and removes its log."""
        self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        self._log.write_bytes(b"")
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=serve,
            args=(theirs, *self._arguments, self._log, self._threads),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        try:
            failed = self._answer(STARTING_S)
        except (EOFError, OSError, TimeoutError) as error:
            self._kill()
            text = _tail(self._log).strip().splitlines()
            told = f": {text[-1]}" if text else ""
            raise CaseInvalid(
                f"the kernel's process ended while the kernel was loaded{told}"
            ) from error
        if isinstance(failed, ScancheckError):
            self._kill()
            raise failed
        self._starting_s = STARTING_S

    def _answer(self, seconds: float) -> Any:
        assert self._connection is not None
        deadline = monotonic() + seconds + GRACE_S
        while not self._connection.poll(POLL_S):
            if self._stop.is_set():
                self._kill()
                raise Stopped
            if monotonic() > deadline:
                raise TimeoutError
        return self._connection.recv()

    def _ended(self, trial: Trial, *, hung: bool = False) -> Judged:
        """What a trial whose process is gone comes to."""
        process = self._process
        process.join(GRACE_S)
        code = process.exitcode
        self._kill()
        log = _tail(self._log)
        limit = f"{allowed_s(self._limit_s, trial):g} s"
        timed_out = hung or TIMEOUT.search(log) is not None
        place = _place(log)
        stack = "File" in log
        if stack and CALLING.search(log) is None:
            if timed_out:
                reason = f"judging it took more than {limit}"
                return Judged(trial=trial, verdict=Verdict.UNCERTIFIED, reason=reason)
            raise RuntimeError(f"the harness crashed, {_exit(code)}{place}")
        if timed_out:
            message = f"did not return within {limit}{place}"
            return _error(trial, "hung", message)
        return _error(trial, "crashed", f"ended its process, {_exit(code)}{place}")

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            with suppress(ValueError):
                self._process.kill()
                self._process.join()
            self._process = None


def _context() -> Any:
    """Forked from a server that has everything imported, else made from nothing."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _error(trial: Trial, kind: ProblemKind, message: str) -> Judged:
    place = re.search(r"\([^()]*:\d+, in [^()]*\)$", message)
    key = f"call {kind} {place.group() if place else ''}".rstrip()
    return Judged(
        trial=trial,
        verdict=Verdict.ERROR,
        failure=Failure(
            verdict=Verdict.ERROR,
            cause="call",
            key=key,
            reason=f"the kernel {message}",
            ended="" if kind == "raised" else kind,
        ),
    )


def _exit(code: int | None) -> str:
    if code is None:
        return "killed"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def _place(log: str) -> str:
    """The frame of the kernel that was running, from faulthandler's stack."""
    called = CALLING.search(log)
    if called is None:
        return ""
    _, _, thread = log[: called.start()].rpartition("hread 0x")
    frames = FRAME.findall(thread)
    if not frames:
        return ""
    # The innermost frame of the user's code, else the kernel's own call.
    file, line, name = next((f for f in frames if _is_own(f[0])), frames[-1])
    return f" ({Path(file).name}:{line}, in {name})"


def _is_own(file: str) -> bool:
    """Whether the file is neither installed nor Python's."""
    libraries = {sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib")}
    return not any(file.startswith(library) for library in libraries)


def _tail(log: Path) -> str:
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - LOG_BYTES))
        return stream.read().decode("utf-8", "replace")
    return ""
