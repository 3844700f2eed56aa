// h <- exp(d A) h + written B, plain and with the rest of h kept.
//
// `scaled` is A log2 e, held inside fp32's range so that d = 0 leaves the state as it is.
#pragma once

#include "functions.cuh"

__device__ __forceinline__ float scaled_decay(float A) {
  const float largest = 0x1.fffffep+127f;
  const float scaled = __fmul_rn(A, scancheck::LOG2_E);
  return scancheck::min_or_nan(scancheck::max_or_nan(scaled, -largest), largest);
}

// Largest |d A log2 e| for which the recurrences may be told that it IS_NARROW.
constexpr float NARROW = 126.0f;

// Whether this saves anything.
template <class Functions>
constexpr bool HAS_NARROW = true;
template <>
constexpr bool HAS_NARROW<scancheck::Fast> = false;
template <>
constexpr bool HAS_NARROW<scancheck::Tabulated> = false;

// 2^(d scaled); the same bits whether narrow or not.
template <class Functions, bool IS_NARROW>
__device__ __forceinline__ float decay_of(float d, float scaled) {
  if constexpr (HAS_NARROW<Functions> && IS_NARROW) {
    const float shifted = __fmaf_rn(d, scaled, scancheck::SHIFT);
    const float f = __fmaf_rn(d, scaled, -__fsub_rn(shifted, scancheck::SHIFT));
    return scancheck::scaled(scancheck::exp2_fraction(f), shifted);
  } else {
    return Functions::exp2_product(d, scaled);
  }
}

template <class Functions_>
struct Plain {
  using Functions = Functions_;
  struct State {
    float value;
  };

  template <bool IS_NARROW>
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float written, float B) {
    const float drive = __fmul_rn(written, B);
    h.value = __fmaf_rn(decay_of<Functions, IS_NARROW>(d, scaled), h.value, drive);
  }
};

// Where the decay lies in 2^(+-1/2), the increment (exp(d A) - 1) h + written B is added
// to h and the error of this addition carried, decayed (Kahan, Commun. ACM 8, 1965);
// elsewhere the state is made anew, and what was carried goes into it. The largest part
// of an increment with slow gates, written B, enters last and is rounded with it alone.
struct Compensated {
  using Functions = scancheck::Reproducible;
  struct State {
    float value, rest;
  };

  template <bool IS_NARROW>
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float written, float B) {
    using namespace scancheck;
    const float shifted = __fmaf_rn(d, scaled, SHIFT);
    const float n = __fsub_rn(shifted, SHIFT);
    const float f = __fmaf_rn(d, scaled, -n);
    const bool near_one = n == 0.0f;
    // 2^f - 1, or 2^(n + f).
    float factor = __fmaf_rn(f, exp2_fraction_rest(f), near_one ? 0.0f : 1.0f);
    if (!near_one) {
      factor = IS_NARROW ? scancheck::scaled(factor, shifted)
                         : Functions::exp2_product(d, scaled);
    }
    const float kept = near_one ? h.value : 0.0f;
    const float kept_rest = near_one ? h.rest : 0.0f;
    const float change =
        __fmaf_rn(factor, h.value, __fmaf_rn(factor, h.rest, kept_rest));
    const float increment = __fmaf_rn(written, B, change);
    const float next = __fadd_rn(kept, increment);
    h.rest = __fsub_rn(increment, __fsub_rn(next, kept));
    h.value = next;
  }

 private:
  // (2^f - 1) / f, |f| <= 1/2: as in exp2_fraction.
  static __device__ __forceinline__ float exp2_fraction_rest(float f) {
    return scancheck::polynomial(f, scancheck::EXP2);
  }
};
