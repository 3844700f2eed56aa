// The states before chunks from the totals of chunks, for two passes over the data.
//
// totals [chunks - 1, lanes]: the combination of each chunk's steps; initial [lanes] or
// null; edges [chunks, lanes, WORDS]: the state before each chunk and its rest.
#pragma once

#include "rows.cuh"

__device__ __forceinline__ Affine from_four(float4 x) { return {x.x, x.y, x.z, x.w}; }
__device__ __forceinline__ float4 as_four(const Affine& map) {
  return make_float4(map.decay, map.drive, map.decay_rest, map.drive_rest);
}

template <Variant VARIANT>
__device__ __forceinline__ void put_edge(float* edges, long long place, State state) {
  constexpr int WORDS = Carry<VARIANT>::WORDS;
  edges[WORDS * place] = state.value;
  if constexpr (HAS_RESTS<VARIANT>) edges[WORDS * place + 1] = state.rest;
}

// One total after another.
template <Variant VARIANT>
__global__ void __launch_bounds__(128)
    carry_in_order(const float4* __restrict__ totals, const float* __restrict__ initial,
                   float* __restrict__ edges, long long chunks, long long lanes) {
  const long long lane = blockIdx.x * 128ll + threadIdx.x;
  if (lane >= lanes) return;
  State state = {initial ? initial[lane] : 0.0f, 0.0f};
  put_edge<VARIANT>(edges, lane, state);
  for (long long k = 1; k < chunks; k++) {
    const Affine total = from_four(totals[(k - 1) * lanes + lane]);
    state = applied<VARIANT, true>(total, state);
    put_edge<VARIANT>(edges, k * lanes + lane, state);
  }
}

// A tree whose shape depends on the number of chunks alone: each of GROUPS groups takes
// an equal number of consecutive totals in order, the groups are combined by doubling.
template <Variant VARIANT, int LANES, int GROUPS>
__global__ void __launch_bounds__(LANES* GROUPS)
    carry_by_doubling(const float4* __restrict__ totals,
                      const float* __restrict__ initial, float* __restrict__ edges,
                      long long chunks, long long lanes) {
  __shared__ RowMaps<VARIANT, GROUPS, LANES> maps[2];
  const int group = threadIdx.y;
  const long long lane = (long long)(blockIdx.x) * LANES + threadIdx.x;
  const long long count = chunks - 1;
  const long long each = (count + GROUPS - 1) / GROUPS;
  const long long first = group * each;
  const long long end = first + each < count ? first + each : count;
  const bool takes = lane < lanes && first < end;
  // What groups without totals hold is combined too, and used by none.
  Affine whole = {0.0f, 0.0f, 0.0f, 0.0f};
  if (takes) {
    whole = from_four(totals[first * lanes + lane]);
    for (long long k = first + 1; k < end; k++) {
      whole = combined<VARIANT, true>(whole, from_four(totals[k * lanes + lane]));
    }
  }
  maps[0].put(group, threadIdx.x, whole);
  __syncthreads();
  combine_in_shared<1>(maps, group, threadIdx.x);
  __syncthreads();
  if (lane >= lanes) return;
  State state = {initial ? initial[lane] : 0.0f, 0.0f};
  if (group == 0) put_edge<VARIANT>(edges, lane, state);
  if (!takes) return;
  if (group > 0) state = applied<VARIANT, true>(maps[0].get(group, threadIdx.x), state);
  for (long long k = first; k < end; k++) {
    state = applied<VARIANT, true>(from_four(totals[k * lanes + lane]), state);
    put_edge<VARIANT>(edges, (k + 1) * lanes + lane, state);
  }
}
