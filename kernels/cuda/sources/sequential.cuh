// The scan step by step, COUNT channels a thread: for many channels, or few steps.
#pragma once

#include "carry.cuh"

// Arguments as of the chunked kernels; edges [ceil(length / EVERY), B, D, WORDS] or null
// get the state before every EVERY steps. AHEAD steps are loaded while as many are
// computed.
template <typename T, typename Decay, Variant VARIANT, int COUNT, int LANES, int AHEAD,
          int EVERY>
__global__ void __launch_bounds__(LANES)
    sequential(const T* __restrict__ a, const T* __restrict__ b,
               const float* __restrict__ initial, T* __restrict__ h,
               float* __restrict__ final, float* __restrict__ edges, long long batches,
               long long length, long long channels, long long a_batch,
               long long a_time, long long b_batch, long long b_time) {
  static_assert(EVERY % AHEAD == 0, "edges lie between loads");
  constexpr int WIDTH = LANES * COUNT;
  const long long tiles = (channels + WIDTH - 1) / WIDTH;
  const long long batch = blockIdx.x / tiles;
  const long long channel = blockIdx.x % tiles * WIDTH + threadIdx.x * COUNT;
  if (channel >= channels) return;
  const long long place = batch * channels + channel;
  const T* a_next = a + batch * a_batch + channel;
  const T* b_next = b + batch * b_batch + channel;
  T* h_next = h + batch * length * channels + channel;

  State state[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) state[i] = {initial ? initial[place + i] : 0.0f, 0.0f};
  Packed<T, COUNT> decays[2][AHEAD], drives[2][AHEAD];
  const auto load = [&](int which, long long time) {
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      decays[which][s].clear();
      drives[which][s].clear();
      if (time + s < length) {
        decays[which][s].load(a_next + (time + s) * a_time);
        drives[which][s].load(b_next + (time + s) * b_time);
      }
    }
  };
  const auto step_through = [&](int which, long long time) {
    if (edges && time % EVERY == 0 && time < length) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const long long edge = time / EVERY * batches * channels + place + i;
        put_edge<VARIANT>(edges, edge, state[i]);
      }
    }
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      if (time + s < length) {
        float values[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
          const Affine step =
              step_map<Decay>(decays[which][s].at(i), drives[which][s].at(i));
          state[i] = applied<VARIANT, false>(step, state[i]);
          values[i] = rounded<VARIANT>(state[i]);
        }
        packed<T, COUNT>(values).store(h_next + (time + s) * channels);
      }
    }
  };
  load(0, 0);
  for (long long time = 0; time < length; time += 2 * AHEAD) {
    load(1, time + AHEAD);
    step_through(0, time);
    load(0, time + 2 * AHEAD);
    step_through(1, time + AHEAD);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) final[place + i] = rounded<VARIANT>(state[i]);
}
