// Copies from global to shared memory that run beside the computation (cp.async).
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return unsigned(__cvta_generic_to_shared(at));
}

// Without a byte to copy the 16 become zeros, and `from` is not read.
__device__ __forceinline__ void copy_16_bytes(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes));
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;");
}

// Waits until at most `COUNT` of the newest groups of copies are under way.
template <int COUNT>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}
