"""A process of a kernel's own, seen from outside: a crash or a hang costs one answer.

The process is made again after each; what it needs is imported once, by the server
that all are forked from, where the platform has one.
"""

import multiprocessing
import re
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from types import ModuleType
from typing import Any, Literal

from scancheck.errors import CaseInvalid, ScancheckError
from scancheck.runner.serving import Prepare, serve

# Compiled code is made when it is first needed, and loaded in each further process.
STARTING_S, RESTARTING_S = 120.0, 10.0
GRACE_S = 5.0  # after which a process that does not end itself is killed
POLL_S = 0.1
LOG_BYTES = 20_000  # of what a dead process left, its last ones
PLAIN_STEPS = 4096  # tokens; a kernel that loops over more may take longer
CASE_LIMIT_S = 30.0  # after which a kernel counts as hung, up to PLAIN_STEPS
# The one function that calls kernels, as faulthandler writes its frame.
CALLING = re.compile(r'File "[^"]*runner[\\/]attempt\.py", line \d+ in attempt')
TIMEOUT = re.compile(r"^Timeout \(", re.MULTILINE)
FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (\S+)', re.MULTILINE)
_HARNESS = str(Path(__file__).parent)
_STARTING = Lock()


class Stopped(Exception):
    """Whoever asked wants no answer any more."""


class Ended(Exception):
    """The process ended, or was ended, before it had answered."""

    def __init__(
        self, kind: Literal["crashed", "hung"], message: str, *, in_kernel: bool
    ) -> None:
        super().__init__(message)
        self.kind: Literal["crashed", "hung"] = kind
        self.in_kernel = in_kernel  # whether the kernel was running


class AnsweringProcess:
    """One process at a time that answers questions about one kernel."""

    def __init__(
        self,
        prepare: Prepare,
        *,
        preload: tuple[str, ...],
        threads: int = 1,
        stop: Event | None = None,
    ) -> None:
        self._prepare, self._threads = prepare, threads
        self._stop = stop or Event()
        self._folder = tempfile.TemporaryDirectory(prefix="scancheck-")
        self._log = Path(self._folder.name) / "log"
        self._context = process_context(preload)
        self._process: Any = None
        self._connection: Connection | None = None
        self._fresh_s = STARTING_S  # given to a process for its first answer
        self._starting_s = 0.0

    def ask(self, question: object, seconds: float) -> Any:
        """The answer, for which the process has so long.

        Raises Ended where there is none, CaseInvalid where the kernel cannot take what
        it is given or cannot be loaded, RuntimeError where the harness failed, and
        Stopped when that is asked for.
        """
        if self._stop.is_set():
            raise Stopped
        if self._connection is None:
            self._start()
        assert self._connection is not None
        allowed = seconds + self._starting_s
        self._starting_s = 0.0
        try:
            self._connection.send((question, allowed))
            answer, usable = self._answer(allowed)
        except (EOFError, OSError):
            raise self._ended(seconds) from None
        except TimeoutError:
            self._kill()
            raise self._ended(seconds, hung=True) from None
        except KeyboardInterrupt:
            self._kill()  # its answer would be taken for that of the next question
            raise
        self._fresh_s = RESTARTING_S
        if not usable:
            self._kill()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def start(self) -> None:
        """Starts the process where none runs; raises as `ask` does."""
        if self._connection is None:
            self._start()

    def close(self) -> None:
        """Ends the process and removes its log."""
        self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        self._log.write_bytes(b"")
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=serve,
            args=(theirs, self._prepare, self._log, self._threads),
            daemon=True,
        )
        with _needs_main(self._prepare) or main_module_left_out():
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
        self._starting_s = self._fresh_s

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

    def _ended(self, seconds: float, *, hung: bool = False) -> Ended:
        """What became of a process that is gone."""
        process = self._process
        if process is not None:
            process.join(GRACE_S)
        code = None if process is None else process.exitcode
        self._kill()
        log = _tail(self._log)
        place = _place(log)
        in_kernel = "File" not in log or CALLING.search(log) is not None
        if hung or TIMEOUT.search(log) is not None:
            self._fresh_s = RESTARTING_S
            message = f"did not return within {seconds:g} s{place}"
            return Ended("hung", message, in_kernel=in_kernel)
        message = f"ended its process, {_exit(code)}{place}"
        return Ended("crashed", message, in_kernel=in_kernel)

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            with suppress(ValueError):
                self._process.kill()
                self._process.join()
            self._process = None


def allowed_s(limit_s: float, steps: int) -> float:
    """Seconds for a case: the limit, and in proportion for more than PLAIN_STEPS."""
    return limit_s * max(1.0, steps / PLAIN_STEPS)


def process_context(preload: tuple[str, ...]) -> Any:
    """Forked from a server that has everything imported, else made from nothing."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def _needs_main(prepare: Prepare) -> nullcontext[None] | None:
    """A context that changes nothing, for what lives in the main module."""
    inside = b"__main__" in bytes(ForkingPickler.dumps(prepare))
    return nullcontext() if inside else None


@contextmanager
def main_module_left_out() -> Iterator[None]:
    """Within, a process that starts does not import the main module first.

    A script without `if __name__ == "__main__"` would run again there, and an
    interactive session has nothing to import.
    """
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


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
    frames = [f for f in FRAME.findall(thread) if not f[0].startswith(_HARNESS)]
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
