"""The command line: `scancheck verify`, `fuzz`, `replay`, `list`, `env`, `report`.

Exit codes are those of semantics.md. Whatever goes wrong outside the judged kernel ends
in one line on stderr, and in the JSON where one was asked for.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scancheck import __version__
from scancheck.errors import (
    CaseInvalid,
    KernelUnavailable,
    RecordUnreadable,
    ScancheckError,
)
from scancheck.fuzz_commands import (
    ContractOption,
    DeviceOption,
    DtypeOption,
    GradientsOption,
    OpOption,
    TargetArgument,
    TracebackOption,
    duration,
    fuzz,
    replay,
)

if TYPE_CHECKING:
    from rich.console import Console

EXIT_USAGE, EXIT_HARNESS = 2, 4  # verdict.py's, without loading NumPy for --help
LISTS = ("kernels", "ops", "recipes", "formats", "contracts", "adapters")
PROFILES = ("quick", "full")

# What Typer's own messages are, and the code it gives a Ctrl-C.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
TYPER_INTERRUPTED = 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Correctness and precision checks for scan and linear-recurrence kernels.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"scancheck {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="The version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def verify(
    target: TargetArgument,
    op: OpOption = None,
    dtype: DtypeOption = None,
    contract: ContractOption = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="quick|full", help="How much to try.")
    ] = "quick",
    gradients: GradientsOption = False,
    device: DeviceOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="NAME",
            help="An input or output that must be judged, `empty`, or `range`: "
            "RANGE is red. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the cases.")] = 0,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Keep the whole verdict there."),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option("--case", metavar="ID", help="Replay one case of the run."),
    ] = None,
    case_time: Annotated[
        str,
        typer.Option(
            "--case-time",
            metavar="30s",
            help="After which it counts as hung, on CUDA; more beyond 4096 tokens.",
        ),
    ] = "30s",
    show_traceback: TracebackOption = False,
) -> int:
    """Judge a kernel, without a tolerance.

    Exit code: 0 pass, 1 red, 2 usage, 3 nothing red but not everything seen or
    judged, 4 the harness or a dependency failed.
    """
    _check_writable(json_path)
    _check(profile, seed)
    dtypes = _listed("--dtype", dtype)
    limit = duration("--case-time", case_time)

    from scancheck.kernel_server import start_for_cuda

    start_for_cuda(target, device)
    from scancheck.gate import verify as judge
    from scancheck.record import to_json, write_json
    from scancheck.report.case_progress import case_progress
    from scancheck.report.text import render

    with case_progress(_console(stderr=True)) as on_case:
        result = judge(
            target,
            op=op,
            dtypes=dtypes,
            contract=contract,
            profile=profile,
            gradients=gradients,
            require=require or (),
            seed=seed,
            case_id=case,
            device=device,
            case_limit_s=limit,
            on_case=on_case,
        )
    # The text is shown even where the file cannot be written, and the other way round:
    # a reader that leaves early makes rich exit, and changes no verdict.
    try:
        if json_path is not None:
            write_json(to_json(result.record), json_path)
    finally:
        with suppress(BrokenPipeError, SystemExit):
            render(result.record, _console())
    return result.exit_code


@app.command("list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(metavar="|".join(LISTS)),
    ] = None,
) -> int:
    """Show what is there: kernels, ops, recipes, formats, contracts, adapters."""
    if what is not None and what not in LISTS:
        raise CaseInvalid(f"list: expected one of {', '.join(LISTS)}; got {what!r}")
    from scancheck.adapters.catalog import adapters
    from scancheck.registry import kernels
    from scancheck.report.listing import tables

    console = _console(piped_width=200)
    for table in tables((what,) if what else LISTS, kernels(), adapters()):
        console.print(table)
    return 0


@app.command()
def env(
    as_json: Annotated[
        bool, typer.Option("--json", help="As one JSON object.")
    ] = False,
) -> int:
    """Show what results are computed with: versions, devices, rounding switches."""
    import json

    from scancheck.environment import describe

    facts = describe(full=True)
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    return 0


@app.command()
def report(
    rows: Annotated[
        Path | None,
        typer.Argument(
            metavar="ROWS.parquet",
            help="Rows of an earlier run: renders their page again.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where the page goes.")
    ] = Path("out/report"),
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="quick|full", help="How much to sweep."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the inputs; default 0.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE",
            help="Sweep your own tensors: safetensors (scancheck.capture) or npz.",
        ),
    ] = None,
    op: Annotated[
        str | None,
        typer.Option("--op", help="What --inputs are of, where their names differ."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="cpu|cuda[:N]",
            help="cuda: sweep the CUDA kernels, beside their CPU models; default: cpu.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Measure again what DIR holds already of the same code."
        ),
    ] = False,
    show_traceback: TracebackOption = False,
) -> int:
    """Sweep the built-in kernels and write the precision report.

    Interrupted, the same command goes on where it stopped.
    """
    from scancheck.report.command import report as write_report
    from scancheck.report.command import rerender

    if rows is None:
        _check(profile or "quick", seed or 0)
        if op is not None and inputs is None:
            raise CaseInvalid("report: --op belongs to --inputs FILE")
        if seed is not None and inputs is not None:
            raise CaseInvalid("report: --inputs has its own tensors; --seed draws some")
        if device not in (None, "cpu") and inputs is not None:
            raise CaseInvalid(
                f"report: --inputs is for the CPU models; got --device {device}"
            )
        return write_report(
            output,
            profile or "quick",
            seed or 0,
            _console(),
            inputs=inputs,
            op=op,
            fresh=fresh,
            device=device,
        )
    given = (profile, seed, inputs, device)
    if fresh or any(option is not None for option in given):
        raise CaseInvalid(
            "report: --profile, --seed, --inputs, --device and --fresh make new rows; "
            f"{rows} has them already"
        )
    return rerender(rows, output, _console())


app.command()(fuzz)
app.command()(replay)


def main() -> int:
    """The exit code of the command line in `sys.argv`."""
    arguments = sys.argv[1:]
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="scancheck", standalone_mode=False)
    except typer.Abort:
        code = TYPER_INTERRUPTED
    except (UsageError, CaseInvalid, RecordUnreadable) as error:
        return _failed(arguments, "USAGE", EXIT_USAGE, _usage_message(error))
    except KernelUnavailable as error:
        return _failed(arguments, "UNAVAILABLE", EXIT_HARNESS, str(error))
    except Exception as error:
        from scancheck.report.failure import internal_message

        told = internal_message(error, in_full="--traceback" in arguments)
        return _failed(arguments, "HARNESS", EXIT_HARNESS, told)
    if code == TYPER_INTERRUPTED:
        return _failed(arguments, "INTERRUPTED", EXIT_HARNESS, "interrupted")
    return int(code or 0)


def _failed(arguments: list[str], verdict: str, code: int, message: str) -> int:
    """Tells the message, also in the JSON where one was asked for; gives the code."""
    if message:
        print(f"scancheck: {message}", file=sys.stderr)
    path = _json_argument(arguments)
    if path is not None:
        from scancheck.report.failure import unwritable, write_failure

        if not unwritable(path):
            write_failure(path, verdict, code, message)
    return code


def _usage_message(error: Exception) -> str:
    """One line; Typer's own errors say where help is, and may be the help itself."""
    if isinstance(error, ScancheckError):
        return str(error)
    text = str(getattr(error, "format_message", error.__str__)()).strip()
    if not text:  # no command was given, and Typer has printed the help
        return ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "scancheck"
    return f"{text} (see {path} --help)"


def _json_argument(arguments: list[str]) -> Path | None:
    """The PATH of `--json PATH`, also where Typer could not read the rest."""
    if arguments[:1] not in (["verify"], ["replay"]):
        return None
    for position, argument in enumerate(arguments):
        if argument.startswith("--json="):
            return Path(argument.removeprefix("--json="))
        if argument == "--json" and position + 1 < len(arguments):
            return Path(arguments[position + 1])
    return None


def _check_writable(path: Path | None) -> None:
    from scancheck.report.failure import unwritable

    if path is not None and (problem := unwritable(path)):
        raise CaseInvalid(f"--json {path}: {problem}")


def _check(profile: str, seed: int) -> None:
    if profile not in PROFILES:
        raise CaseInvalid(f"--profile: expected quick or full; got {profile!r}")
    if seed < 0:
        raise CaseInvalid(f"--seed: expected 0 or more; got {seed}")


def _listed(option: str, text: str | None) -> tuple[str, ...] | None:
    """Names between commas, each once; None where the option is not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise CaseInvalid(f"{option}: expected names between commas; got {text!r}")
    return names


def _console(*, stderr: bool = False, piped_width: int | None = None) -> "Console":
    """Rich's console: coloured on a terminal, plain elsewhere and with NO_COLOR."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if piped_width is not None and not console.is_terminal:
        console.width = piped_width
    return console


if __name__ == "__main__":
    sys.exit(main())
