// The states of selective_scan_time, four side by side: in the steps of a lane, and over
// the lanes of a warp.
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

// What a lane knows of the steps of one tile.
template <int VECTOR>
struct TileSteps {
  float d[VECTOR], written[VECTOR];
  float lanes[TIME_SIDE];  // sums of d over the steps of each lane of the group
  float group;             // over all of them
};

// From the ends of the four lanes of a group, of the lane's state, to the states before
// them; `carry`, the state before the tile, becomes that behind it.
template <class Functions>
__device__ __forceinline__ void scan_groups(float* at, float scaled, float* carry,
                                            const float (&lanes)[TIME_SIDE],
                                            float group) {
  const int lane = threadIdx.x % 32;
  const float4 four = *reinterpret_cast<const float4*>(at);
  const float ends[TIME_SIDE] = {four.x, four.y, four.z, four.w};
  float decays[TIME_SIDE];
#pragma unroll
  for (int i = 0; i < TIME_SIDE; i++) {
    decays[i] = decay_of<Functions, false>(lanes[i], scaled);
  }
  float whole = decay_of<Functions, false>(group, scaled);
  float end = ends[0];
#pragma unroll
  for (int i = 1; i < TIME_SIDE; i++) end = __fmaf_rn(decays[i], end, ends[i]);
  const float before = *carry;
  if (lane < TIME_SIDE) end = __fmaf_rn(whole, before, end);
#pragma unroll
  for (int distance = TIME_SIDE; distance < 32; distance *= 2) {
    const float end_below = __shfl_up_sync(0xffffffffu, end, distance);
    const float whole_below = __shfl_up_sync(0xffffffffu, whole, distance);
    if (lane >= distance) {
      end = __fmaf_rn(whole, end_below, end);
      whole = __fmul_rn(whole, whole_below);
    }
  }
  const float below = __shfl_up_sync(0xffffffffu, end, TIME_SIDE);
  float states[TIME_SIDE];
  states[0] = lane < TIME_SIDE ? before : below;
#pragma unroll
  for (int i = 1; i < TIME_SIDE; i++) {
    states[i] = __fmaf_rn(decays[i - 1], states[i - 1], ends[i - 1]);
  }
  *reinterpret_cast<float4*>(at) =
      make_float4(states[0], states[1], states[2], states[3]);
  // After the shuffles, so that every lane has read it.
  if (lane >= 32 - TIME_SIDE) *carry = end;
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
