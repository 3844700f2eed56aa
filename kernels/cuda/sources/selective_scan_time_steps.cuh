// What a lane of selective_scan_time does in its own steps, four states side by side.
#pragma once

#include "selective_scan_recurrence.cuh"
#include "storage.cuh"

constexpr int TIME_STATES = 16;  // at a time
constexpr int TIME_SIDE = 4;     // states side by side, and lanes of a group
constexpr int TIME_ENDS = 40;    // floats between states where lanes change sides

// Keeps the compiler from making `value` again where it is used.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)); }

// The sum of neighbours, of neighbouring pairs, and so on.
template <int COUNT>
__device__ __forceinline__ float pairwise_sum(const float (&values)[COUNT]) {
  float sums[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) sums[i] = values[i];
#pragma unroll
  for (int distance = 1; distance < COUNT; distance *= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2 * distance) {
      sums[i] = __fadd_rn(sums[i], sums[i + distance]);
    }
  }
  return sums[0];
}

template <class Functions, int VECTOR>
__device__ __forceinline__ void make_decays(float (&decays)[TIME_SIDE][VECTOR],
                                            const float (&d)[VECTOR],
                                            const float* scaled, bool narrow) {
  const float4 four = *reinterpret_cast<const float4*>(scaled);
  const float scales[TIME_SIDE] = {four.x, four.y, four.z, four.w};
  if (!HAS_NARROW<Functions> || narrow) {
#pragma unroll
    for (int i = 0; i < TIME_SIDE; i++) {
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        decays[i][k] = decay_of<Functions, true>(d[k], scales[i]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < TIME_SIDE; i++) {
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        decays[i][k] = decay_of<Functions, false>(d[k], scales[i]);
      }
    }
  }
}

// What four states do in the steps of each lane: the drives, and the ends, which go where
// the lanes change sides. `keys` has the lane's B.
template <class Storage, int VECTOR>
__device__ __forceinline__ void make_ends(const uint4* keys,
                                          const float (&written)[VECTOR],
                                          const float (&decays)[TIME_SIDE][VECTOR],
                                          float (&drives)[TIME_SIDE][VECTOR],
                                          float* ends) {
#pragma unroll
  for (int i = 0; i < TIME_SIDE; i++) {
    Packed<Storage, VECTOR> B;
    B.load(reinterpret_cast<const Storage*>(keys + i * 32));
    float end = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      drives[i][k] = __fmul_rn(written[k], B.at(k));
      end = k ? __fmaf_rn(decays[i][k], end, drives[i][k]) : drives[i][0];
    }
    ends[i * TIME_ENDS] = end;
  }
}

// From the states before each lane's steps through these, C . h added to the outputs.
template <class Storage, int VECTOR>
__device__ __forceinline__ void go_through(const uint4* keys, const float* states,
                                           const float (&decays)[TIME_SIDE][VECTOR],
                                           const float (&drives)[TIME_SIDE][VECTOR],
                                           float (&outputs)[VECTOR]) {
#pragma unroll
  for (int i = 0; i < TIME_SIDE; i++) {
    float h = states[i * TIME_ENDS];
    Packed<Storage, VECTOR> C;
    C.load(reinterpret_cast<const Storage*>(keys + (TIME_STATES + i) * 32));
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      h = __fmaf_rn(decays[i][k], h, drives[i][k]);
      outputs[k] = __fmaf_rn(C.at(k), h, outputs[k]);
    }
  }
}
