"""The CUDA oracles without a card: their sources compiled for the CPU.

Threads run one after the other, which kernels whose threads share nothing do not
notice; roundings, fma and subnormals are those of IEEE on both.
"""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cards.arrays import CardModule

from scancheck.oracles import cuda_card

SHIM = r"""
#include <cmath>
#include <cstring>
#include <utility>
#define __device__
#define __constant__
#define __global__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
struct Index { long long x; };
static thread_local Index blockIdx, threadIdx, blockDim;
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __fma_rn(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
static inline double __longlong_as_double(long long n) {
    double x;
    std::memcpy(&x, &n, 8);
    return x;
}
static inline long long __double_as_longlong(double x) {
    long long n;
    std::memcpy(&n, &x, 8);
    return n;
}
static inline int __double2loint(double x) {
    int n;
    std::memcpy(&n, &x, 4);
    return n;
}
static inline double __hiloint2double(int high, int low) {
    const long long n = static_cast<long long>(high) << 32 | (unsigned)low;
    return __longlong_as_double(n);
}
template <class... A, std::size_t... I>
static void call(void (*k)(A...), void** a, std::index_sequence<I...>) {
    k(*reinterpret_cast<A*>(a[I])...);
}
template <class... A>
static void all(void (*k)(A...), long long threads, void** arguments) {
    blockDim.x = 128;
    for (long long i = 0; i < (threads + 127) / 128 * 128; ++i) {
        blockIdx.x = i / 128;
        threadIdx.x = i % 128;
        call(k, arguments, std::index_sequence_for<A...>{});
    }
}
"""


FLAGS = ["-O1", "-std=c++17", "-ffp-contract=off", "-mfma", "-shared", "-fPIC", "-w"]


class Host:
    """Stands in for `cuda_card`: its arrays, device and launches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries: dict[str, Any] = {}
        self.module = CardModule()

    def arrays(self) -> Any:
        """Arrays that meet those of NumPy no more than CuPy's do."""
        return self.module

    def device_index(self) -> int:
        """Always the same."""
        return 0

    def launch(
        self, source: str, expression: str, threads: int, arguments: Sequence[Any]
    ) -> None:
        """Runs all threads of a kernel here."""
        if threads == 0:
            return
        if source not in self.libraries:
            self.libraries[source] = self._library(source)
        index = cuda_card.EXPRESSIONS[source].index(expression)
        kept = [np.ascontiguousarray(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(kept))(*(one.ctypes.data for one in kept))
        run = getattr(self.libraries[source], f"run_{index}")
        run(ctypes.c_longlong(threads), addresses)

    def _library(self, source: str) -> Any:
        text = SHIM + f'#include "{cuda_card.SOURCES / source}"\n'
        for index, expression in enumerate(cuda_card.EXPRESSIONS[source]):
            text += (
                f'extern "C" void run_{index}(long long threads, void** arguments) '
                f"{{ all(&{expression}, threads, arguments); }}\n"
            )
        name = self.folder / source.replace(".cu", ".cpp")
        name.write_text(text, encoding="utf-8")
        library = name.with_suffix(".so")
        subprocess.run(
            ["g++", *FLAGS, "-o", library, name],
            check=True,
        )
        return ctypes.CDLL(library)
