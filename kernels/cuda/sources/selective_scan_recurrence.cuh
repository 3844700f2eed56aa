// h <- exp(d A) h + drive, plain and with the rest of h kept.
//
// `scaled` is A log2 e, held inside fp32's range so that d = 0 leaves the state as it is.
#pragma once

#include "functions.cuh"

__device__ __forceinline__ float scaled_decay(float A) {
  const float largest = 0x1.fffffep+127f;
  const float scaled = __fmul_rn(A, scancheck::LOG2_E);
  return scancheck::min_or_nan(scancheck::max_or_nan(scaled, -largest), largest);
}

// Largest |d A log2 e| for which `advance<true>` may be used.
constexpr float NARROW = 126.0f;

template <class Functions>
struct Plain {
  struct State {
    float value;
  };
  // Whether it is worth knowing that all exponents lie within NARROW.
  static constexpr bool HAS_NARROW = Functions::HAS_NARROW;

  template <bool IS_NARROW>
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float drive) {
    const float x = __fmul_rn(d, scaled);
    const float decay = IS_NARROW ? Functions::exp2_in_range(x) : Functions::exp2_(x);
    h.value = __fmaf_rn(decay, h.value, drive);
  }
};

// Where the decay lies in 2^(+-1/2), the increment (exp(d A) - 1) h + drive is added to
// h and the error of this addition carried, decayed (Kahan, Commun. ACM 8, 1965);
// elsewhere the state is made anew, and what was carried goes into it.
struct Compensated {
  struct State {
    float value, rest;
  };
  static constexpr bool HAS_NARROW = true;

  template <bool IS_NARROW>
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float drive) {
    using namespace scancheck;
    float x = __fmul_rn(d, scaled);
    if (!IS_NARROW) x = min_or_nan(max_or_nan(x, EXP2_LOWEST), EXP2_HIGHEST);
    const float shifted = __fadd_rn(x, SHIFT);
    const float n = __fsub_rn(shifted, SHIFT);
    const float f = __fsub_rn(x, n);
    float p = __fmaf_rn(f, EXP2_5, EXP2_4);
    p = __fmaf_rn(f, p, EXP2_3);
    p = __fmaf_rn(f, p, EXP2_2);
    p = __fmaf_rn(f, p, EXP2_1);
    p = __fmaf_rn(f, p, EXP2_0);
    const bool near_one = n == 0.0f;
    // 2^f - 1, or 2^(n + f).
    float factor = __fmaf_rn(f, p, near_one ? 0.0f : 1.0f);
    const float power = scancheck::scaled(factor, shifted);
    factor = near_one ? factor : IS_NARROW ? power : flushed(x, power);
    const float kept = near_one ? h.value : 0.0f;
    const float kept_rest = near_one ? h.rest : 0.0f;
    const float increment = __fadd_rn(__fmaf_rn(factor, h.value, drive),
                                      __fmaf_rn(factor, h.rest, kept_rest));
    const float next = __fadd_rn(kept, increment);
    h.rest = __fsub_rn(increment, __fsub_rn(next, kept));
    h.value = next;
  }
};
