// Single elements of tensors in global memory, as floats.
#pragma once

#include "storage.cuh"

template <class Storage>
__device__ __forceinline__ float read(const void* tensor, long long offset) {
  Packed<Storage, 1> value;
  value.load(static_cast<const Storage*>(tensor) + offset);
  return value.at(0);
}

template <class Storage>
__device__ __forceinline__ void write(void* tensor, long long offset, float value) {
  const float values[1] = {value};
  packed<Storage, 1>(values).store(static_cast<Storage*>(tensor) + offset);
}
