// Channels over the warps, their states over two lanes, time in the loop: the kernel for
// many channels and up to 16 states.
//
// A warp has 16 channels; a lane has 8 states of one of them in registers. u, delta and z
// come as rows of 128 bytes, a tile, through cp.async into shared memory, in 16-byte
// vectors whose place is turned by the channel so that no banks collide. B and C of the
// tile lie in shared memory as floats, [step][16 of B, 16 of C]. Two vectors are a
// sub-block: of its steps each lane of a pair has those of one vector, makes d and d u of
// them one sub-block ahead, and y. The pair meets in `meeting` for d and d u, and by one
// shuffle per own step for y. The gated outputs take the place of u and leave as rows.
//
// What a tile needs besides its steps is spread over its sub-blocks: z of this tile with
// the first, with the next two half of the rows of y of the tile before, whose place u
// and delta of the tile to come take. The warps wait for one another only where B and C
// of a tile are not yet stored.
//
// ALIGNED as row_vectors.cuh has it.
#pragma once

#include "gate.cuh"
#include "selective_scan_arguments.cuh"
#include "selective_scan_recurrence.cuh"
#include "selective_scan_rows_staging.cuh"

// The steps of one sub-block: h, and y of the steps that the lane has. Those from `count`
// on do not exist; where it is narrow all do.
template <class Recurrence, bool IS_NARROW, int VECTOR>
__device__ __forceinline__ void walk(typename Recurrence::State (&h)[8],
                                     const float (&scaled)[8], const float* meeting,
                                     const float* key_steps, int half, int count,
                                     float (&outputs)[VECTOR]) {
  constexpr int SUB_BLOCK = 2 * VECTOR;
#pragma unroll
  for (int step = 0; step < SUB_BLOCK; step += 2) {
    const float4 two = reinterpret_cast<const float4*>(meeting)[step / 2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float* const at = key_steps + (step + k) * 32;
      const float4 b[2] = {reinterpret_cast<const float4*>(at)[0],
                           reinterpret_cast<const float4*>(at)[1]};
      const float4 c[2] = {reinterpret_cast<const float4*>(at + 16)[0],
                           reinterpret_cast<const float4*>(at + 16)[1]};
      const float size = k ? two.z : two.x, input = k ? two.w : two.y;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float4 b4 = b[i / 4], c4 = c[i / 4];
        const float B = i % 4 == 0 ? b4.x : i % 4 == 1 ? b4.y : i % 4 == 2 ? b4.z : b4.w;
        const float C = i % 4 == 0 ? c4.x : i % 4 == 1 ? c4.y : i % 4 == 2 ? c4.z : c4.w;
        if (IS_NARROW || step + k < count) {
          Recurrence::template advance<IS_NARROW>(h[i], size, scaled[i], input, B);
        }
        sum = i ? __fmaf_rn(C, h[i].value, sum) : __fmul_rn(C, h[i].value);
      }
      const int at_step = (step + k) % VECTOR;
      if (step + k < VECTOR) {
        outputs[at_step] = sum;
      } else {
        const float sent = half ? outputs[at_step] : sum;
        const float kept = half ? sum : outputs[at_step];
        outputs[at_step] =
            __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, sent, 1));
      }
    }
  }
}

template <class Storage, class Recurrence, int WARPS, int BLOCKS, bool ALIGNED,
          bool EDGES>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    selective_scan_rows(const __grid_constant__ Arguments a) {
  using Functions = typename Recurrence::Functions;
  using Layout = RowsLayout<Storage, WARPS>;
  constexpr int VECTOR = Layout::VECTOR, SUB_BLOCK = Layout::SUB_BLOCK;
  constexpr int TILE = Layout::TILE, ROWS = Layout::ROWS;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int channel = lane / 2, half = lane % 2;
  __shared__ unsigned long long gate_word;
  const unsigned gate = shared_address(&gate_word);
  if (threadIdx.x == 0) Gate::open(gate, WARPS);
  uint4* const u_rows = memory + warp * 5 * ROWS;
  uint4* const delta_rows = u_rows + 2 * ROWS;
  uint4* const z_rows = u_rows + 4 * ROWS;
  float* const keys = reinterpret_cast<float*>(memory + WARPS * 5 * ROWS);
  float* const meeting =
      keys + 3 * Layout::KEYS + (warp * Layout::CHANNELS + channel) * Layout::MEETING;

  const Place place = place_of(a, WARPS * Layout::CHANNELS);
  const long long first = place.first + warp * Layout::CHANNELS;
  const int rows = min(Layout::CHANNELS, place.count - warp * Layout::CHANNELS);
  const bool exists = channel < rows;
  const long long own = exists ? first + channel : place.first;
  const float one = runtime_one(a);

  const int lane_rows = rows - lane / 8;
  const int lane_place = lane / 8 * 8 + (lane % 8 ^ lane / 8 * 2);
  auto source = [&](const void* tensor, long long by_batch, long long by_channel) {
    const long long offset = place.batch * by_batch + (first + lane / 8) * by_channel;
    return RowSource<Storage, ALIGNED>{
        static_cast<const Storage*>(tensor) + offset + lane % 8 * VECTOR,
        4 * by_channel, lane_rows};
  };
  auto u = source(a.u, a.u_batch, a.u_channel);
  auto delta = source(a.delta, a.delta_batch, a.delta_channel);
  auto z = source(a.z, a.z_batch, a.z_channel);
  const int steps = int(a.steps);
  const bool gated = a.z != nullptr;

  const int key = lane % 16;
  const Storage* key_row = nullptr;
  if (key < a.states) {
    key_row = lane < 16 ? static_cast<const Storage*>(a.B) + place.batch * a.B_batch +
                              place.group * a.B_group + key * a.B_state
                        : static_cast<const Storage*>(a.C) + place.batch * a.C_batch +
                              place.group * a.C_group + key * a.C_state;
  }

  // Under way before anything else is read.
  const int lane_step = lane % 8 * VECTOR;  // the first of those it copies of a tile
  KeyFetch<Storage, WARPS, ALIGNED> key_fetch;
  u.template copy<4>(u_rows + lane_place, 0, steps - lane_step);
  delta.template copy<4>(delta_rows + lane_place, 0, steps - lane_step);
  u.next_tile();
  delta.next_tile();
  commit_copies();
  key_fetch.load(key_row, 0, steps);

  float scaled[8];
  typename Recurrence::State h[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int state = half * 8 + i;
    const bool there = exists && state < a.states;
    h[i] = {};
    scaled[i] = there ? scaled_decay(a.A[own * a.A_channel + state]) : 0.0f;
    if (there && a.initial_state != nullptr) {
      h[i].value = awaited(a.initial_state[place.batch * a.initial_batch +
                                           own * a.initial_channel + state],
                           one);
    }
  }
  float largest = 0.0f;  // of the pair's |A log2 e|
#pragma unroll
  for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(scaled[i]));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  const float skip = awaited(a.D != nullptr ? a.D[own] : 0.0f, one);
  const float bias = awaited(a.delta_bias != nullptr ? a.delta_bias[own] : 0.0f, one);

  // This lane's vector of a sub-block in a tile of rows.
  auto vector_of = [&](uint4* tile, int sub_block) {
    return reinterpret_cast<Storage*>(
        tile + channel * 8 + ((2 * sub_block + half) ^ (2 * (channel % 4))));
  };
  const bool curved = a.delta_softplus != 0;
  bool next_narrow = true;  // the sub-block whose d was made last, in the whole warp
  auto step_sizes = [&](int buffer, int sub_block, int first_step,
                        float (&d)[VECTOR], float (&written)[VECTOR]) {
    Packed<Storage, VECTOR> deltas, inputs;
    deltas.load(vector_of(delta_rows + buffer * ROWS, sub_block));
    inputs.load(vector_of(u_rows + buffer * ROWS, sub_block));
    const int left = steps - first_step - (2 * sub_block + half) * VECTOR;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      const float x = __fadd_rn(deltas.at(k), bias);
      // Without a branch, so that all steps interleave with what the caller does.
      const float softplus = Functions::softplus(x);
      // Where ALIGNED a vector exists as a whole or not at all.
      const bool there = ALIGNED ? left > 0 : left > k;
      d[k] = there ? (curved ? softplus : x) : 0.0f;
      written[k] = __fmul_rn(d[k], inputs.at(k));
    }
    if constexpr (HAS_NARROW<Functions>) {
      float longest = 0.0f;
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        longest = scancheck::max_or_nan(longest, fabsf(d[k]));
      }
      next_narrow =
          __all_sync(0xffffffffu, left >= VECTOR && __fmul_rn(longest, largest) <= NARROW);
    }
  };
  auto meet = [&](const float (&d)[VECTOR], const float (&written)[VECTOR]) {
    float4* const to = reinterpret_cast<float4*>(meeting + half * SUB_BLOCK);
#pragma unroll
    for (int k = 0; k < VECTOR; k += 2) {
      to[k / 2] = make_float4(d[k], written[k], d[k + 1], written[k + 1]);
    }
  };

  key_fetch.store(keys);
  await_copies<0>();
  __syncwarp();
  float d[VECTOR], written[VECTOR];
  step_sizes(0, 0, 0, d, written);
  meet(d, written);
  __syncthreads();

  // The finished rows 4 FIRST to 4 FIRST + 4 COUNT of a tile, from where u was.
  Storage* y = static_cast<Storage*>(a.y) +
               (place.batch * a.channels + first + lane / 8) * a.steps + lane_step;
  auto store_rows = [&](int buffer, int first_row, int count, int left) {
    const uint4* const from = u_rows + buffer * ROWS + lane_place;
#pragma unroll
    for (int i = 0; i < count; i++) {
      Packed<Storage, VECTOR> outputs;
      outputs.load(
          reinterpret_cast<const Storage*>(from + (first_row + i) * 4 * 8));
      store_vector<ALIGNED>(y + 4 * (first_row + i) * a.steps, outputs,
                            4 * (first_row + i) < lane_rows ? left : 0);
    }
  };

  int buffer = 0, key_buffer = 0;
  for (int first_step = 0; first_step < steps; first_step += TILE) {
    const int next_step = first_step + TILE;
    const int next_key_buffer = key_buffer == 2 ? 0 : key_buffer + 1;
    const int next_place = (buffer ^ 1) * ROWS + lane_place;
    const int next_left = steps - next_step - lane_step;
#pragma unroll 1
    for (int sub_block = 0; sub_block < 4; sub_block++) {
      if constexpr (EDGES) {
        const int sub_step = first_step + sub_block * SUB_BLOCK;
        if (float* const to = edge_place(a, place.batch, own, sub_step)) {
#pragma unroll
          for (int i = 0; i < 8; i++) {
            if (exists && sub_step < steps && half * 8 + i < a.states) {
              to[half * 8 + i] = h[i].value;
            }
          }
        }
      }
      // Besides its steps each sub-block has a part of what the tile needs.
      if (sub_block == 0) {
        if (gated) {
          z.template copy<4>(z_rows + lane_place, 0, steps - first_step - lane_step);
        }
        z.next_tile();
        key_fetch.load(key_row, next_step, steps);
      } else if (sub_block == 1) {
        if (first_step > 0) store_rows(buffer ^ 1, 0, 2, VECTOR);
        u.template copy<2>(u_rows + next_place, 0, next_left);
        delta.template copy<2>(delta_rows + next_place, 0, next_left);
      } else if (sub_block == 2) {
        if (first_step > 0) store_rows(buffer ^ 1, 2, 2, VECTOR);
        u.template copy<2>(u_rows + next_place, 2, next_left);
        delta.template copy<2>(delta_rows + next_place, 2, next_left);
      }
      commit_copies();
      const int count = steps - first_step - sub_block * SUB_BLOCK;
      if (count <= 0) continue;
      const bool last = sub_block == 3;
      const bool narrow = next_narrow;
      step_sizes(buffer ^ last, (sub_block + 1) % 4, last ? next_step : first_step, d,
                 written);
      float outputs[VECTOR];
      const float* const key_steps = keys + key_buffer * Layout::KEYS +
                                     sub_block * SUB_BLOCK * 32 + half * 8;
      if (!HAS_NARROW<Functions> || narrow) {
        walk<Recurrence, true>(h, scaled, meeting, key_steps, half, count, outputs);
      } else {
        walk<Recurrence, false>(h, scaled, meeting, key_steps, half, count, outputs);
      }
      await_copies<0>();
      __syncwarp();
      Storage* const inputs_at = vector_of(u_rows + buffer * ROWS, sub_block);
      Packed<Storage, VECTOR> inputs, gates;
      inputs.load(inputs_at);
      if (a.D != nullptr) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          outputs[k] = __fmaf_rn(skip, inputs.at(k), outputs[k]);
        }
      }
      if (gated) {
        gates.load(vector_of(z_rows, sub_block));
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          outputs[k] = __fmul_rn(outputs[k], Functions::silu(gates.at(k)));
        }
      }
      packed<Storage, VECTOR>(outputs).store(inputs_at);
      meet(d, written);
      if (sub_block == 0) key_fetch.store(keys + next_key_buffer * Layout::KEYS);
      __syncwarp();
      if (sub_block == 0 && lane == 0) Gate::arrive(gate);
    }
    if (first_step > 0) y += TILE;
    u.next_tile();
    delta.next_tile();
    buffer ^= 1;
    key_buffer = next_key_buffer;
    if (next_step < steps) Gate::pass(gate, first_step / TILE % 2);
  }
  store_rows(buffer ^ 1, 0, 4, steps - (steps - 1) / TILE * TILE - lane_step);

  if (exists) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int state = half * 8 + i;
      if (state < a.states) {
        a.last_state[(place.batch * a.channels + own) * a.states + state] =
            __fadd_rn(h[i].value, 0.0f);
      }
    }
  }
}
