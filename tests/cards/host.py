"""The CUDA oracles without a card: their sources compiled for the CPU.

Threads run one after the other, which kernels whose threads share nothing do not
notice; those of a warp take turns at every shuffle. Roundings, fma and subnormals are
those of IEEE on both.
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
#include <vector>
#include <ucontext.h>
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
// The threads of a warp: each runs until it has something to give at a shuffle.
static ucontext_t turns, warp[32];
static bool ended[32];
static int thread_of_warp;
static double given[32];
static inline void next_turn() { swapcontext(&warp[thread_of_warp], &turns); }
static inline double __shfl_xor_sync(unsigned, double x, int apart) {
    given[thread_of_warp] = x;
    next_turn();
    const double y = given[thread_of_warp ^ apart];
    next_turn();
    return y;
}
static inline bool __any_sync(unsigned, bool x) {
    given[thread_of_warp] = x;
    next_turn();
    bool any = false;
    for (int i = 0; i < 32; ++i) any = any || given[i] != 0.0;
    next_turn();
    return any;
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
static void (*whole_call)(void*, void**);
static void* called;
static void** call_arguments;
static void run_thread() {
    const int me = thread_of_warp;
    whole_call(called, call_arguments);
    ended[me] = true;
    for (;;) swapcontext(&warp[me], &turns);
}
template <class... A>
static void as_thread(void* k, void** arguments) {
    auto kernel = reinterpret_cast<void (*)(A...)>(k);
    call(kernel, arguments, std::index_sequence_for<A...>{});
}
template <class... A>
static void warps(void (*k)(A...), long long threads, void** arguments) {
    static std::vector<char> stacks(32 << 16);
    blockDim.x = 128;
    whole_call = &as_thread<A...>;
    called = reinterpret_cast<void*>(k);
    call_arguments = arguments;
    for (long long first = 0; first < (threads + 127) / 128 * 128; first += 32) {
        for (int i = 0; i < 32; ++i) {
            ended[i] = false;
            getcontext(&warp[i]);
            warp[i].uc_stack.ss_sp = stacks.data() + (i << 16);
            warp[i].uc_stack.ss_size = 1 << 16;
            warp[i].uc_link = &turns;
            makecontext(&warp[i], run_thread, 0);
        }
        for (int running = 32; running > 0;) {
            running = 0;
            for (int i = 0; i < 32; ++i) {
                if (ended[i]) continue;
                ++running;
                thread_of_warp = i;
                blockIdx.x = first / 128;
                threadIdx.x = first % 128 + i;
                swapcontext(&turns, &warp[i]);
            }
        }
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
        path = cuda_card.SOURCES / source
        text = SHIM + f'#include "{path}"\n'
        run = "warps" if "__shfl" in path.read_text(encoding="utf-8") else "all"
        for index, expression in enumerate(cuda_card.EXPRESSIONS[source]):
            text += (
                f'extern "C" void run_{index}(long long threads, void** arguments) '
                f"{{ {run}(&{expression}, threads, arguments); }}\n"
            )
        name = self.folder / source.replace(".cu", ".cpp")
        name.write_text(text, encoding="utf-8")
        library = name.with_suffix(".so")
        subprocess.run(
            ["g++", *FLAGS, "-o", library, name],
            check=True,
        )
        return ctypes.CDLL(library)
