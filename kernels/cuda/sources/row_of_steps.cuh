// The steps of one thread of linear_scan: STEPS consecutive ones of COUNT channels.
#pragma once

#include "scan_block.cuh"

// `left`, then a step whose decay is made from `gate`; that step alone where it is first.
template <Variant VARIANT>
__device__ __forceinline__ Affine after_step(bool is_first, const Affine& left, float gate,
                                             float decay, float drive) {
  if constexpr (IN_LOGS<VARIANT>) {
    if (is_first) return {gate, drive, 0.0f, 0.0f};
    return {__fadd_rn(gate, left.decay), __fmaf_rn(decay, left.drive, drive), 0.0f, 0.0f};
  } else {
    const Affine step = {decay, drive, 0.0f, 0.0f};
    return is_first ? step : combined<VARIANT, false>(left, step);
  }
}

// The elements of the steps in registers. They are gone through twice; a decay that takes
// an exponential is made once where FLOATS, and kept: in place of what it was made from,
// or where that has 16 bits, in shared memory.
template <typename T, typename Decay, Variant VARIANT, int COUNT, int STEPS, bool FLOATS>
struct RowOfSteps {
  typedef Packed<T, COUNT> Vector;
  static constexpr bool IN_PLACE = Decay::COSTS && sizeof(T) == 4;
  static constexpr bool IN_SHARED = Decay::COSTS && sizeof(T) == 2 && FLOATS;

  Vector gates[STEPS], drives[STEPS];

  __device__ __forceinline__ void load(const T* a, const T* b, long long a_time,
                                       long long b_time, int valid) {
    if (valid == STEPS) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        gates[s].load(a + s * a_time);
        drives[s].load(b + s * b_time);
      }
    } else {
      // What fills up the last chunk is combined too, into maps that no step is after.
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        gates[s].clear();
        drives[s].clear();
        if (s < valid) {
          gates[s].load(a + s * a_time);
          drives[s].load(b + s * b_time);
        }
      }
    }
  }

  // The maps of all steps, combined in order. `kept`: this thread's part of an array
  // [STEPS][PITCH] of vectors of floats.
  template <int PITCH>
  __device__ __forceinline__ void combine(Affine (&whole)[COUNT],
                                          Packed<float, COUNT>* kept) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      float decays[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const float gate = gates[s].at(i), drive = drives[s].at(i);
        decays[i] = Decay::decay(gate);
        whole[i] = after_step<VARIANT>(s == 0, whole[i], gate, decays[i], drive);
      }
      if constexpr (IN_PLACE) gates[s] = packed<T, COUNT>(decays);
      if constexpr (IN_SHARED) kept[s * PITCH] = packed<float, COUNT>(decays);
    }
  }

  // The states after step s.
  template <int PITCH>
  __device__ __forceinline__ void step(State (&states)[COUNT], int s,
                                       const Packed<float, COUNT>* kept) const {
    constexpr Variant AS = IN_LOGS<VARIANT> ? PLAIN : VARIANT;
    Packed<float, COUNT> decays;
    if constexpr (IN_SHARED) decays = kept[s * PITCH];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      float decay;
      if constexpr (IN_SHARED) {
        decay = decays.at(i);
      } else if constexpr (IN_PLACE) {
        decay = gates[s].at(i);
      } else {
        decay = Decay::decay(gates[s].again(i));
      }
      const Affine map = {decay, drives[s].again(i), 0.0f, 0.0f};
      states[i] = applied<AS, false>(map, states[i]);
    }
  }
};
