// A channel over a warp, time over its lanes, states in the loop: the kernel for few
// channels.
//
// A tile is one 16-byte vector of steps per lane. Of each state a lane makes the decays
// of its steps, the map over all of them (the decay of the whole is one exponential of A
// times the sum of d), the warp scans these maps, and the lane goes through its steps
// again from the state that it now knows. Between tiles the state lies in shared memory.
// The decays, B and C of INTERLEAVED states are worked on side by side. B and C of a
// tile, 16 states at a time, are copied as they are while the ones before are in use.
//
// Needs rows that begin at multiples of 16 bytes and a length that is one.
#pragma once

#include "asynchronous_copy.cuh"
#include "selective_scan_arguments.cuh"
#include "selective_scan_recurrence.cuh"
#include "storage.cuh"

constexpr int TIME_STATES = 16;  // at a time
constexpr int TIME_INTERLEAVED = 4;

// One round of a scan of maps over the warp's lanes, of several scans side by side: each
// map with that `distance` lanes below. The last round needs no decay of the whole.
template <int COUNT>
__device__ __forceinline__ void combine_from_below(float (&ends)[COUNT],
                                                   float (&whole)[COUNT], int distance,
                                                   bool last) {
  const bool there = int(threadIdx.x % 32) >= distance;
  float ends_below[COUNT], whole_below[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    ends_below[i] = __shfl_up_sync(0xffffffffu, ends[i], distance);
    if (!last) whole_below[i] = __shfl_up_sync(0xffffffffu, whole[i], distance);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    // As one predicated instruction each: the compiler would copy both sides.
    asm("{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %3, 0;\n\t"
        "@there fma.rn.f32 %0, %1, %2, %0;\n\t}"
        : "+f"(ends[i])
        : "f"(whole[i]), "f"(ends_below[i]), "r"(int(there)));
    if (!last) {
      asm("{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %2, 0;\n\t"
          "@there mul.rn.f32 %0, %0, %1;\n\t}"
          : "+f"(whole[i])
          : "f"(whole_below[i]), "r"(int(there)));
    }
  }
}

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

// What a warp does with the states of one block in one tile: adds to the lane's outputs,
// and brings `carry` to the end of the tile.
template <class Storage, class Functions, bool IS_NARROW, int UNROLLED, int VECTOR>
__device__ __forceinline__ void scan_states(const uint4* keys, const float* scaled,
                                            float* carry, const float (&d)[VECTOR],
                                            const float (&written)[VECTOR], float total,
                                            float (&outputs)[VECTOR]) {
  constexpr int STATES = TIME_STATES, SIDE = TIME_INTERLEAVED;
  using Vector = Packed<Storage, VECTOR>;
  const int lane = threadIdx.x % 32;
#pragma unroll UNROLLED
  for (int state = 0; state < STATES; state += SIDE) {
    const float4 scaled4 = *reinterpret_cast<const float4*>(scaled + state);
    const float4 carry4 = *reinterpret_cast<const float4*>(carry + state);
    const float scales[SIDE] = {scaled4.x, scaled4.y, scaled4.z, scaled4.w};
    const float carries[SIDE] = {carry4.x, carry4.y, carry4.z, carry4.w};
    float decays[SIDE][VECTOR], drives[SIDE][VECTOR], ends[SIDE], whole[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
      Vector B;
      B.load(reinterpret_cast<const Storage*>(keys + (state + i) * 32));
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        decays[i][k] = decay_of<Functions, IS_NARROW>(d[k], scales[i]);
        drives[i][k] = __fmul_rn(written[k], B.at(k));
        ends[i] = k ? __fmaf_rn(decays[i][k], ends[i], drives[i][k]) : drives[i][0];
      }
      whole[i] = decay_of<Functions, false>(total, scales[i]);
      if (lane == 0) ends[i] = __fmaf_rn(whole[i], carries[i], ends[i]);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      combine_from_below(ends, whole, distance, distance == 16);
    }
    if (lane == 31) {
      *reinterpret_cast<float4*>(carry + state) =
          make_float4(ends[0], ends[1], ends[2], ends[3]);
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
      const float below = __shfl_up_sync(0xffffffffu, ends[i], 1);
      float h = lane == 0 ? carries[i] : below;
      Vector C;
      C.load(reinterpret_cast<const Storage*>(keys + (STATES + state + i) * 32));
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        h = __fmaf_rn(decays[i][k], h, drives[i][k]);
        outputs[k] = __fmaf_rn(C.at(k), h, outputs[k]);
      }
    }
  }
}

template <class Storage, class Recurrence, int WARPS, int UNROLLED>
__global__ void __launch_bounds__(32 * WARPS, 12 / WARPS)
    selective_scan_time(const __grid_constant__ Arguments a) {
  using Functions = typename Recurrence::Functions;
  constexpr int VECTOR = 16 / sizeof(Storage), TILE = 32 * VECTOR;
  constexpr int STATES = TIME_STATES;
  constexpr int KEYS = 2 * STATES * 32;  // vectors of B and C
  constexpr int ROWS = 3 * 32;           // vectors of a channel's u, delta and z
  using Vector = Packed<Storage, VECTOR>;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int state_blocks = int((a.states + STATES - 1) / STATES);
  uint4* const rows = memory + 2 * KEYS + warp * 2 * ROWS + lane;
  float* const scaled = reinterpret_cast<float*>(memory + 2 * KEYS + WARPS * 2 * ROWS) +
                        warp * 2 * state_blocks * STATES;
  float* const carry = scaled + state_blocks * STATES;

  const Place place = place_of(a, WARPS);
  const bool exists = warp < place.count;
  const long long own = place.first + (exists ? warp : 0);
  float largest = 0.0f;  // of the channel's |A log2 e|
  for (int state = lane; state < state_blocks * STATES; state += 32) {
    const bool there = state < a.states;
    scaled[state] = there ? scaled_decay(a.A[own * a.A_channel + state]) : 0.0f;
    largest = fmaxf(largest, fabsf(scaled[state]));
    carry[state] = there && a.initial_state != nullptr
                       ? a.initial_state[place.batch * a.initial_batch +
                                         own * a.initial_channel + state]
                       : 0.0f;
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const int steps = int(a.steps);
  const float one = runtime_one(a);
  const float skip = awaited(a.D != nullptr ? a.D[own] : 0.0f, one);
  const float bias = awaited(a.delta_bias != nullptr ? a.delta_bias[own] : 0.0f, one);
  const bool gated = a.z != nullptr, curved = a.delta_softplus != 0;

  auto row_of = [&](const void* tensor, long long by_batch, long long by_channel) {
    return static_cast<const Storage*>(tensor) + place.batch * by_batch +
           own * by_channel + lane * VECTOR;
  };
  const Storage* u = row_of(a.u, a.u_batch, a.u_channel);
  const Storage* delta = row_of(a.delta, a.delta_batch, a.delta_channel);
  const Storage* z = row_of(a.z, a.z_batch, a.z_channel);
  Storage* y_row = static_cast<Storage*>(a.y) +
                   (place.batch * a.channels + own) * a.steps + lane * VECTOR;
  // What this lane copies of B and C: some rows of 16 bytes a step block, running.
  constexpr int COPIES = (2 * STATES + WARPS - 1) / WARPS;
  const char* key_from[COPIES];
#pragma unroll
  for (int i = 0; i < COPIES; i++) {
    const int row = warp + i * WARPS, state = row % STATES;
    const bool of_b = row < STATES;
    const Storage* const first =
        of_b ? static_cast<const Storage*>(a.B) + place.batch * a.B_batch +
                   place.group * a.B_group + state * a.B_state
             : static_cast<const Storage*>(a.C) + place.batch * a.C_batch +
                   place.group * a.C_group + state * a.C_state;
    key_from[i] = reinterpret_cast<const char*>(first + lane * VECTOR);
  }
  const unsigned key_to = shared_address(memory + warp * 32 + lane);
  // Of the tile and states that come next.
  auto copy_keys = [&](int buffer, bool steps_exist, int block) {
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      const int row = warp + i * WARPS, state = block * STATES + row % STATES;
      if (row < 2 * STATES) {
        copy_16_bytes(key_to + (buffer * KEYS + i * WARPS * 32) * 16, key_from[i],
                      steps_exist && state < a.states ? 16 : 0);
      }
      if (state_blocks > 1) {
        const long long next = block + 1 < state_blocks ? 1 : -block;
        key_from[i] += next * STATES * (row < STATES ? a.B_state : a.C_state) *
                       (long long)sizeof(Storage);
      }
      if (block + 1 == state_blocks) key_from[i] += 32 * 16;
    }
    commit_copies();
  };

  // Each lane copies what it reads itself: u, delta and z of its steps.
  auto copy_rows = [&](int buffer, bool steps_exist) {
    const unsigned to = shared_address(rows + buffer * ROWS);
    const int bytes = steps_exist ? 16 : 0;
    copy_16_bytes(to, u, bytes);
    copy_16_bytes(to + 32 * 16, delta, bytes);
    if (gated) copy_16_bytes(to + 2 * 32 * 16, z, bytes);
    u += TILE;
    delta += TILE;
    z += TILE;
  };
  auto row_vector = [&](int buffer, int tensor) {
    Vector vector;
    vector.load(reinterpret_cast<const Storage*>(rows + buffer * ROWS + tensor * 32));
    return vector;
  };

  copy_rows(0, lane * VECTOR < steps);
  copy_keys(0, lane * VECTOR < steps, 0);
  int buffer = 0;
  for (int first_step = 0; first_step < steps; first_step += TILE) {
    const bool there = first_step + lane * VECTOR < steps;
    const bool next_there = first_step + TILE + lane * VECTOR < steps;
    const int tile_buffer = first_step / TILE % 2;
    float d[VECTOR], written[VECTOR], outputs[VECTOR];
    float total = 0.0f;
    bool narrow = true;

    for (int block = 0; block < state_blocks; block++) {
      // The keys of this tile and block are there, those before are no longer needed.
      await_copies<0>();
      __syncthreads();
      const bool more = block + 1 < state_blocks;
      if (block == 0) copy_rows(tile_buffer ^ 1, next_there);
      copy_keys(buffer ^ 1, more ? there : next_there, more ? block + 1 : 0);
      if (block == 0) {
        const Vector inputs = row_vector(tile_buffer, 0);
        const Vector deltas = row_vector(tile_buffer, 1);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          const float x = __fadd_rn(deltas.at(k), bias);
          const float softplus = Functions::softplus(x);
          d[k] = there ? (curved ? softplus : x) : 0.0f;
          written[k] = __fmul_rn(d[k], inputs.at(k));
          keep(d[k]);
          keep(written[k]);
          outputs[k] = 0.0f;
        }
        total = pairwise_sum(d);
        keep(total);
        if constexpr (HAS_NARROW<Functions>) {
          float longest = 0.0f;
#pragma unroll
          for (int k = 0; k < VECTOR; k++) {
            longest = scancheck::max_or_nan(longest, fabsf(d[k]));
          }
          narrow = __all_sync(0xffffffffu, __fmul_rn(longest, largest) <= NARROW);
        }
        if (float* const to = edge_place(a, place.batch, own, first_step)) {
          for (int state = lane; exists && state < a.states; state += 32) {
            to[state] = carry[state];
          }
        }
      }
      const uint4* const keys = memory + buffer * KEYS + lane;
      float* const block_scaled = scaled + block * STATES;
      float* const block_carry = carry + block * STATES;
      if (!HAS_NARROW<Functions> || narrow) {
        scan_states<Storage, Functions, true, UNROLLED>(
            keys, block_scaled, block_carry, d, written, total, outputs);
      } else {
        scan_states<Storage, Functions, false, UNROLLED>(
            keys, block_scaled, block_carry, d, written, total, outputs);
      }
      buffer ^= 1;
    }

    if (a.D != nullptr) {
      const Vector inputs = row_vector(tile_buffer, 0);
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        outputs[k] = __fmaf_rn(skip, inputs.at(k), outputs[k]);
      }
    }
    if (gated) {
      const Vector gates = row_vector(tile_buffer, 2);
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        outputs[k] = __fmul_rn(outputs[k], Functions::silu(gates.at(k)));
      }
    }
    if (there && exists) packed<Storage, VECTOR>(outputs).store(y_row);
    y_row += TILE;
  }

  __syncwarp();
  if (exists) {
    for (int state = lane; state < a.states; state += 32) {
      a.last_state[(place.batch * a.channels + own) * a.states + state] =
          __fadd_rn(carry[state], 0.0f);
    }
  }
}
