// The states and adjoints of selective_scan_backward_rows: of two channels, 8 apart, a
// lane has 4 states each.
#pragma once

#include "selective_scan_backward_rows_staging.cuh"
#include "selective_scan_backward_rows_sums.cuh"

__device__ __forceinline__ void spread(const float4& from, float (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// Four states of a row of N; zeros behind.
__device__ __forceinline__ float4 four_states(const float* row, int first, int states) {
  if (states == 16) return *reinterpret_cast<const float4*>(row + first);
  return make_float4(first < states ? row[first] : 0.0f,
                     first + 1 < states ? row[first + 1] : 0.0f,
                     first + 2 < states ? row[first + 2] : 0.0f,
                     first + 3 < states ? row[first + 3] : 0.0f);
}

// What the steps of a tile read in shared memory.
struct BackwardSteps {
  const float4* meeting;  // [step][pair]: d and d u of both channels
  const float* keys;      // [step][16 of B, 16 of C], from the lane's states on
  int pair;

  __device__ __forceinline__ float4 meets(int step) const {
    return meeting[step * 8 + pair];
  }
  __device__ __forceinline__ void read_B(int step, float (&B)[4]) const {
    spread(*reinterpret_cast<const float4*>(keys + step * 32), B);
  }
  __device__ __forceinline__ void read_C(int step, float (&C)[4]) const {
    spread(*reinterpret_cast<const float4*>(keys + step * 32 + 16), C);
  }
};

// The states before each block of the tile, from those before the tile, to `starts`.
template <class Functions>
__device__ __forceinline__ void make_starts(float (&h)[2][4], const float (&scaled)[2][4],
                                            const BackwardSteps& steps, int blocks,
                                            int lane, float4* starts) {
#pragma unroll 1
  for (int block = 0;; block++) {
    starts[block * 64 + lane] = make_float4(h[0][0], h[0][1], h[0][2], h[0][3]);
    starts[block * 64 + 32 + lane] = make_float4(h[1][0], h[1][1], h[1][2], h[1][3]);
    if (block == blocks - 1) break;
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; k++) {
      const int step = block * BLOCK_STEPS + k;
      const float4 at = steps.meets(step);
      float B[4];
      steps.read_B(step, B);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float d = c ? at.z : at.x, written = c ? at.w : at.y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float w = Functions::exp2_product(d, scaled[c][i]);
          h[c][i] = __fmaf_rn(w, h[c][i], __fmul_rn(written, B[i]));
        }
      }
    }
  }
}

// Decays and states of a block in registers.
struct BackwardBlock {
  float w[BLOCK_STEPS][2][4], before[BLOCK_STEPS + 1][2][4];

  // From the states before the block; C . h of each step to `output`.
  template <class Functions>
  __device__ __forceinline__ void go_forward(const float4* starts, int block, int lane,
                                             const float (&scaled)[2][4],
                                             const BackwardSteps& steps,
                                             float (&output)[2][BLOCK_STEPS]) {
    spread(starts[block * 64 + lane], before[0][0]);
    spread(starts[block * 64 + 32 + lane], before[0][1]);
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; k++) {
      const int step = block * BLOCK_STEPS + k;
      const float4 at = steps.meets(step);
      float B[4], C[4];
      steps.read_B(step, B);
      steps.read_C(step, C);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float d = c ? at.z : at.x, written = c ? at.w : at.y;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          w[k][c][i] = Functions::exp2_product(d, scaled[c][i]);
          const float state =
              __fmaf_rn(w[k][c][i], before[k][c][i], __fmul_rn(written, B[i]));
          before[k + 1][c][i] = state;
          sum = i ? __fmaf_rn(C[i], state, sum) : __fmul_rn(C[i], state);
        }
        output[c][k] = sum;
      }
    }
  }

  // The adjoint of the block from `carried`, which becomes that before it. `pbar` is of
  // the lane's step. Of each step `bars` get sum g B of both channels, then sum
  // l A log2(e), and `of_channels` the lane's sum of B's and C's gradients.
  __device__ __forceinline__ void go_back(
      int block, const BackwardSteps& steps, const float (&pbar)[2],
      const float (&scaled)[2][4], const Crossing& crossing, int part, int lane,
      float (&carried)[2][4], float (&A_bar)[2][4], float (&bars)[4][BLOCK_STEPS],
      float (&of_channels)[BLOCK_STEPS]) const {
#pragma unroll
    for (int two = BLOCK_STEPS - 2; two >= 0; two -= 2) {
      float of_step[2][2];
#pragma unroll
      for (int k = two + 1; k >= two; k--) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          of_step[k - two][c] = __shfl_sync(0xffffffffu, pbar[c], k * 8 + steps.pair);
        }
      }
#pragma unroll
      for (int k = two + 1; k >= two; k--) {
        const int step = block * BLOCK_STEPS + k;
        const float4 at = steps.meets(step);
        float B[4], C[4];
        float B_bar[4], C_bar[4];
        steps.read_B(step, B);
        steps.read_C(step, C);
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const float d = c ? at.z : at.x, written = c ? at.w : at.y;
          const float p = of_step[k - two][c];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float g = __fmaf_rn(p, C[i], carried[c][i]);
            float& of_written = bars[c][k];
            of_written = i ? __fmaf_rn(g, B[i], of_written) : __fmul_rn(g, B[i]);
            carried[c][i] = __fmul_rn(w[k][c][i], g);
            const float log_bar = __fmul_rn(carried[c][i], before[k][c][i]);
            float& of_log = bars[2 + c][k];
            of_log = i ? __fmaf_rn(log_bar, scaled[c][i], of_log)
                       : __fmul_rn(log_bar, scaled[c][i]);
            A_bar[c][i] = __fmaf_rn(log_bar, d, A_bar[c][i]);
            const float state = before[k + 1][c][i];
            B_bar[i] = c ? __fmaf_rn(g, written, B_bar[i]) : __fmul_rn(g, written);
            C_bar[i] = c ? __fmaf_rn(p, state, C_bar[i]) : __fmul_rn(p, state);
          }
        }
        crossing.put(k - two, steps.pair, part, B_bar, C_bar);
      }
      __syncwarp();
#pragma unroll
      for (int k = two; k < two + 2; k++) of_channels[k] = crossing.sum(k - two, lane);
      __syncwarp();
    }
  }
};
