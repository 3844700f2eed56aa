// How the lanes of selective_scan_backward_rows add up, always in the same order: over
// states, over the channels of a warp, over the warps of a block.
#pragma once

#include "selective_scan_backward_rows_staging.cuh"

// Has the value computed whether it is selected later or not, without a branch.
__device__ __forceinline__ float always(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

// Sums over the four lanes of a pair, of four steps: each lane gets those of its step.
// All exchanges of one distance come together, so that none waits for another.
template <int COUNT>
__device__ __forceinline__ void own_sums(const float (&values)[COUNT][BLOCK_STEPS],
                                         int part, float (&sums)[COUNT]) {
  float half[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float sent = part & 2 ? values[i][k] : values[i][k + 2];
      half[i][k] = __shfl_xor_sync(0xffffffffu, sent, 16);
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float kept = part & 2 ? values[i][k + 2] : values[i][k];
      half[i][k] = __fadd_rn(kept, half[i][k]);
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float sent = part & 1 ? half[i][0] : half[i][1];
    sums[i] = __shfl_xor_sync(0xffffffffu, sent, 8);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float kept = part & 1 ? half[i][1] : half[i][0];
    sums[i] = __fadd_rn(kept, sums[i]);
  }
}

// Two rows of 32 sums cross from the lanes that have 4 of B and 4 of C, of two channels,
// to one lane each for all 16 channels.
struct Crossing {
  static constexpr int PAIR = 36;  // floats, so that no banks collide
  float* at;

  __device__ __forceinline__ void put(int row, int pair, int part,
                                      const float (&B_bar)[4],
                                      const float (&C_bar)[4]) const {
    float* const to = at + row * CROSSING + pair * PAIR + part * 4;
    reinterpret_cast<float4*>(to)[0] =
        make_float4(B_bar[0], B_bar[1], B_bar[2], B_bar[3]);
    reinterpret_cast<float4*>(to)[4] =
        make_float4(C_bar[0], C_bar[1], C_bar[2], C_bar[3]);
  }

  __device__ __forceinline__ float sum(int row, int lane) const {
    const float* const from = at + row * CROSSING + lane;
    float sum = from[0];
#pragma unroll
    for (int other = 1; other < 8; other++) sum = __fadd_rn(sum, from[other * PAIR]);
    return sum;
  }
};

// The sum of B's or C's gradient at a step over the block's warps, from where `starts`
// had each warp's.
template <class Layout, int WARPS>
__device__ __forceinline__ float warps_sum(const char* memory, int step, int lane,
                                           int warps) {
  const int place =
      step / BLOCK_STEPS * 1024 + (step % BLOCK_STEPS * 32 + lane) * 4;
  const char* const from = memory + Layout::STARTS + place;
  float sum = *reinterpret_cast<const float*>(from);
#pragma unroll
  for (int other = 1; other < WARPS; other++) {
    const float next =
        always(*reinterpret_cast<const float*>(from + other * Layout::WARP));
    sum = other < warps ? __fadd_rn(sum, next) : sum;
  }
  return sum;
}
