// Backward for any number of states up to 256, any length, alignment and layout of B and
// C, from the last EDGE_STEPS steps to the first.
//
// LANES lanes share a channel, each with 8 of its states. The states before each
// BLOCK_STEPS steps are made from the kept one first; then, block by block, states and
// decays in registers, forwards, and the adjoint backwards:
//
//   g_t = pbar_t C_t + q_{t+1}     pbar = ybar silu(z)
//   q_t = w_t g_t                  w = exp(d A); carried in q
//   l_t = q_t h_{t-1}              the cotangent of d A
//
//   dA += l d    dd = ln 2 sum l A log2(e) + u sum g B    du = d sum g B + D pbar
//   dB = sum over channels g d u             dC = sum over channels pbar h
#pragma once

#include "elements.cuh"
#include "selective_scan_backward_arguments.cuh"

constexpr int BACKWARD_WARPS = 4;
constexpr int EDGE_STEPS = 32;
constexpr int EDGE_BLOCKS = EDGE_STEPS / BLOCK_STEPS;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

template <class Storage, class Functions, int LANES, bool CONSTANT_B, bool CONSTANT_C>
__global__ void __launch_bounds__(32 * BACKWARD_WARPS)
    selective_scan_backward_steps(const __grid_constant__ BackwardArguments a) {
  constexpr int CHANNELS = 32 / LANES;  // of a warp
  constexpr int WIDTH = 8 * LANES;      // states, with padding
  constexpr int KEYS = 2 * WIDTH + 4;   // floats a step
  constexpr int MEETINGS = EDGE_STEPS + 1;
  extern __shared__ float4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int channel = lane / LANES, part = lane % LANES;
  // d, d u and pbar of each step; after it sum g B, sum l A and C . h.
  float4* const meeting = memory + warp * CHANNELS * MEETINGS;
  float4* const starts =
      memory + BACKWARD_WARPS * CHANNELS * MEETINGS + warp * EDGE_BLOCKS * 64;
  float* const keys =
      reinterpret_cast<float*>(memory + BACKWARD_WARPS * CHANNELS * MEETINGS +
                               BACKWARD_WARPS * EDGE_BLOCKS * 64);
  float* const key_bars = keys + EDGE_STEPS * KEYS;  // [warp][step of a block][2 WIDTH]

  const BackwardPlace place = place_of(a, BACKWARD_WARPS * CHANNELS);
  const long long first = place.first + warp * CHANNELS;
  const int rows = max(0, min(CHANNELS, place.count - warp * CHANNELS));
  const bool exists = channel < rows;
  const long long own = exists ? first + channel : place.first;
  const long long own_states = (place.batch * a.channels + own) * a.states;
  const bool goes_on = a.end < a.steps;
  const long long edges = (a.steps + EDGE_STEPS - 1) / EDGE_STEPS;

  float scaled[8], constant_b[8], constant_c[8];
  float carried[8], A_bar[8], B_bar[8], C_bar[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int state = part * 8 + i;
    const bool there = exists && state < a.states;
    scaled[i] = there ? scaled_decay(a.A[own * a.A_channel + state]) : 0.0f;
    const bool arrives = there && a.after != nullptr;
    carried[i] = arrives ? a.after[own_states + state] : 0.0f;
    A_bar[i] = there && goes_on ? a.A_sums[own_states + state] : 0.0f;
    constant_b[i] = constant_c[i] = B_bar[i] = C_bar[i] = 0.0f;
    if (CONSTANT_B && there) {
      constant_b[i] = static_cast<const float*>(a.B)[own * a.B_state + state];
      if (goes_on) B_bar[i] = a.B_sums[own_states + state];
    }
    if (CONSTANT_C && there) {
      constant_c[i] = static_cast<const float*>(a.C)[own * a.C_state + state];
      if (goes_on) C_bar[i] = a.C_sums[own_states + state];
    }
  }
  // Lane r has the sums of row r.
  float D_bar = 0.0f, bias_bar = 0.0f;
  if (goes_on && lane < rows) {
    const long long at = place.batch * a.channels + first + lane;
    if (a.D_sums != nullptr) D_bar = a.D_sums[at];
    if (a.bias_sums != nullptr) bias_bar = a.bias_sums[at];
  }

  const bool curved = a.delta_softplus != 0;
  auto size_of = [&](long long at, long long step) {
    const float delta = read<Storage>(
        a.delta, place.batch * a.delta_batch + at * a.delta_channel + step);
    const float bias = a.delta_bias != nullptr ? a.delta_bias[at] : 0.0f;
    return step_size<Functions>(__fadd_rn(delta, bias), curved);
  };
  auto input_of = [&](long long at, long long step) {
    return read<Storage>(a.u, place.batch * a.u_batch + at * a.u_channel + step);
  };
  auto y_bar_of = [&](long long at, long long step) {
    if (a.y_bar == nullptr) return 0.0f;
    return read<Storage>(
        a.y_bar, place.batch * a.y_bar_batch + at * a.y_bar_channel + step);
  };
  auto gate_of = [&](long long at, long long step) {
    return gate<Functions>(read<Storage>(
        a.z, place.batch * a.z_batch + at * a.z_channel + step));
  };

  const int tiles = int((a.end - a.begin + EDGE_STEPS - 1) / EDGE_STEPS);
  for (int tile = tiles - 1; tile >= 0; tile--) {
    const long long first_step = a.begin + (long long)tile * EDGE_STEPS;
    const int count = int(min((long long)EDGE_STEPS, a.end - first_step));
    __syncthreads();
    for (int i = warp; i < 2 * WIDTH; i += BACKWARD_WARPS) {
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
      const float d = size_of(at, step).value;
      float pbar = y_bar_of(at, step);
      if (a.z != nullptr) pbar = __fmul_rn(pbar, gate_of(at, step).value);
      meeting[row * MEETINGS + lane] =
          make_float4(d, __fmul_rn(d, input_of(at, step)), pbar, 0.0f);
    }
    __syncthreads();

    float4* const own_steps = meeting + channel * MEETINGS;
    auto step_of = [&](int step) {
      return exists ? own_steps[step] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    auto key_b = [&](int step, int i) {
      return CONSTANT_B ? constant_b[i] : keys[step * KEYS + part * 8 + i];
    };
    auto key_c = [&](int step, int i) {
      return CONSTANT_C ? constant_c[i] : keys[step * KEYS + WIDTH + part * 8 + i];
    };
    float h[8];
    {
      const float* const edge =
          a.edges + ((place.batch * edges + first_step / EDGE_STEPS) * a.channels + own) *
                        a.states;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const bool there = exists && part * 8 + i < a.states;
        h[i] = there ? edge[part * 8 + i] : 0.0f;
      }
    }
    const int blocks = (count + BLOCK_STEPS - 1) / BLOCK_STEPS;
#pragma unroll 1
    for (int block = 0; block < blocks; block++) {
      starts[block * 64 + lane] = make_float4(h[0], h[1], h[2], h[3]);
      starts[block * 64 + 32 + lane] = make_float4(h[4], h[5], h[6], h[7]);
      if (block == blocks - 1) break;
#pragma unroll
      for (int k = 0; k < BLOCK_STEPS; k++) {
        const int step = block * BLOCK_STEPS + k;
        const float4 at = step_of(step);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const float w = Functions::exp2_product(at.x, scaled[i]);
          h[i] = __fmaf_rn(w, h[i], __fmul_rn(at.y, key_b(step, i)));
        }
      }
    }

#pragma unroll 1
    for (int block = blocks - 1; block >= 0; block--) {
      const float4 low = starts[block * 64 + lane];
      const float4 high = starts[block * 64 + 32 + lane];
      h[0] = low.x, h[1] = low.y, h[2] = low.z, h[3] = low.w;
      h[4] = high.x, h[5] = high.y, h[6] = high.z, h[7] = high.w;
      float w[BLOCK_STEPS][8], state_before[BLOCK_STEPS][8], output[BLOCK_STEPS];
#pragma unroll
      for (int k = 0; k < BLOCK_STEPS; k++) {
        const int step = block * BLOCK_STEPS + k;
        if (step >= count) continue;
        const float4 at = step_of(step);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          state_before[k][i] = h[i];
          w[k][i] = Functions::exp2_product(at.x, scaled[i]);
          h[i] = __fmaf_rn(w[k][i], h[i], __fmul_rn(at.y, key_b(step, i)));
          const float C = key_c(step, i);
          output[k] = i ? __fmaf_rn(C, h[i], output[k]) : __fmul_rn(C, h[i]);
        }
      }
#pragma unroll
      for (int k = BLOCK_STEPS - 1; k >= 0; k--) {
        const int step = block * BLOCK_STEPS + k;
        if (step >= count) continue;
        const float4 at = step_of(step);
        float written_bar, log_sum;
        float b[8], c[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const float state = k + 1 < BLOCK_STEPS && step + 1 < count
                                  ? state_before[(k + 1) % BLOCK_STEPS][i]
                                  : h[i];
          const float g = __fmaf_rn(at.z, key_c(step, i), carried[i]);
          written_bar = i ? __fmaf_rn(g, key_b(step, i), written_bar)
                          : __fmul_rn(g, key_b(step, i));
          carried[i] = __fmul_rn(w[k][i], g);
          const float log_bar = __fmul_rn(carried[i], state_before[k][i]);
          log_sum =
              i ? __fmaf_rn(log_bar, scaled[i], log_sum) : __fmul_rn(log_bar, scaled[i]);
          A_bar[i] = __fmaf_rn(log_bar, at.x, A_bar[i]);
          if (CONSTANT_B) B_bar[i] = __fmaf_rn(g, at.y, B_bar[i]);
          if (CONSTANT_C) C_bar[i] = __fmaf_rn(at.z, state, C_bar[i]);
          b[i] = exists ? __fmul_rn(g, at.y) : 0.0f;
          c[i] = exists ? __fmul_rn(at.z, state) : 0.0f;
        }
#pragma unroll
        for (int distance = 1; distance < LANES; distance *= 2) {
          written_bar =
              __fadd_rn(written_bar, __shfl_xor_sync(0xffffffffu, written_bar, distance));
          log_sum = __fadd_rn(log_sum, __shfl_xor_sync(0xffffffffu, log_sum, distance));
          output[k] =
              __fadd_rn(output[k], __shfl_xor_sync(0xffffffffu, output[k], distance));
        }
        // All lanes of the channel have read the step that is written over.
        if (LANES > 1) __syncwarp();
        if (part == 0 && exists) {
          own_steps[step] = make_float4(written_bar, log_sum, output[k], 0.0f);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
          for (int distance = LANES; distance < 32; distance *= 2) {
            if (!CONSTANT_B) {
              b[i] = __fadd_rn(b[i], __shfl_xor_sync(0xffffffffu, b[i], distance));
            }
            if (!CONSTANT_C) {
              c[i] = __fadd_rn(c[i], __shfl_xor_sync(0xffffffffu, c[i], distance));
            }
          }
          if (channel == 0) {
            float* const to = key_bars + (warp * BLOCK_STEPS + k) * 2 * WIDTH + part * 8;
            to[i] = b[i];
            to[WIDTH + i] = c[i];
          }
        }
      }
      if (CONSTANT_B && CONSTANT_C) continue;
      __syncthreads();
      const int left = min(BLOCK_STEPS, count - block * BLOCK_STEPS);
      for (int k = threadIdx.x; k < left * 2 * WIDTH; k += 32 * BACKWARD_WARPS) {
        const int key = k % (2 * WIDTH), at = k / (2 * WIDTH);
        const int state = key % WIDTH;
        if (state >= a.states) continue;
        float sum = key_bars[at * 2 * WIDTH + key];
#pragma unroll
        for (int other = 1; other < BACKWARD_WARPS; other++) {
          sum = __fadd_rn(sum, key_bars[(other * BLOCK_STEPS + at) * 2 * WIDTH + key]);
        }
        const long long in_group = a.channels / a.groups;
        const long long per_group = (in_group + BACKWARD_WARPS * CHANNELS - 1) /
                                    (BACKWARD_WARPS * CHANNELS);
        const long long step = first_step - a.begin + block * BLOCK_STEPS + at;
        const long long line =
            (place.row * per_group + place.block) * (a.end - a.begin) + step;
        a.key_sums[line * 2 * a.states + (key < WIDTH ? 0 : a.states) + state] = sum;
      }
      __syncthreads();
    }
    __syncwarp();

    for (int row = 0; row < rows; row++) {
      const long long at = first + row, step = first_step + lane;
      float skipped = 0.0f, delta_bar = 0.0f;
      if (lane < count) {
        const float4 sums = meeting[row * MEETINGS + lane];
        const float input = input_of(at, step);
        const StepSize d = size_of(at, step);
        float pbar = y_bar_of(at, step), output = sums.z;
        const long long to = (place.batch * a.channels + at) * a.steps + step;
        if (a.D != nullptr) output = __fmaf_rn(a.D[at], input, output);
        if (a.z != nullptr) {
          const Gate z = gate_of(at, step);
          if (a.z_bar != nullptr) {
            write<Storage>(a.z_bar, to, __fmul_rn(__fmul_rn(pbar, z.slope), output));
          }
          pbar = __fmul_rn(pbar, z.value);
        }
        float u_bar = __fmul_rn(sums.x, d.value);
        if (a.D != nullptr) u_bar = __fmaf_rn(a.D[at], pbar, u_bar);
        write<Storage>(a.u_bar, to, u_bar);
        skipped = __fmul_rn(pbar, input);
        delta_bar =
            __fmaf_rn(sums.x, input, __fmul_rn(sums.y, scancheck::LN_2));
        if (curved) delta_bar = __fmul_rn(delta_bar, d.slope);
        write<Storage>(a.delta_bar, to, delta_bar);
      }
      skipped = warp_sum(skipped);
      delta_bar = warp_sum(delta_bar);
      if (lane == row) {
        D_bar = __fadd_rn(D_bar, skipped);
        bias_bar = __fadd_rn(bias_bar, delta_bar);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int state = part * 8 + i;
    if (!exists || state >= a.states) continue;
    if (a.before != nullptr) a.before[own_states + state] = carried[i];
    a.A_sums[own_states + state] = A_bar[i];
    if (CONSTANT_B) a.B_sums[own_states + state] = B_bar[i];
    if (CONSTANT_C) a.C_sums[own_states + state] = C_bar[i];
  }
  if (lane < rows) {
    const long long at = place.batch * a.channels + first + lane;
    if (a.D_sums != nullptr) a.D_sums[at] = D_bar;
    if (a.bias_sums != nullptr) a.bias_sums[at] = bias_bar;
  }
}
