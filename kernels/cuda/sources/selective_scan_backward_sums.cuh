// The sums that blocks left, added in their order: no atomics, the same bits each time.
#pragma once

#include "elements.cuh"

// to[i] = to[i] (or 0 where the rows are the first) + rows[0][i] + rows[1][i] + ...
__global__ void __launch_bounds__(128)
    selective_scan_backward_rows_sum(const float* rows, float* to, long long count,
                                     long long width, long long goes_on) {
  const long long i = (long long)(blockIdx.x) * 128 + threadIdx.x;
  if (i >= width) return;
  float sum = goes_on ? to[i] : 0.0f;
  for (long long row = 0; row < count; row++) {
    sum = __fadd_rn(sum, rows[row * width + i]);
  }
  to[i] = sum;
}

constexpr int SUM_STEPS = 32;  // of a block

struct KeySumArguments {
  const float* key_sums;  // [R, P, end - begin, 2 N]
  void *B_bar, *C_bar;    // [R, N, L] in storage format; null where not wanted
  long long parts, steps, states, begin, end, tiles;
};

// P summed in order, and turned to the layout of B and C.
template <class Storage>
__global__ void __launch_bounds__(256)
    selective_scan_backward_key_sum(const __grid_constant__ KeySumArguments a) {
  __shared__ float turned[32][SUM_STEPS + 1];
  const long long length = a.end - a.begin, width = 2 * a.states;
  const long long row = blockIdx.x / a.tiles;
  const long long first = (blockIdx.x - row * a.tiles) * SUM_STEPS;
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  for (long long first_key = 0; first_key < width; first_key += 32) {
    const long long key = first_key + x;
    for (int k = y; k < SUM_STEPS; k += 8) {
      const long long step = first + k;
      if (key >= width || step >= length) continue;
      const float* from = a.key_sums + (row * a.parts * length + step) * width + key;
      float sum = *from;
      for (long long part = 1; part < a.parts; part++) {
        sum = __fadd_rn(sum, from[part * length * width]);
      }
      turned[x][k] = sum;
    }
    __syncthreads();
    for (int k = y; k < 32; k += 8) {
      const long long state = first_key + k, step = first + x;
      if (state >= width || step >= length) continue;
      const bool of_c = state >= a.states;
      void* const to = of_c ? a.C_bar : a.B_bar;
      if (to == nullptr) continue;
      const long long line = row * a.states + (of_c ? state - a.states : state);
      write<Storage>(to, line * a.steps + a.begin + step, turned[k][x]);
    }
    __syncthreads();
  }
}
