"""`scancheck.verify`: one request in, one result out."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scancheck.contract import Contract, parse_contract
from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS
from scancheck.gate.loop import Judging, Progress
from scancheck.kernel import Kernel
from scancheck.record import RunRecord, to_json, write_json
from scancheck.registry import resolve_target


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
    json_path: str | Path | None = None,
    on_case: Progress | None = None,
) -> "Result":
    """Judges a kernel: a registered name, MODULE:NAME, FILE.py:NAME or the object.

    `dtypes` defaults to what the kernel declares; `require` names inputs or outputs
    that must be judged, "empty" (T = 0 and B = 0) or "range" (RANGE counts as red).
    `case_id` judges that case of the run alone. Raises CaseInvalid for a request that
    makes no sense and KernelUnavailable for a kernel that cannot run here.
    """
    (kernel,) = resolve_target(target, op)
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
    run = Judging(
        kernel=kernel,
        contract=used,
        declared=declared,
        profile=profile,
        gradients=gradients,
        require=frozenset(require),
        seed=seed,
        dtypes=names,
    )
    started = time.monotonic()
    interrupted = False
    try:
        run.judge(case_id, on_case)
    except KeyboardInterrupt:
        interrupted = True
    try:
        record = run.record(time.monotonic() - started, interrupted=interrupted)
    except KeyboardInterrupt:  # during the diagnosis: what was judged is kept
        record = run.record(time.monotonic() - started, interrupted=True)
    if json_path is not None:
        write_json(to_json(record), Path(json_path))
    return Result(record)


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
