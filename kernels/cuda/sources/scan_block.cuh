// What the blocks of linear_scan forward and backward share.
#pragma once

#include "affine.cuh"
#include "chain.cuh"
#include "storage.cuh"

// The decay as it is given.
struct GivenDecay {
  static constexpr bool HAS_REST = false;
  static __device__ __forceinline__ Affine step(float a, float b) {
    return {a, b, 0.0f, 0.0f};
  }

  // The decay times x, and the gradient of what is given from that of the decay.
  static __device__ __forceinline__ float times(float a, float x) {
    return __fmul_rn(a, x);
  }
  static __device__ __forceinline__ float gate_bar(float, float decay_bar) {
    return decay_bar;
  }
};

template <Compensation COMP>
struct Carry {
  static constexpr int WORDS = COMP == PLAIN ? 1 : 2;  // per channel

  static __device__ __forceinline__ State await(const Word* words, unsigned flag) {
    State state = {awaited(words, flag), 0.0f};
    if constexpr (COMP != PLAIN) state.rest = awaited(words + 1, flag);
    return state;
  }

  static __device__ __forceinline__ void hand_on(Word* words, unsigned flag, State x) {
    publish(words, flag, x.value);
    if constexpr (COMP != PLAIN) publish(words + 1, flag, x.rest);
  }
};

// Maps of the rows of a chunk by channel, in shared memory.
template <Compensation COMP, int ROWS, int CHANNELS>
struct RowMaps {
  float2 first[ROWS][CHANNELS];  // decay, drive
  float drive_rest[COMP == PLAIN ? 1 : ROWS][COMP == PLAIN ? 1 : CHANNELS];
  float decay_rest[COMP == FULL ? ROWS : 1][COMP == FULL ? CHANNELS : 1];

  __device__ __forceinline__ Affine get(int row, int channel) const {
    const float2 pair = first[row][channel];
    Affine map = {pair.x, pair.y, 0.0f, 0.0f};
    if constexpr (COMP != PLAIN) map.drive_rest = drive_rest[row][channel];
    if constexpr (COMP == FULL) map.decay_rest = decay_rest[row][channel];
    return map;
  }

  __device__ __forceinline__ void put(int row, int channel, const Affine& map) {
    first[row][channel] = make_float2(map.decay, map.drive);
    if constexpr (COMP != PLAIN) drive_rest[row][channel] = map.drive_rest;
    if constexpr (COMP == FULL) decay_rest[row][channel] = map.decay_rest;
  }
};
