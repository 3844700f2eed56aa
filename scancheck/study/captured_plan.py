"""The same sweep on a user's own captured tensors."""

from dataclasses import replace
from pathlib import Path

from scancheck.captured import Captured, measured_sizes, storages_that_hold
from scancheck.errors import CaseInvalid
from scancheck.ops import op_named
from scancheck.study.configurations import Configuration, configurations, in_chunks
from scancheck.study.plan import GROWTH_CHUNK, Job, kept, other_ways, typical
from scancheck.study.sweeps import SWEEPS

CAPTURED = "captured"  # section, and recipe of a case whose tensors come from a file


def captured_plan(captured: Captured, profile: str) -> tuple[Job, ...]:
    """The jobs of a profile on the tensors of a file, in a fixed order.

    Storage formats that a tensor would overflow are left out. Gradients are measured
    where the sequence is not longer than the longest of the profile's own. Raises
    CaseInvalid for another profile.
    """
    if profile not in SWEEPS:
        raise CaseInvalid(
            f"--profile: expected one of {', '.join(SWEEPS)}; got {profile!r}"
        )
    sweep = SWEEPS[profile]
    op, form = captured.op, captured.form
    sizes = measured_sizes(captured)
    steps = sizes[op_named(op).time_axis]
    storages = storages_that_hold(captured)

    def job(
        way: Configuration, keep: tuple[str, ...] = (), cotangent: str | None = None
    ) -> Job:
        return Job(
            configuration=way,
            recipe=CAPTURED,
            seed=0,
            sizes=tuple(sorted(sizes.items())),
            form=form,
            section=CAPTURED,
            cotangent=cotangent,
            keep=keep,
            file=str(Path(captured.path).resolve()),
        )

    chunks = tuple(chunk for chunk in sweep.chunks if chunk < steps)
    shown = [way for way in typical(op, form) if way.storage in storages]
    ways = in_chunks(configurations(op, form, "chunk"), chunks)
    ways = [way for way in (*ways, *other_ways(op, form)) if way.storage in storages]
    jobs = []
    for way in ways:
        profiled = replace(way, chunk=None) in shown
        profiled &= way.chunk in (None, GROWTH_CHUNK)
        jobs.append(job(way, kept(way, "position", "in_chunk") if profiled else ()))
    if steps <= sweep.gradient_steps[-1]:
        jobs += [
            job(way, cotangent="dense")
            for way in in_chunks(shown, sweep.gradient_chunks)
            if way.algorithm == "chunk" and (way.chunk or 0) < steps
        ]
    return tuple(jobs)
