"""Every CUDA source compiled for every supported architecture, without a driver.

    python -m scancheck.kernels.cuda.cubins

prints registers, spills and shared memory, and fails on a warning. Of the instances
that calls can take, so many are compiled that each template argument has had each of
its values.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scancheck.errors import ScancheckError
from scancheck.kernels.cuda.catalog import sources
from scancheck.kernels.cuda.compile import Resources, cubin, resources, warnings

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One instance for one architecture."""

    source: str  # file name
    arch: str  # sm_80, ...
    instance: str  # name expression
    resources: Resources  # what it takes
    warnings: tuple[str, ...]  # of the compilation that it was part of


def covering(instances: Sequence[str]) -> tuple[str, ...]:
    """Some of the instances, such that every argument has had each of its values."""
    chosen: list[str] = []
    seen: set[tuple[str, int, str]] = set()
    # Those with most new values first, so that few suffice.
    left = {instance: set(_arguments(instance)) for instance in instances}
    while left:
        best = max(left, key=lambda instance: len(left[instance] - seen))
        new = left.pop(best) - seen
        if not new:
            break
        chosen.append(best)
        seen |= new
    return tuple(chosen)


def _arguments(instance: str) -> Iterator[tuple[str, int, str]]:
    """(kernel, position, value) of every template argument at the outer level."""
    kernel, _, inside = instance.partition("<")
    flat = re.sub(r"<[^<>]*>", lambda nested: nested[0].replace(",", ";"), inside[:-1])
    yield kernel, 0, ""
    for position, value in enumerate(flat.split(","), start=1):
        yield kernel, position, value.strip()


def compiled(archs: Sequence[str] = ARCHITECTURES) -> Iterator[Compiled]:
    """The covering instances of every source. Raises KernelUnavailable."""
    for arch in archs:
        for source, instances in sources().items():
            for instance in covering(instances):
                built = cubin(source, (instance,), arch)
                yield Compiled(
                    source=source,
                    arch=arch,
                    instance=instance,
                    resources=resources(built)[instance],
                    warnings=tuple(warnings(built)),
                )


def main() -> int:
    """Prints the table; 1 where something does not compile without a warning."""
    failed = False
    try:
        for row in compiled():
            took = row.resources
            print(
                f"{row.arch:6}  {took.registers:3} registers  "
                f"{took.spill_stores:4} + {took.spill_loads:4} bytes spilled  "
                f"{took.shared:6} bytes shared  {row.instance}"
            )
            for warning in row.warnings:
                failed = True
                print(f"        {warning}", file=sys.stderr)
    except ScancheckError as error:
        print(error, file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
