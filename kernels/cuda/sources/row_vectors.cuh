// Vectors of 16 bytes between rows in global memory and shared memory or registers.
//
// ALIGNED rows begin at multiples of 16 bytes and have whole vectors: what is copied to
// shared memory then runs beside the computation (cp.async). Others go element by
// element. `count` elements from the first on exist; the others become zeros.
#pragma once

#include "storage.cuh"

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return unsigned(__cvta_generic_to_shared(at));
}

// Without a byte to copy all become zeros, and `from` is not read.
__device__ __forceinline__ void copy_16_bytes(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes));
}

__device__ __forceinline__ void copy_8_bytes(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
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

template <bool ALIGNED, class Storage>
__device__ __forceinline__ Packed<Storage, 16 / sizeof(Storage)> load_vector(
    const Storage* from, int count) {
  constexpr int VECTOR = 16 / sizeof(Storage);
  Packed<Storage, VECTOR> vector;
  if constexpr (ALIGNED) {
    vector.clear();
    if (count > 0) vector.load(from);
  } else {
    float values[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      Packed<Storage, 1> value;
      value.clear();
      if (k < count) value.load(from + k);
      values[k] = value.at(0);
    }
    vector = packed<Storage, VECTOR>(values);
  }
  return vector;
}

template <bool ALIGNED, class Storage>
__device__ __forceinline__ void store_vector(
    Storage* to, const Packed<Storage, 16 / sizeof(Storage)>& vector, int count) {
  constexpr int VECTOR = 16 / sizeof(Storage);
  if constexpr (ALIGNED) {
    if (count > 0) vector.store(to);
  } else {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      const float values[1] = {vector.at(k)};
      if (k < count) packed<Storage, 1>(values).store(to + k);
    }
  }
}

// To shared memory, for this thread at once where not ALIGNED, else after the copies are
// awaited.
template <bool ALIGNED, class Storage>
__device__ __forceinline__ void copy_vector(uint4* to, const Storage* from, int count) {
  if constexpr (ALIGNED) {
    copy_16_bytes(shared_address(to), from, count > 0 ? 16 : 0);
  } else {
    load_vector<ALIGNED, Storage>(from, count).store(reinterpret_cast<Storage*>(to));
  }
}
