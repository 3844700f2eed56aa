// Any number of states up to 256, any length, alignment and layout of B and C: the
// kernel where selective_scan_rows does not fit.
//
// LANES lanes share a channel, each with 8 of its states in registers; time is in the
// loop. A warp makes d and d u of 32 steps with its lanes over the steps, then walks
// these steps, then gates and stores y with its lanes over the steps again. For up to 16
// states operations and their order are those of selective_scan_rows. Before every 32
// steps but the first the state is rounded to Kept.
#pragma once

#include "elements.cuh"
#include "selective_scan_arguments.cuh"
#include "selective_scan_recurrence.cuh"

constexpr int STEPS_WARPS = 4;
constexpr int STEPS_TILE = 32;
constexpr int STEPS_PAIRS = STEPS_TILE + 1;  // of floats, a channel: no banks collide

template <class Storage, class Recurrence, int LANES, bool CONSTANT_B, bool CONSTANT_C,
          class Kept>
__global__ void __launch_bounds__(32 * STEPS_WARPS)
    selective_scan_steps(const __grid_constant__ Arguments a) {
  using Functions = typename Recurrence::Functions;
  constexpr int CHANNELS = 32 / LANES;  // of a warp
  constexpr int WIDTH = 8 * LANES;      // states, with padding
  constexpr int KEYS = 2 * WIDTH + 4;   // floats a step
  extern __shared__ uint4 memory[];
  float* const keys = reinterpret_cast<float*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int channel = lane / LANES, part = lane % LANES;
  float2* const meeting = reinterpret_cast<float2*>(keys + STEPS_TILE * KEYS) +
                          warp * CHANNELS * STEPS_PAIRS;

  const Place place = place_of(a, STEPS_WARPS * CHANNELS);
  const long long first = place.first + warp * CHANNELS;
  const int rows = max(0, min(CHANNELS, place.count - warp * CHANNELS));
  const bool exists = channel < rows;
  const long long own = exists ? first + channel : place.first;

  float scaled[8], constant_b[8], constant_c[8];
  typename Recurrence::State h[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int state = part * 8 + i;
    const bool there = exists && state < a.states;
    h[i] = {};
    scaled[i] = there ? scaled_decay(a.A[own * a.A_channel + state]) : 0.0f;
    if (there && a.initial_state != nullptr) {
      h[i].value = a.initial_state[place.batch * a.initial_batch +
                                   own * a.initial_channel + state];
    }
    constant_b[i] = constant_c[i] = 0.0f;
    if (CONSTANT_B && there) {
      constant_b[i] = static_cast<const float*>(a.B)[own * a.B_state + state];
    }
    if (CONSTANT_C && there) {
      constant_c[i] = static_cast<const float*>(a.C)[own * a.C_state + state];
    }
  }

  for (int first_step = 0; first_step < a.steps; first_step += STEPS_TILE) {
    const int count = min(STEPS_TILE, int(a.steps) - first_step);
    __syncthreads();
    for (int i = warp; i < 2 * WIDTH; i += STEPS_WARPS) {
      const bool of_c = i >= WIDTH;
      const int state = of_c ? i - WIDTH : i;
      float value = 0.0f;
      if (lane < count && state < a.states && !(of_c ? CONSTANT_C : CONSTANT_B)) {
        const long long row =
            of_c ? place.batch * a.C_batch + place.group * a.C_group + state * a.C_state
                 : place.batch * a.B_batch + place.group * a.B_group + state * a.B_state;
        value = read<Storage>(of_c ? a.C : a.B, row + first_step + lane);
      }
      keys[lane * KEYS + i] = value;
    }
    for (int row = 0; row < rows && lane < count; row++) {
      const long long at = first + row, step = first_step + lane;
      float d = read<Storage>(
          a.delta, place.batch * a.delta_batch + at * a.delta_channel + step);
      d = __fadd_rn(d, a.delta_bias != nullptr ? a.delta_bias[at] : 0.0f);
      if (a.delta_softplus) d = Functions::softplus(d);
      const float input =
          read<Storage>(a.u, place.batch * a.u_batch + at * a.u_channel + step);
      meeting[row * STEPS_PAIRS + lane] = make_float2(d, __fmul_rn(d, input));
    }
    __syncthreads();

    if (first_step > 0) {
#pragma unroll
      for (int i = 0; i < 8; i++) h[i].value = stored<Kept>(h[i].value);
    }
    if (float* const to = edge_place(a, place.batch, own, first_step)) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (exists && part * 8 + i < a.states) to[part * 8 + i] = h[i].value;
      }
    }

    float2* const own_steps = meeting + channel * STEPS_PAIRS;
#pragma unroll 2
    for (int step = 0; step < count; step++) {
      const float2 pair = exists ? own_steps[step] : make_float2(0.0f, 0.0f);
      const float* const at = keys + step * KEYS + part * 8;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float B = CONSTANT_B ? constant_b[i] : at[i];
        const float C = CONSTANT_C ? constant_c[i] : at[WIDTH + i];
        Recurrence::template advance<false>(h[i], pair.x, scaled[i], pair.y, B);
        sum = i ? __fmaf_rn(C, h[i].value, sum) : __fmul_rn(C, h[i].value);
      }
#pragma unroll
      for (int distance = 1; distance < LANES; distance *= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
      }
      // All lanes of the channel have read the step that is written over.
      if (LANES > 1) __syncwarp();
      if (part == 0 && exists) own_steps[step].x = sum;
    }
    __syncwarp();

    for (int row = 0; row < rows && lane < count; row++) {
      const long long at = first + row, step = first_step + lane;
      float y = meeting[row * STEPS_PAIRS + lane].x;
      if (a.D != nullptr) {
        const float input =
            read<Storage>(a.u, place.batch * a.u_batch + at * a.u_channel + step);
        y = __fmaf_rn(a.D[at], input, y);
      }
      if (a.z != nullptr) {
        y = __fmul_rn(y, Functions::silu(read<Storage>(
                             a.z, place.batch * a.z_batch + at * a.z_channel + step)));
      }
      write<Storage>(a.y, (place.batch * a.channels + at) * a.steps + step, y);
    }
    __syncwarp();
  }

  if (exists) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int state = part * 8 + i;
      if (state < a.states) {
        a.last_state[(place.batch * a.channels + own) * a.states + state] =
            __fadd_rn(h[i].value, 0.0f);
      }
    }
  }
}
