"""Every test here needs a CUDA device, and is skipped with the reason without one."""

from pathlib import Path

import pytest

from scancheck.runner.device import why_no_cuda

KERNELS = '''
import torch


def scan(a, b, initial_state=None):
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    decays, drives = a.to(wide), b.to(wide)
    state = initial_state
    if state is None:
        state = decays.new_zeros(b.shape[0], b.shape[2])
    rows = [drives[:, :0]]
    for decay, drive in zip(decays.unbind(1), drives.unbind(1), strict=True):
        state = decay * state + drive
        rows.append(state[:, None])
    return torch.cat(rows, 1).to(b.dtype), state.clone()


STEPS = 64  # up to which the kernels below do nothing wrong


def faults(a, b):
    """Writes far outside any allocation."""
    h, state = scan(a, b)
    if a.shape[1] > STEPS:
        _launch("void wrong(float* x) { x[1ll << 44] = 1.0f; }", b)
    return h, state


def spins(a, b):
    """Does not come back for a quarter of a minute."""
    h, state = scan(a, b)
    if a.shape[1] > STEPS:
        _launch(
            "void wrong(float* x) { for (long long t0 = clock64();"
            " clock64() - t0 < 25000000000ll;) {} }",
            b,
        )
    return h, state


def _launch(source, tensor):
    import cupy
    import numpy

    wrong = cupy.RawKernel('extern "C" __global__ ' + source, "wrong")
    wrong((1,), (1,), (numpy.uint64(tensor.data_ptr()),))


def asserts(a, b):
    """Trips the assertion of torch's own gather."""
    h, state = scan(a, b)
    if a.shape[1] > STEPS:
        index = torch.full((4,), 10**9, dtype=torch.int64, device=b.device)
        torch.gather(b.reshape(-1), 0, index)
    return h, state


def unwritten(a, b):
    """Leaves the last token unwritten."""
    h, state = scan(a, b)
    out = torch.empty_like(h)
    out[:, :-1] = h[:, :-1]
    return out, state


def stale(a, b):
    """Hands out memory that is as large as its outputs, and was freed before."""
    return torch.empty_like(b), torch.empty(
        b.shape[0], b.shape[2], device=b.device, dtype=torch.float32
    )


def freed_within(a, b):
    """Hands out memory in which the right result was, freed by itself."""
    h, state = scan(a, b)
    del h
    return torch.empty_like(b), state


def of_many_sizes(a, b):
    """Sums what it has not written, of sizes that the allocator has no block for."""
    rooms = [torch.empty(n, device=b.device) for n in (3, 400_000, 5_000_000, 2**25)]
    total = sum(room[-1] for room in rooms)
    return scan(a, b)[0] + total, scan(a, b)[1]


def stale_of_cupy(a, b):
    """The same in memory of CuPy's pool."""
    import cupy

    return tuple(
        torch.from_dlpack(cupy.empty(shape, dtype=cupy.float32))
        for shape in (b.shape, (b.shape[0], b.shape[2]))
    )


def races(a, b):
    """Adds in an order that the scheduler decides on."""
    h, state = scan(a, b)
    noise = torch.rand(1 << 16, device=b.device) - 0.5
    total = torch.zeros(8, device=b.device)
    total.index_add_(0, torch.arange(1 << 16, device=b.device) % 8, noise)
    return (h.float() + total.sum()).to(h.dtype), state


def draws(a, b):
    """Depends on the device's random stream."""
    h, state = scan(a, b)
    return h * torch.rand((), device=b.device), state


def on_the_cpu(a, b):
    """Returns its outputs on another device."""
    h, state = scan(a, b)
    return h.cpu(), state


def writes_outside(a, b):
    """Writes behind the end of b."""
    b.as_strided((1,), (1,), b.storage_offset() + b.numel()).fill_(1.0)
    return scan(a, b)


def too_much(a, b):
    """Asks for more memory than any device has."""
    torch.empty(2**50, dtype=torch.uint8, device=b.device)
    return scan(a, b)


def switches(a, b):
    """Leaves TF32 on, and another stream current."""
    torch.backends.cuda.matmul.allow_tf32 = True
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(stream)
    return scan(a, b)
'''


@pytest.fixture(autouse=True)
def _needs_cuda() -> None:
    reason = why_no_cuda()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")


@pytest.fixture(scope="session")
def kernel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the kernels above."""
    path = tmp_path_factory.mktemp("kernels") / "own_cuda_kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path
