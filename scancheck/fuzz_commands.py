"""The commands `scancheck fuzz` and `scancheck replay`."""

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scancheck.errors import CaseInvalid

if TYPE_CHECKING:
    from rich.console import Console

    from scancheck.gate import Result

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
DEFAULT_SECONDS = 300.0
TargetHelp = "A registered name, package.module:callable or path/file.py:callable."

# What verify and fuzz take alike.
TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help=TargetHelp)]
OpOption = Annotated[
    str | None,
    typer.Option("--op", help="What it computes; registered kernels know it."),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="D[,D]",
        help="Storage formats; default: all that the kernel declares, else fp32.",
    ),
]
ContractOption = Annotated[
    str | None,
    typer.Option(
        "--contract",
        metavar="K=V,...|FILE.toml",
        help="How the kernel rounds; `scancheck list contracts` shows the keys.",
    ),
]
GradientsOption = Annotated[
    bool, typer.Option("--gradients", help="Demand and judge gradients too.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda[:N]",
        help="Where it runs; default: cpu, or where a registered kernel runs alone.",
    ),
]
TracebackOption = Annotated[
    bool,
    typer.Option("--traceback", help="Show where an internal failure came from."),
]


def fuzz(
    target: TargetArgument,
    op: OpOption = None,
    dtype: DtypeOption = None,
    contract: ContractOption = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="5m", help="How long; default: 5m."),
    ] = None,
    cases: Annotated[
        int | None, typer.Option("--cases", metavar="N", help="How many cases.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="It draws the same cases of the same code.")
    ] = 0,
    gradients: GradientsOption = False,
    device: DeviceOption = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="quick|full",
            help="Longest sequences: 65536, or 262144 and larger tensors.",
        ),
    ] = "quick",
    case_time: Annotated[
        str,
        typer.Option(
            "--case-time",
            metavar="30s",
            help="After which a kernel counts as hung; more beyond 4096 tokens.",
        ),
    ] = "30s",
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Where findings are kept."),
    ] = Path("out/fuzz"),
    show_traceback: TracebackOption = False,
) -> int:
    """Draw cases until one fails, shrink it, and keep it as a file.

    The kernel runs in processes of its own. Exit codes as for verify; Ctrl-C ends the
    campaign with code 4 and keeps what was found.
    """
    seconds = None if time is None else duration("--time", time)
    if time is None and cases is None:
        seconds = DEFAULT_SECONDS

    from scancheck.gate.fuzz import RECORD
    from scancheck.gate.fuzz import fuzz as run
    from scancheck.report.fuzz_progress import fuzz_progress

    console = _console(stderr=True)
    console.print(f"seed {seed}; findings go to {output}", markup=False, soft_wrap=True)
    with fuzz_progress(console) as on_progress:
        result = run(
            target,
            op=op,
            dtypes=None if dtype is None else [d.strip() for d in dtype.split(",")],
            contract=contract,
            profile=profile,
            gradients=gradients,
            seed=seed,
            cases=cases,
            seconds=seconds,
            case_limit_s=duration("--case-time", case_time),
            device=device,
            output=output,
            on_progress=on_progress,
        )
    _tell(result)
    kept = [f for f in result.record.findings if f.file is not None]
    _line(f"{len(kept)} findings kept in {output}, the run in {output / RECORD}")
    for finding in kept:
        _line(f"   {finding.replay}")
    return result.exit_code


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A finding of `scancheck fuzz`.")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="Another kernel, or the user's own, which no file may choose.",
        ),
    ] = None,
    case_time: Annotated[
        str,
        typer.Option(
            "--case-time",
            metavar="30s",
            help="After which a kernel counts as hung; more beyond 4096 tokens.",
        ),
    ] = "30s",
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="cpu|cuda[:N]",
            help="Where it runs; default: where it failed.",
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Keep the whole verdict there."),
    ] = None,
    show_traceback: TracebackOption = False,
) -> int:
    """Judge a stored finding again: exit code 1 while it fails, 0 once it passes."""
    from scancheck.gate.replay import replay as judge_again
    from scancheck.record import to_json, write_json
    from scancheck.report.failure import unwritable

    if json_path is not None and (problem := unwritable(json_path)):
        raise CaseInvalid(f"--json {json_path}: {problem}")
    limit = duration("--case-time", case_time)
    result = judge_again(file, target, case_limit_s=limit, device=device)
    if json_path is not None:
        write_json(to_json(result.record), json_path)
    _tell(result)
    return result.exit_code


def duration(option: str, text: str) -> float:
    """Seconds in `90`, `30s`, `5m` or `1h`; raises CaseInvalid for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match[1]) > 0.0:
        raise CaseInvalid(f"{option}: expected a time as 30s, 5m or 1h; got {text!r}")
    return float(match[1]) * SECONDS[match[2]]


def _tell(result: "Result") -> None:
    """The record on one screen; a reader that leaves early changes no verdict."""
    from scancheck.report.text import render

    with suppress(BrokenPipeError, SystemExit):
        render(result.record, _console())


def _line(text: str) -> None:
    with suppress(BrokenPipeError, SystemExit):
        _console().print(text, markup=False, soft_wrap=True)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)
