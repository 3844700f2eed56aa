"""The process in which a kernel runs: it judges one trial after the other.

A crash ends this process and a hang is ended by faulthandler, both with the stack in
the log, from which the campaign reads whether the kernel was running.
"""

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from scancheck.campaign.judging import Judge
from scancheck.campaign.trial import Loader, allowed_s
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid, ScancheckError

# Compiled code is loaded or made when it is first needed.
STARTING_S = 120.0


def serve(
    connection: Connection,
    load: Loader,
    contract: Contract,
    gradients: bool,
    limit_s: float,
    log: Path,
    threads: int,
) -> None:
    """Answers each Trial with its Judged, or with the exception that prevented it.

    Ends when the other side is closed. What the kernel prints goes to the log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign decides
    handle = os.open(log, os.O_RDWR | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(handle, standard)
    faulthandler.enable(handle)
    torch.set_num_threads(threads)
    try:
        judge = Judge(load(), contract, gradients=gradients)
    except ScancheckError as error:
        connection.send(error)
        return
    connection.send(None)  # ready
    starting = STARTING_S
    while True:
        try:
            trial = connection.recv()
        except EOFError:
            return
        os.ftruncate(handle, 0)
        allowed = allowed_s(limit_s, trial) + starting
        faulthandler.dump_traceback_later(allowed, exit=True, file=handle)
        try:
            answer: object = judge.judge(trial)
        except (Exception, KeyboardInterrupt) as error:
            answer = _told(error)
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        connection.send(answer)
        starting = 0.0


def _told(error: BaseException) -> BaseException:
    """The error without what may not travel between processes."""
    if isinstance(error, CaseInvalid):
        return CaseInvalid(str(error))
    if isinstance(error, KeyboardInterrupt):  # nobody else raises one here
        return KeyboardInterrupt("raised KeyboardInterrupt")
    return RuntimeError(f"{type(error).__name__}: {error}")
