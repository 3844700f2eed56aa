// What the backward kernels of selective_scan are given; the host packs it as 64-bit
// words in this order (selective_scan_backward.py). Strides count elements.
#pragma once

#include "selective_scan_recurrence.cuh"

// Of so many steps the states and decays are in registers at a time.
constexpr int BLOCK_STEPS = 4;

struct BackwardArguments {
  // As in Arguments.
  const void *u, *delta, *z, *B, *C;
  const float *A, *D, *delta_bias;
  const float* edges;      // [B, ceil(L / E), D, N], contiguous; E steps are a tile
  const void* y_bar;       // [B, D, L] in storage format, or null
  const float* after;      // [B, D, N], contiguous: of the state behind `end`, or null
  void *u_bar, *delta_bar, *z_bar;  // [B, D, L], contiguous; z_bar null without z
  float* before;           // [B, D, N], contiguous: of the state in front of `begin`
  // One sum a batch row: [B, D, N] and [B, D]; those of constant B and C as of A. In a
  // slice that is not the last of its rows, sums of the slices behind it, to go on with.
  float *A_sums, *D_sums, *bias_sums, *B_sums, *C_sums;
  float* key_sums;  // [B, G, P, end - begin, 2 N]: of B, then of C, by block of a group
  long long batch, channels, steps, states, groups;
  long long begin, end;  // the steps of this launch; begin a multiple of E
  long long u_batch, u_channel, delta_batch, delta_channel, z_batch, z_channel;
  long long y_bar_batch, y_bar_channel;
  long long B_batch, B_group, B_state, C_batch, C_group, C_state;
  long long A_channel;
  long long delta_softplus;
};

// Blocks take `width` channels of one batch row and one group each.
struct BackwardPlace {
  long long row, batch, group, first, block;
  int count;  // channels that exist
};

__device__ __forceinline__ BackwardPlace place_of(const BackwardArguments& a,
                                                  int width) {
  const unsigned in_group = unsigned(a.channels) / unsigned(a.groups);
  const unsigned per_group = (in_group + width - 1) / width;
  BackwardPlace place;
  place.row = blockIdx.x / per_group;
  place.block = blockIdx.x - place.row * per_group;
  const unsigned inside = unsigned(place.block) * width;
  place.batch = place.row / a.groups;
  place.group = place.row - place.batch * a.groups;
  place.first = place.group * in_group + inside;
  place.count = min(width, int(in_group - inside));
  return place;
}

// The logistic function of x and of -x, and e = exp(-|x|), of which they are made.
struct Logistic {
  float e, of_x, of_minus_x;
};

template <class Functions>
constexpr bool HAS_RECIPROCAL = false;
template <>
constexpr bool HAS_RECIPROCAL<scancheck::Fast> = true;

template <class Functions>
__device__ __forceinline__ Logistic logistic(float x) {
  using namespace scancheck;
  Logistic result;
  result.e = Functions::exp_below(-fabsf(x));
  float small;  // 1 / (1 + e)
  if constexpr (HAS_RECIPROCAL<Functions>) {
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(small) : "f"(__fadd_rn(1.0f, result.e)));
  } else {
    small = Reproducible::sigmoid_of(1.0f, result.e);
  }
  const float other = __fmul_rn(result.e, small);
  result.of_x = x < 0.0f ? other : small;
  result.of_minus_x = x < 0.0f ? small : other;
  return result;
}

// silu(z) and its slope, s (1 + z s(-z)).
struct Gate {
  float value, slope;
};

template <class Functions>
__device__ __forceinline__ Gate gate(float z) {
  using namespace scancheck;
  const Logistic s = logistic<Functions>(z);
  const float held = min_or_nan(max_or_nan(z, SILU_LOWEST), -SILU_LOWEST);
  return {__fmul_rn(max_or_nan(z, SILU_LOWEST), s.of_x),
          __fmul_rn(s.of_x, __fmaf_rn(held, s.of_minus_x, 1.0f))};
}

// The step d and its slope by delta + bias.
struct StepSize {
  float value, slope;
};

template <class Functions>
__device__ __forceinline__ StepSize step_size(float x, bool curved) {
  using namespace scancheck;
  const Logistic s = logistic<Functions>(x);
  const float softplus = __fadd_rn(max_or_nan(x, 0.0f), Functions::log1p_unit(s.e));
  return {curved ? softplus : x, curved ? s.of_x : 1.0f};
}
