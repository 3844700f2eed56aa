"""The sweep on a device: every CUDA kernel beside models that compute the same."""

from dataclasses import replace

import pytest

from scancheck.errors import CaseInvalid
from scancheck.kernels.cuda.catalog import kernels
from scancheck.kernels.models.cuda_catalog import model_of
from scancheck.ops import op_named
from scancheck.recipes.build import build
from scancheck.study.configurations import Configuration, kernel_of
from scancheck.study.device_plan import DEVICE_SWEEPS, device_plan, exact_beside
from scancheck.study.plan import Job, case_of, key_of

PROFILES = sorted(DEVICE_SWEEPS)
EXACT = {
    "cuda.linear_scan.single_pass.plain": "model.linear_scan.chunk256.plain",
    "cuda.linear_scan.single_pass64.plain": "model.linear_scan.chunk64.plain",
    "cuda.linear_scan.single_pass.plain.state_bf16": (
        "model.linear_scan.chunk256.plain.state_bf16"
    ),
    "cuda.linear_scan.sequential.plain": "model.linear_scan.sequential.plain",
    "cuda.selective_scan.time.fast": "model.selective_scan.chunk32.plain",
    "cuda.selective_scan.sequential.accurate": "model.selective_scan.sequential.full",
}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_job_can_be_made(profile: str) -> None:
    """Each names a kernel of its op and dtype, on a case that can be built."""
    jobs = device_plan(profile, 5, "cuda:1")
    seen = set()
    for job in jobs:
        way = job.configuration
        kernel = kernel_of(way)
        assert kernel.op == way.op
        assert way.storage in kernel.dtypes
        assert (job.device, job.section, job.seed) == ("cuda:1", "device", 5)
        axis = op_named(way.op).time_axis
        sizes = tuple((n, 16 if n == axis else s) for n, s in job.sizes)
        short = case_of(replace(job, sizes=sizes))
        if short.id not in seen:
            seen.add(short.id)
            assert build(short).tensors
    assert len({key_of(job) for job in jobs}) == len(jobs)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_kernel_is_beside_its_model(profile: str) -> None:
    """All that do not choose their order run, on the cases of their model."""
    cases: dict[str, set[tuple[str, str | None]]] = {}
    for job in device_plan(profile, 0, "cuda:0"):
        name = kernel_of(job.configuration).name
        cases.setdefault(name, set()).add((case_of(job).id, job.cotangent))
    wanted = {k.name: k for k in kernels() if ".auto." not in k.name}
    assert {name for name in cases if name.startswith("cuda.")} == set(wanted)
    assert set(EXACT) <= set(wanted)
    for name, kernel in wanted.items():
        model = model_of(name)
        assert model is not None
        mine = cases[name]
        assert {dtype for dtype in kernel.dtypes} == {c.split("-")[1] for c, _ in mine}
        assert {c for c in mine if c[1] is None} <= cases[model]
        exact = kernel_of(exact_beside(name, "fp32")).name
        assert exact == EXACT.get(name, exact)
        assert {c for c in cases[exact] if c[1] is None} & mine


def test_gradients_of_every_backward_pass() -> None:
    """Every variant's are measured, of one algorithm of each op."""
    found = {
        kernel_of(job.configuration).name
        for job in device_plan("quick", 0, "cuda:0")
        if job.cotangent is not None
    }
    variants = {(k.op, k.name.split(".")[3]) for k in kernels()}
    assert {
        (name.split(".")[1], name.split(".")[3])
        for name in found
        if name.startswith("cuda.")
    } == variants


def test_unknown_names_are_refused() -> None:
    """A profile or a kernel that there is not."""
    with pytest.raises(CaseInvalid, match="got 'fast'"):
        device_plan("fast", 0, "cuda:0")
    way = Configuration(op="linear_scan", storage="fp32", algorithm="cuda.sideways")
    with pytest.raises(CaseInvalid, match=r"cuda\.linear_scan\.sideways\.plain"):
        kernel_of(way)


def test_keys_of_jobs_without_a_device() -> None:
    """They are those of rows that are stored already."""
    way = Configuration(op="linear_scan", storage="bf16", chunk=64)
    sizes = (("B", 1), ("D", 32), ("T", 1024))
    job = Job(configuration=way, recipe="unit_decay", seed=0, sizes=sizes, form="g")
    assert key_of(job) == "f1572e7a1e945e7a"
