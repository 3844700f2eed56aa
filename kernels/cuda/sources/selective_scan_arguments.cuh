// What every forward kernel of selective_scan is given; the host packs it as 64-bit words
// in this order (selective_scan.py). Strides count elements.
#pragma once

struct Arguments {
  // [B, D, L] in storage format; z may be null.
  const void *u, *delta, *z;
  // [B, G, N, L] in storage format, or constant, [D, N] in fp32.
  const void *B, *C;
  // [D, N], [D], [D], [B, D, N]; all but A may be null.
  const float *A, *D, *delta_bias, *initial_state;
  void* y;            // [B, D, L], contiguous
  float* last_state;  // [B, D, N], contiguous
  // [B, ceil(L / E), D, N], contiguous: the state before each E = 2^log2_edge_steps
  // steps; null where they are not kept. Not for the order in time.
  float* edges;
  long long batch, channels, steps, states, groups;
  long long u_batch, u_channel, delta_batch, delta_channel, z_batch, z_channel;
  // Of constant B and C the batch and group strides are 0, and that of channels stands
  // in the place of that of states.
  long long B_batch, B_group, B_state, C_batch, C_group, C_state;
  long long A_channel, initial_batch, initial_channel;
  long long log2_edge_steps;
  long long delta_softplus;
};

// Where one row of a block's work lies.
struct Place {
  long long batch, group, first;  // `first` channel of the block
  int count;                      // its channels that exist
};

// Blocks take `width` channels of one batch row and one group each.
__device__ __forceinline__ Place place_of(const Arguments& a, int width) {
  const unsigned in_group = unsigned(a.channels) / unsigned(a.groups);
  const unsigned per_group = (in_group + width - 1) / width;
  const unsigned row = blockIdx.x / per_group;
  const unsigned inside = (blockIdx.x - row * per_group) * width;
  Place place;
  place.batch = row / unsigned(a.groups);
  place.group = row - unsigned(place.batch) * unsigned(a.groups);
  place.first = place.group * in_group + inside;
  place.count = min(width, int(in_group - inside));
  return place;
}

// Reads at once what the compiler would else wait for in the loop, together with newer
// loads: `one` is 1, which only the device knows.
__device__ __forceinline__ float awaited(float value, float one) {
  return __fmul_rn(value, one);
}

__device__ __forceinline__ float runtime_one(const Arguments& a) {
  return a.steps < 0 ? 2.0f : 1.0f;
}

// Where the state of a channel before `step` is kept, or null where it is not.
__device__ __forceinline__ float* edge_place(const Arguments& a, long long batch,
                                             long long channel, long long step) {
  const long long edge_steps = 1ll << a.log2_edge_steps;
  if (a.edges == nullptr || (step & (edge_steps - 1)) != 0) return nullptr;
  const long long edges = (a.steps + edge_steps - 1) >> a.log2_edge_steps;
  const long long edge = batch * edges + (step >> a.log2_edge_steps);
  return a.edges + (edge * a.channels + channel) * a.states;
}
