"""Triton's interpreter: each change to it, on a kernel that needs the change."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from scancheck.adapters.triton_interpreter import activate
from scancheck.errors import KernelUnavailable

ROOT = Path(__file__).parents[2]

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is missing, or there is a CUDA device",
)

# Kernels that a compiler takes. Triton is imported before the interpreter is on, so
# that its library (here tl.zeros, tl.cumsum) is compiled code at first.
KERNELS = """
import os, warnings
import torch
import triton
import triton.language as tl
from scancheck.adapters.triton_interpreter import activate

before = dict(os.environ)
activate()
activate()
assert dict(os.environ) == before
gather = tl.gather

@triton.autotune([triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 4})], key=[])
@triton.jit
def rows(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    inside = (at < columns) & (tl.program_id(0).to(tl.int64) < columns)
    for i in range(columns):
        total += tl.load(x + i.to(tl.int64) * columns + at, mask=inside, other=0.0)
    total = gather(tl.cumsum(total, 0), BLOCK - 1 - at, 0)
    tl.store(y + at, total, mask=at < columns + 2)

@triton.jit
def dots(x, y):
    at = tl.arange(0, 16)
    block = at[:, None] * 16 + at[None, :]
    tile = tl.load(x + block)
    tl.store(y + block, tl.dot(tile, tile))

@triton.jit
def overflows(y):
    tl.store(y, tl.exp(tl.load(y)))

x, y = torch.ones(6, 6), torch.empty(8)
rows[(1,)](x, y, 6)
assert y.tolist() == [36.0, 36.0, 36.0, 30.0, 24.0, 18.0, 12.0, 6.0], y
assert rows.configs[1].kwargs == {"BLOCK": 4}

large = torch.full((1,), 1000.0)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    overflows[(1,)](large)
assert large.isinf().all()

tile = torch.arange(256.0).reshape(16, 16) % 7
for dtype, right in ((torch.float32, True), (torch.float16, True),
                     (torch.bfloat16, False)):
    product = torch.empty(16, 16)
    dots[(1,)](tile.to(dtype), product)
    assert torch.equal(product, tile @ tile) == right, dtype
"""

# Scans of whole blocks, along either axis and from behind; and one whose combine
# function branches, which asks for element by element.
SCANS = """
import torch
import triton
import triton.language as tl
from scancheck.adapters.triton_interpreter import activate

activate()

@triton.jit
def affine(a, h, b, g):
    return a * b, h * b + g

@triton.jit
def later(i, x, j, y):
    if y > 0:
        r, s = j, y
    else:
        r, s = i, x
    return r, s

@triton.jit
def scans(a, h, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    both = tl.load(a + at), tl.load(h + at)
    b, g = tl.associative_scan(both, AXIS, affine, REVERSE)
    tl.store(a + at, b)
    tl.store(h + at, g)

@triton.jit
def lasts(x, y):
    at = tl.arange(0, 8)
    found, value = tl.associative_scan((at, tl.load(x + at)), 0, later)
    tl.store(y + at, found)

source = torch.Generator().manual_seed(1)
for axis in (0, 1):
    for reverse in (False, True):
        for dtype in (torch.float32, torch.float16):
            a, h = (torch.randint(-1, 2, (8, 16), generator=source).to(dtype)
                    for _ in "ah")
            rows = a.movedim(axis, 0), h.movedim(axis, 0)
            b, g = (x.flip(0).clone() if reverse else x.clone() for x in rows)
            for t in range(1, len(b)):
                g[t] += b[t] * g[t - 1]
                b[t] *= b[t - 1]
            scans[(1,)](a, h, axis, reverse)
            for want, got in zip((b, g), rows):
                assert torch.equal(want.flip(0) if reverse else want, got)

y = torch.empty(8, dtype=torch.int32)
lasts[(1,)](torch.tensor([1, 0, 0, 1, 1, 0, 1, 0]), y)
assert y.tolist() == [0, 0, 0, 3, 4, 4, 6, 6], y
"""


def run(program: str, folder: Path) -> None:
    """Runs the program in a process of its own; its failure is the test's."""
    source = folder / "program.py"
    source.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_triton
def test_kernels_run_as_if_compiled(tmp_path: Path) -> None:
    """Counters, captured functions, tuning, masks and overflow; bf16 alone is wrong."""
    run(KERNELS, tmp_path)


@needs_triton
def test_scans_are_those_of_a_loop(tmp_path: Path) -> None:
    """Exact values: the order in which blocks are combined does not matter."""
    run(SCANS, tmp_path)


@needs_triton
def test_compiled_kernels_are_refused(tmp_path: Path) -> None:
    """A package whose kernels are compiled ones already cannot be switched over."""
    run(
        "import sys, types\n"
        "from scancheck.adapters.triton_interpreter import activate\n"
        "from scancheck.errors import KernelUnavailable\n"
        "sys.modules['fla'] = types.ModuleType('fla')\n"
        "try:\n"
        "    activate()\n"
        "except KernelUnavailable as error:\n"
        "    assert 'fla was imported before' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('not refused')\n",
        tmp_path,
    )


def test_a_device_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a CUDA device, nothing is interpreted."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(KernelUnavailable, match="only where there is no CUDA device"):
        activate.__wrapped__()
