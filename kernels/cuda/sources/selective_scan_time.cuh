// A channel over a warp, time over its lanes, states in the loop: the kernel for few
// channels.
//
// A tile is one 16-byte vector of steps per lane. Four states are worked on side by side:
//
//   of each state a lane makes the decays and drives of its steps, and where they lead
//       from 0, its end;
//   through shared memory the lanes change sides: of four neighbours, a group, each gets
//       all ends of one state. The decay over a lane's steps is one exponential of A
//       times the sum of d. From its four ends a lane makes the group's map; the eight
//       maps of a state are scanned by shuffles; that gives the state before the group,
//       and step by step before each of its lanes;
//   back through shared memory a lane learns the state before its steps, and goes
//       through them again.
//
// Between tiles the state lies in shared memory. B and C of a tile, 16 states at a time,
// are copied as they are while the ones before are in use.
//
// ALIGNED as row_vectors.cuh has it.
#pragma once

#include "gate.cuh"
#include "row_vectors.cuh"
#include "selective_scan_arguments.cuh"
#include "selective_scan_time_steps.cuh"

// What a lane knows of the steps of one tile.
template <int VECTOR>
struct TileSteps {
  float d[VECTOR], written[VECTOR];
  float lanes[TIME_SIDE];  // sums of d over the steps of each lane of the group
  float group;             // over all of them
};

// From the ends of the four lanes of a group, of the lane's state, to the states before
// them; `carry`, the state before the tile, becomes that behind it.
template <class Functions>
__device__ __forceinline__ void scan_groups(float* at, float scaled, float* carry,
                                            const float (&lanes)[TIME_SIDE],
                                            float group) {
  const int lane = threadIdx.x % 32;
  const float4 four = *reinterpret_cast<const float4*>(at);
  const float ends[TIME_SIDE] = {four.x, four.y, four.z, four.w};
  float decays[TIME_SIDE];
#pragma unroll
  for (int i = 0; i < TIME_SIDE; i++) {
    decays[i] = decay_of<Functions, false>(lanes[i], scaled);
  }
  float whole = decay_of<Functions, false>(group, scaled);
  float end = ends[0];
#pragma unroll
  for (int i = 1; i < TIME_SIDE; i++) end = __fmaf_rn(decays[i], end, ends[i]);
  const float before = *carry;
  if (lane < TIME_SIDE) end = __fmaf_rn(whole, before, end);
#pragma unroll
  for (int distance = TIME_SIDE; distance < 32; distance *= 2) {
    const float end_below = __shfl_up_sync(0xffffffffu, end, distance);
    const float whole_below = __shfl_up_sync(0xffffffffu, whole, distance);
    if (lane >= distance) {
      end = __fmaf_rn(whole, end_below, end);
      whole = __fmul_rn(whole, whole_below);
    }
  }
  const float below = __shfl_up_sync(0xffffffffu, end, TIME_SIDE);
  float states[TIME_SIDE];
  states[0] = lane < TIME_SIDE ? before : below;
#pragma unroll
  for (int i = 1; i < TIME_SIDE; i++) {
    states[i] = __fmaf_rn(decays[i - 1], states[i - 1], ends[i - 1]);
  }
  *reinterpret_cast<float4*>(at) =
      make_float4(states[0], states[1], states[2], states[3]);
  // After the shuffles, so that every lane has read it.
  if (lane >= 32 - TIME_SIDE) *carry = end;
}

template <class Storage, class Recurrence, int WARPS, bool ALIGNED, bool MANY_STATES>
__global__ void __launch_bounds__(32 * WARPS, 12 / WARPS)
    selective_scan_time(const __grid_constant__ Arguments a) {
  using Functions = typename Recurrence::Functions;
  constexpr int VECTOR = 16 / sizeof(Storage), TILE = 32 * VECTOR;
  constexpr int STATES = TIME_STATES;
  constexpr int KEYS = 2 * STATES * 32;  // vectors of B and C
  constexpr int ROWS = 3 * 32;           // vectors of a channel's u, delta and z
  using Vector = Packed<Storage, VECTOR>;
  extern __shared__ uint4 memory[];
  __shared__ unsigned long long gate_word;
  const unsigned gate = shared_address(&gate_word);
  if (threadIdx.x == 0) Gate::open(gate, WARPS);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = lane % TIME_SIDE;  // the state, of four, that the lane scans
  const int state_blocks = MANY_STATES ? int((a.states + STATES - 1) / STATES) : 1;
  uint4* const rows = memory + 3 * KEYS + warp * 2 * ROWS + lane;
  float* const ends = reinterpret_cast<float*>(memory + 3 * KEYS + WARPS * 2 * ROWS) +
                      warp * (TIME_SIDE * TIME_ENDS + 2 * state_blocks * STATES);
  float* const scaled = ends + TIME_SIDE * TIME_ENDS;
  float* const carry = scaled + state_blocks * STATES;

  const Place place = place_of(a, WARPS);
  const bool exists = warp < place.count;
  const long long own = place.first + (exists ? warp : 0);
  const int steps = int(a.steps);
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
  // What this lane copies of B and C: some rows, a vector of each tile and state block.
  constexpr int COPIES = (2 * STATES + WARPS - 1) / WARPS;
  const Storage* key_from[COPIES];
  bool key_exists[COPIES];
#pragma unroll
  for (int i = 0; i < COPIES; i++) {
    const int row = warp + i * WARPS, state = row % STATES;
    const Storage* const first =
        row < STATES ? static_cast<const Storage*>(a.B) + place.batch * a.B_batch +
                           place.group * a.B_group + state * a.B_state
                     : static_cast<const Storage*>(a.C) + place.batch * a.C_batch +
                           place.group * a.C_group + state * a.C_state;
    key_from[i] = first + lane * VECTOR;
    key_exists[i] = state < a.states;
  }
  uint4* const key_place = memory + warp * 32 + lane;
  // Of the tile and states that come next, of which `left` steps exist.
  auto copy_keys = [&](int buffer, int left, int block) {
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      const int row = warp + i * WARPS;
      if (MANY_STATES) key_exists[i] = block * STATES + row % STATES < a.states;
      if (row < 2 * STATES) {
        copy_vector<ALIGNED>(key_place + buffer * KEYS + i * WARPS * 32, key_from[i],
                             key_exists[i] ? left : 0);
      }
      if (MANY_STATES) {
        const long long next = block + 1 < state_blocks ? 1 : -block;
        key_from[i] += next * STATES * (row < STATES ? a.B_state : a.C_state);
      }
      if (block + 1 == state_blocks) key_from[i] += TILE;
    }
    commit_copies();
  };

  // Each lane copies what it reads itself: u, delta and z of its steps.
  auto copy_rows = [&](int buffer, int left) {
    uint4* const to = rows + buffer * ROWS;
    copy_vector<ALIGNED>(to, u, left);
    copy_vector<ALIGNED>(to + 32, delta, left);
    if (gated) copy_vector<ALIGNED>(to + 2 * 32, z, left);
    u += TILE;
    delta += TILE;
    z += TILE;
  };
  auto row_vector = [&](int buffer, int tensor) {
    Vector vector;
    vector.load(reinterpret_cast<const Storage*>(rows + buffer * ROWS + tensor * 32));
    return vector;
  };

  copy_rows(0, steps - lane * VECTOR);
  copy_keys(0, steps - lane * VECTOR, 0);
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
  const float one = runtime_one(a);
  const float skip = awaited(a.D != nullptr ? a.D[own] : 0.0f, one);
  const float bias = awaited(a.delta_bias != nullptr ? a.delta_bias[own] : 0.0f, one);
  await_copies<0>();
  __syncthreads();
  int key_buffer = 0, parity = 0;
  for (int first_step = 0; first_step < steps; first_step += TILE) {
    const int left = steps - first_step - lane * VECTOR;
    const int row_buffer = first_step / TILE % 2;
    TileSteps<VECTOR> tile;
    float outputs[VECTOR];
    bool narrow = true;

    for (int block = 0; block < (MANY_STATES ? state_blocks : 1); block++) {
      const bool more = MANY_STATES && block + 1 < state_blocks;
      const int next_key_buffer = key_buffer == 2 ? 0 : key_buffer + 1;
      if (!more) copy_rows(row_buffer ^ 1, left - TILE);
      copy_keys(next_key_buffer, more ? left : left - TILE, more ? block + 1 : 0);
      if (block == 0) {
        const Vector inputs = row_vector(row_buffer, 0);
        const Vector deltas = row_vector(row_buffer, 1);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          const float x = __fadd_rn(deltas.at(k), bias);
          const float softplus = Functions::softplus(x);
          // Where ALIGNED a vector exists as a whole or not at all.
          const bool there = ALIGNED ? left > 0 : left > k;
          tile.d[k] = there ? (curved ? softplus : x) : 0.0f;
          tile.written[k] = __fmul_rn(tile.d[k], inputs.at(k));
          keep(tile.d[k]);
          keep(tile.written[k]);
          outputs[k] = 0.0f;
        }
        const float total = pairwise_sum(tile.d);
#pragma unroll
        for (int i = 0; i < TIME_SIDE; i++) {
          tile.lanes[i] = __shfl_sync(0xffffffffu, total, i, TIME_SIDE);
        }
        tile.group = pairwise_sum(tile.lanes);
        if constexpr (HAS_NARROW<Functions>) {
          float longest = 0.0f;
#pragma unroll
          for (int k = 0; k < VECTOR; k++) {
            longest = scancheck::max_or_nan(longest, fabsf(tile.d[k]));
          }
          narrow = __all_sync(0xffffffffu, __fmul_rn(longest, largest) <= NARROW);
        }
      }
      const uint4* const keys = memory + key_buffer * KEYS + lane;
      // The hardware's exponentials of the next four states fill the time that these
      // take to scan.
      constexpr int SIDES = STATES / TIME_SIDE;
      constexpr bool AHEAD = !HAS_NARROW<Functions>;
      float decays[2][TIME_SIDE][VECTOR];
      if (AHEAD) {
        make_decays<Functions>(decays[0], tile.d, scaled + block * STATES, narrow);
      }
#pragma unroll(AHEAD ? SIDES : 1)
      for (int side = 0; side < SIDES; side++) {
        const uint4* const at_keys = keys + side * TIME_SIDE * 32;
        const int at = block * STATES + side * TIME_SIDE;
        float(&now)[TIME_SIDE][VECTOR] = decays[AHEAD ? side % 2 : 0];
        float(&next)[TIME_SIDE][VECTOR] = decays[AHEAD ? (side + 1) % 2 : 1];
        float drives[TIME_SIDE][VECTOR];
        if (!AHEAD) make_decays<Functions>(now, tile.d, scaled + at, narrow);
        make_ends<Storage>(at_keys, tile.written, now, drives, ends + lane);
        __syncwarp();
        if (AHEAD && side + 1 < SIDES) {
          make_decays<Functions>(next, tile.d, scaled + at + TIME_SIDE, narrow);
        }
        scan_groups<Functions>(ends + part * TIME_ENDS + lane - part, scaled[at + part],
                               carry + at + part, tile.lanes, tile.group);
        __syncwarp();
        go_through<Storage>(at_keys, ends + lane, now, drives, outputs);
        if (side == SIDES / 2) {
          // What this lane copies is long here; now all may use it.
          await_copies<0>();
          __syncwarp();
          if (lane == 0) Gate::arrive(gate);
        }
      }
      key_buffer = next_key_buffer;
      if (more) {
        Gate::pass(gate, parity);
        parity ^= 1;
      }
    }

    if (a.D != nullptr) {
      const Vector inputs = row_vector(row_buffer, 0);
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        outputs[k] = __fmaf_rn(skip, inputs.at(k), outputs[k]);
      }
    }
    if (gated) {
      const Vector gates = row_vector(row_buffer, 2);
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        outputs[k] = __fmul_rn(outputs[k], Functions::silu(gates.at(k)));
      }
    }
    store_vector<ALIGNED>(y_row, packed<Storage, VECTOR>(outputs), exists ? left : 0);
    y_row += TILE;
    Gate::pass(gate, parity);
    parity ^= 1;
  }

  __syncwarp();
  if (exists) {
    for (int state = lane; state < a.states; state += 32) {
      a.last_state[(place.batch * a.channels + own) * a.states + state] =
          __fadd_rn(carry[state], 0.0f);
    }
  }
}
