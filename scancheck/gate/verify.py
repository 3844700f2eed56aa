"""`scancheck.verify`: one request in, one result out."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from scancheck.contract import Contract, parse_contract
from scancheck.errors import CaseInvalid, KernelUnavailable
from scancheck.formats import FORMATS
from scancheck.gate.loop import Judging, Progress
from scancheck.kernel import Kernel
from scancheck.record import RunRecord, to_json, write_json
from scancheck.registry import loader, resolve_target
from scancheck.runner.device import device_for
from scancheck.runner.execute import check_not_lost
from scancheck.runner.own_process import in_own_process
from scancheck.runner.process import CASE_LIMIT_S


def verify(
    target: str | Kernel | Callable[..., Any],
    *,
    op: str | None = None,
    dtypes: Sequence[str] | None = None,
    contract: Contract | str | None = None,
    profile: str = "quick",
    gradients: bool = False,
    require: Iterable[str] = (),
    seed: int = 0,
    case_id: str | None = None,
    device: str | None = None,
    case_limit_s: float = CASE_LIMIT_S,
    json_path: str | Path | None = None,
    on_case: Progress | None = None,
) -> "Result":
    """Judges a kernel: a registered name, MODULE:NAME, FILE.py:NAME or the object.

    `dtypes` defaults to what the kernel declares; `require` names inputs or outputs
    that must be judged, "empty" (T = 0 and B = 0) or "range" (RANGE counts as red).
    `case_id` judges that case of the run alone. `device` is cpu, cuda or cuda:N, by
    default the kernel's first; on CUDA a kernel that is given by name runs in a process
    of its own, where a call that takes `case_limit_s` seconds, more beyond 4096 tokens,
    counts as hung. Raises CaseInvalid for a request that makes no sense,
    KernelUnavailable for a kernel, its gradients or a device that are not to be had
    here, and DeviceLost for a device that an earlier fault has left unusable.
    """
    if not case_limit_s > 0:
        raise CaseInvalid(f"case limit: expected more than 0; got {case_limit_s}")
    (kernel,) = resolve_target(target, op)
    used_device = device_for(kernel, device)
    if gradients:
        check_gradients(kernel)
    kernel = replace(kernel, devices=(used_device,))
    declared = contract is not None or kernel.contract is not None
    if isinstance(contract, str):
        contract = parse_contract(contract)
    used = contract or kernel.contract or Contract()
    names = tuple(dtypes) if dtypes else kernel.dtypes
    for name in names:
        if name not in FORMATS:
            raise CaseInvalid(
                f"dtype: expected one of {', '.join(FORMATS)}; got {name!r}"
            )
    with _where_it_runs(target, op, kernel, case_limit_s) as running:
        run = Judging(
            kernel=running,
            contract=used,
            declared=declared,
            profile=profile,
            gradients=gradients,
            require=frozenset(require),
            seed=seed,
            dtypes=names,
            case_limit_s=case_limit_s,
        )
        record = _judged(run, case_id, on_case)
    record = replace(record, device=used_device, device_asked=device is not None)
    if json_path is not None:
        write_json(to_json(record), Path(json_path))
    return Result(record)


def check_gradients(kernel: Kernel) -> None:
    """Raises KernelUnavailable for a kernel that has no gradients here, by its word."""
    if kernel.no_gradients is not None:
        raise KernelUnavailable(
            f"{kernel.name} has no gradients here: {kernel.no_gradients}; without "
            "--gradients its outputs are judged"
        )


def _where_it_runs(
    target: str | Kernel | Callable[..., Any],
    op: str | None,
    kernel: Kernel,
    case_limit_s: float,
) -> AbstractContextManager[Kernel]:
    """The kernel as it is to be executed: on CUDA, if it can be, in its own process.

    A fault there loses the device for the process in which the kernel ran. An object of
    the caller's may depend on what the caller has set up, so it runs in this one.
    Raises DeviceLost where that has lost the device already.
    """
    (device,) = kernel.devices
    if device != "cpu" and isinstance(target, str):
        load = loader(target, op, device)
        return in_own_process(kernel, load, limit_s=case_limit_s)
    check_not_lost(device)
    return nullcontext(kernel)


def _judged(run: Judging, case_id: str | None, on_case: Progress | None) -> RunRecord:
    """The record of a run, also of one that is interrupted."""
    started = time.monotonic()
    interrupted = False
    try:
        run.judge(case_id, on_case)
    except KeyboardInterrupt:
        interrupted = True
    try:
        return run.record(time.monotonic() - started, interrupted=interrupted)
    except KeyboardInterrupt:  # during the diagnosis: what was judged is kept
        return run.record(time.monotonic() - started, interrupted=True)


class Result:
    """The outcome of `verify`; truthy when nothing is red and nothing unseen."""

    __slots__ = ("record",)

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def __bool__(self) -> bool:
        return self.record.exit_code == 0

    @property
    def verdict(self) -> str:
        """PASS, a red verdict, BLIND, UNCERTIFIED, NOT_JUDGED or INTERRUPTED."""
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        """The exit code of semantics.md."""
        return self.record.exit_code

    def explain(self) -> str:
        """One screen of text: verdict, findings with place, cause and advice."""
        from scancheck.report.text import explain

        return explain(self.record)
