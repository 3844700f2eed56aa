// What the blocks of linear_scan forward and backward share.
#pragma once

#include "affine.cuh"
#include "chain.cuh"
#include "storage.cuh"

// How a step's map comes from what is given, and gradients with it. IDENTITY_GATE gives a
// map that changes nothing. COSTS: making a decay takes more than a conversion.
//
// GivenDecay  the decay itself
// ExpDecay    the decay's logarithm, of which the decay is taken here
// LogDecay    the decay's logarithm, kept as it is (for IN_LOGS)
struct GivenDecay {
  static constexpr bool COSTS = false;
  static constexpr float IDENTITY_GATE = 1.0f;

  static __device__ __forceinline__ float decay(float a) { return a; }
  static __device__ __forceinline__ float held(float a) { return a; }
  static __device__ __forceinline__ float gate_bar(float, float decay_bar) {
    return decay_bar;
  }
};

template <typename Functions>
struct ExpDecay {
  static constexpr bool COSTS = true;
  static constexpr float IDENTITY_GATE = 0.0f;

  static __device__ __forceinline__ float decay(float g) { return Functions::exp(g); }
  static __device__ __forceinline__ float held(float g) { return decay(g); }
  static __device__ __forceinline__ float gate_bar(float decay, float decay_bar) {
    return __fmul_rn(decay, decay_bar);
  }
};

template <typename Functions>
struct LogDecay : ExpDecay<Functions> {
  static __device__ __forceinline__ float held(float g) { return g; }
};

template <typename Decay>
__device__ __forceinline__ Affine step_map(float gate, float drive) {
  return {Decay::held(gate), drive, 0.0f, 0.0f};
}

// The chain through chunks, links counted from 0; lane of `lanes` in all. States are
// handed on as Kept holds them.
template <Variant VARIANT, typename Kept = float>
struct Carry {
  static constexpr int WORDS = HAS_RESTS<VARIANT> ? 2 : 1;  // per channel

  static __device__ __forceinline__ Word* words(Word* workspace, long long link,
                                                long long lane, long long lanes) {
    return workspace + 1 + WORDS * (link % IN_TURNS * lanes + lane);
  }

  // What the link before this one handed on.
  static __device__ __forceinline__ State await(Word* workspace, Turn turn,
                                                long long link, long long lane,
                                                long long lanes) {
    const Word* from = words(workspace, link - 1, lane, lanes);
    const unsigned flag = turn.flag + unsigned(link - 1);
    if constexpr (HAS_RESTS<VARIANT>) {
      const float2 two = awaited_two(from, flag);
      return {two.x, two.y};
    }
    return {awaited(from, flag), 0.0f};
  }

  static __device__ __forceinline__ void hand_on(Word* workspace, Turn turn,
                                                 long long link, long long lane,
                                                 long long lanes, State state) {
    Word* to = words(workspace, link, lane, lanes);
    const unsigned flag = turn.flag + unsigned(link);
    publish(to, flag, stored<Kept>(state.value));
    if constexpr (HAS_RESTS<VARIANT>) publish(to + 1, flag, state.rest);
  }
};

// Maps of the rows of a chunk by channel, in shared memory. PITCH is CHANNELS, or one
// more where lanes run along the rows, so that they use different banks.
template <Variant VARIANT, int ROWS, int CHANNELS, int PITCH = CHANNELS>
struct RowMaps {
  float2 first[ROWS][PITCH];  // decay, drive
  float drive_rest[HAS_RESTS<VARIANT> ? ROWS : 1][HAS_RESTS<VARIANT> ? PITCH : 1];
  float decay_rest[VARIANT == FULL ? ROWS : 1][VARIANT == FULL ? PITCH : 1];

  __device__ __forceinline__ Affine get(int row, int channel) const {
    const float2 pair = first[row][channel];
    Affine map = {pair.x, pair.y, 0.0f, 0.0f};
    if constexpr (HAS_RESTS<VARIANT>) map.drive_rest = drive_rest[row][channel];
    if constexpr (VARIANT == FULL) map.decay_rest = decay_rest[row][channel];
    return map;
  }

  __device__ __forceinline__ void put(int row, int channel, const Affine& map) {
    first[row][channel] = make_float2(map.decay, map.drive);
    if constexpr (HAS_RESTS<VARIANT>) drive_rest[row][channel] = map.drive_rest;
    if constexpr (VARIANT == FULL) decay_rest[row][channel] = map.decay_rest;
  }
};
