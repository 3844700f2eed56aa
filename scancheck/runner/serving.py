"""The process in which a kernel runs: it answers one question after the other.

A crash ends this process and a hang is ended by faulthandler, both with the stack in
the log, from which the other side reads whether the kernel was running. It ends itself
once a fault has left its device unusable.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from scancheck.errors import CaseInvalid, ScancheckError
from scancheck.runner.device import is_lost

Answer = Callable[[Any], object]
# Picklable: called in the process, it gives what answers there, and the device's name.
Prepare = Callable[[], tuple[Answer, str]]


def serve(connection: Connection, prepare: Prepare, log: Path, threads: int) -> None:
    """Answers each question with what comes of it or the exception that prevented it.

    With each goes whether the process can be asked again. Ends when the other side is
    closed. What the kernel prints goes to the log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side decides
    handle = os.open(log, os.O_RDWR | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(handle, standard)
    faulthandler.enable(handle)
    torch.set_num_threads(threads)
    try:
        answer_to, device = prepare()
    except ScancheckError as error:
        connection.send(error)
        return
    connection.send(None)  # ready
    while True:
        try:
            question, allowed = connection.recv()
        except EOFError:
            return
        os.ftruncate(handle, 0)
        faulthandler.dump_traceback_later(allowed, exit=True, file=handle)
        try:
            answer = answer_to(question)
        except (Exception, KeyboardInterrupt) as error:
            answer = _told(error)
        usable = not is_lost(torch.device(device))
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        connection.send((answer, usable))
        if not usable:
            os._exit(0)  # the end of a lost device's library may be a crash


def _told(error: BaseException) -> BaseException:
    """The error without what may not travel between processes."""
    if isinstance(error, CaseInvalid):
        return CaseInvalid(str(error))
    if isinstance(error, KeyboardInterrupt):  # nobody else raises one here
        return KernelInterrupt("raised KeyboardInterrupt")
    return RuntimeError(f"{type(error).__name__}: {error}")


class KernelInterrupt(Exception):
    """A kernel raised KeyboardInterrupt, which is no Ctrl-C of the user's there."""
