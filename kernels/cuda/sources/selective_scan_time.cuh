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

// One round of a scan of maps over the warp's lanes: with the map `DISTANCE` lanes below.
template <int DISTANCE>
__device__ __forceinline__ void combine_from_below(float& end, float& decay) {
  asm volatile(
      "{\n\t"
      ".reg .f32 below_end, below_decay;\n\t"
      ".reg .pred there;\n\t"
      "shfl.sync.up.b32 below_end|there, %0, %2, 0, 0xffffffff;\n\t"
      "shfl.sync.up.b32 below_decay, %1, %2, 0, 0xffffffff;\n\t"
      "@there fma.rn.f32 %0, %1, below_end, %0;\n\t"
      "@there mul.rn.f32 %1, %1, below_decay;\n\t"
      "}"
      : "+f"(end), "+f"(decay)
      : "n"(DISTANCE));
}

// The last round, after which no decay is needed.
__device__ __forceinline__ void combine_last(float& end, float decay) {
  asm volatile(
      "{\n\t"
      ".reg .f32 below_end;\n\t"
      ".reg .pred there;\n\t"
      "shfl.sync.up.b32 below_end|there, %0, 16, 0, 0xffffffff;\n\t"
      "@there fma.rn.f32 %0, %1, below_end, %0;\n\t"
      "}"
      : "+f"(end)
      : "f"(decay));
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

template <class Storage, class Functions, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 12 / WARPS)
    selective_scan_time(const __grid_constant__ Arguments a) {
  constexpr int VECTOR = 16 / sizeof(Storage), TILE = 32 * VECTOR;
  constexpr int STATES = TIME_STATES, SIDE = TIME_INTERLEAVED;
  constexpr int KEYS = 2 * STATES * 32;  // vectors of B and C
  using Vector = Packed<Storage, VECTOR>;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int state_blocks = int((a.states + STATES - 1) / STATES);
  float* const scaled =
      reinterpret_cast<float*>(memory + 2 * KEYS) + warp * 2 * state_blocks * STATES;
  float* const carry = scaled + state_blocks * STATES;

  const Place place = place_of(a, WARPS);
  const bool exists = warp < place.count;
  const long long own = place.first + (exists ? warp : 0);
  for (int state = lane; state < state_blocks * STATES; state += 32) {
    const bool there = state < a.states;
    scaled[state] = there ? scaled_decay(a.A[own * a.A_channel + state]) : 0.0f;
    carry[state] = there && a.initial_state != nullptr
                       ? a.initial_state[place.batch * a.initial_batch +
                                         own * a.initial_channel + state]
                       : 0.0f;
  }
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
  const Storage* const B_rows = static_cast<const Storage*>(a.B) +
                                place.batch * a.B_batch + place.group * a.B_group +
                                lane * VECTOR;
  const Storage* const C_rows = static_cast<const Storage*>(a.C) +
                                place.batch * a.C_batch + place.group * a.C_group +
                                lane * VECTOR;
  auto copy_keys = [&](int buffer, long long first_step, int block) {
    const bool steps_exist = first_step + lane * VECTOR < a.steps;
#pragma unroll
    for (int i = 0; i < (2 * STATES + WARPS - 1) / WARPS; i++) {
      const int row = warp + i * WARPS, state = block * STATES + row % STATES;
      if (row < 2 * STATES) {
        const bool there = steps_exist && state < a.states;
        const Storage* from = row < STATES ? B_rows + state * a.B_state
                                           : C_rows + state * a.C_state;
        copy_16_bytes(shared_address(memory + buffer * KEYS + row * 32 + lane),
                      from + first_step, there ? 16 : 0);
      }
    }
    commit_copies();
  };

  Vector next_u, next_delta, next_z;
  auto read_rows = [&](long long first_step) {
    next_u.clear();
    next_delta.clear();
    next_z.clear();
    if (first_step + lane * VECTOR < a.steps) {
      next_u.load(u);
      next_delta.load(delta);
      if (gated) next_z.load(z);
    }
    u += TILE;
    delta += TILE;
    z += TILE;
  };

  read_rows(0);
  copy_keys(0, 0, 0);
  int buffer = 0;
  const long long chunks =
      a.edges == nullptr ? 0 : (a.steps + a.edge_steps - 1) / a.edge_steps;
  for (long long first_step = 0; first_step < a.steps; first_step += TILE) {
    const bool there = first_step + lane * VECTOR < a.steps;
    const Vector inputs = next_u, gates = next_z;
    float d[VECTOR], written[VECTOR], outputs[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      const float x = __fadd_rn(next_delta.at(k), bias);
      const float softplus = Functions::softplus(x);
      d[k] = there ? (curved ? softplus : x) : 0.0f;
      written[k] = __fmul_rn(d[k], inputs.at(k));
      keep(d[k]);
      keep(written[k]);
      outputs[k] = 0.0f;
    }
    float total = pairwise_sum(d);
    keep(total);
    read_rows(first_step + TILE);

    for (int block = 0; block < state_blocks; block++) {
      await_copies<0>();
      __syncthreads();
      const bool more = block + 1 < state_blocks;
      if (more || first_step + TILE < a.steps) {
        copy_keys(buffer ^ 1, more ? first_step : first_step + TILE,
                  more ? block + 1 : 0);
      }
      if (a.edges != nullptr && block == 0 && first_step % a.edge_steps == 0 && exists) {
        float* const to =
            a.edges +
            ((place.batch * chunks + first_step / a.edge_steps) * a.channels + own) *
                a.states;
        for (int state = lane; state < a.states; state += 32) to[state] = carry[state];
      }
      const uint4* const keys = memory + buffer * KEYS + lane;
      float* const block_scaled = scaled + block * STATES;
      float* const block_carry = carry + block * STATES;
#pragma unroll
      for (int state = 0; state < STATES; state += SIDE) {
        const float4 scaled4 = *reinterpret_cast<const float4*>(block_scaled + state);
        const float4 carry4 = *reinterpret_cast<const float4*>(block_carry + state);
        const float scales[SIDE] = {scaled4.x, scaled4.y, scaled4.z, scaled4.w};
        const float carries[SIDE] = {carry4.x, carry4.y, carry4.z, carry4.w};
        float decays[SIDE][VECTOR], drives[SIDE][VECTOR], ends[SIDE], whole[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
          Vector B;
          B.load(reinterpret_cast<const Storage*>(keys + (state + i) * 32));
#pragma unroll
          for (int k = 0; k < VECTOR; k++) {
            decays[i][k] = Functions::exp2_(__fmul_rn(d[k], scales[i]));
            drives[i][k] = __fmul_rn(written[k], B.at(k));
            ends[i] = k ? __fmaf_rn(decays[i][k], ends[i], drives[i][k]) : drives[i][0];
          }
          whole[i] = Functions::exp2_(__fmul_rn(total, scales[i]));
          if (lane == 0) ends[i] = __fmaf_rn(whole[i], carries[i], ends[i]);
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++) combine_from_below<1>(ends[i], whole[i]);
#pragma unroll
        for (int i = 0; i < SIDE; i++) combine_from_below<2>(ends[i], whole[i]);
#pragma unroll
        for (int i = 0; i < SIDE; i++) combine_from_below<4>(ends[i], whole[i]);
#pragma unroll
        for (int i = 0; i < SIDE; i++) combine_from_below<8>(ends[i], whole[i]);
#pragma unroll
        for (int i = 0; i < SIDE; i++) combine_last(ends[i], whole[i]);
        if (lane == 31) {
          *reinterpret_cast<float4*>(block_carry + state) =
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
      buffer ^= 1;
    }

    if (a.D != nullptr) {
#pragma unroll
      for (int k = 0; k < VECTOR; k++) {
        outputs[k] = __fmaf_rn(skip, inputs.at(k), outputs[k]);
      }
    }
    if (gated) {
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
