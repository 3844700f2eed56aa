// Single elements of tensors of any storage format in global memory, as floats.
#pragma once

#include "storage.cuh"

template <class Storage>
__device__ __forceinline__ float read(const void* tensor, long long offset) {
  return element(static_cast<const Storage*>(tensor) + offset);
}

template <class Storage>
__device__ __forceinline__ void write(void* tensor, long long offset, float value) {
  put_element(static_cast<Storage*>(tensor) + offset, value);
}
