// h <- exp(d A) h + drive, plain and with the rest of h kept.
//
// `scaled` is A log2 e, held inside fp32's range so that d = 0 leaves the state as it is.
#pragma once

#include "selective_scan_functions.cuh"

__device__ __forceinline__ float scaled_decay(float A) {
  const float largest = 3.402823466e38f;
  return fminf(fmaxf(__fmul_rn(A, LOG2_E), -largest), largest);
}

template <class Functions>
struct Plain {
  struct State {
    float value;
  };
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float drive) {
    h.value = __fmaf_rn(Functions::decay(d, scaled), h.value, drive);
  }
};

// Where the decay lies in 2^(+-1/2), the increment (exp(d A) - 1) h + drive is added to
// h and the error of this addition carried, decayed (Kahan, Commun. ACM 8, 1965);
// elsewhere the state is made anew, and what was carried goes into it.
struct Compensated {
  struct State {
    float value, rest;
  };
  static __device__ __forceinline__ void advance(State& h, float d, float scaled,
                                                 float drive) {
    const float shift = 12582912.0f;
    float t = __fmaf_rn(d, scaled, shift);
    t = fminf(fmaxf(t, shift - 126.0f), shift + 128.0f);
    const float n = __fsub_rn(t, shift);
    float f = __fmaf_rn(d, scaled, -n);
    f = fminf(fmaxf(f, -0.5f), 0.5f);
    float q = 0.00015403512225020677f;
    q = __fmaf_rn(q, f, 0.0013390735257416964f);
    q = __fmaf_rn(q, f, 0.009618237614631653f);
    q = __fmaf_rn(q, f, 0.05550357326865196f);
    q = __fmaf_rn(q, f, 0.24022649228572845f);
    q = __fmaf_rn(q, f, 0.6931471824645996f);
    const bool near_one = n == 0.0f;
    const float power = __int_as_float(0x3f800000 + (__float_as_int(t) << 23));
    const float scale = __fmul_rn(f, power);
    const float factor = __fmaf_rn(q, scale, near_one ? 0.0f : power);
    const float kept = near_one ? h.value : 0.0f;
    const float kept_rest = near_one ? h.rest : 0.0f;
    const float increment = __fadd_rn(__fmaf_rn(factor, h.value, drive),
                                      __fmaf_rn(factor, h.rest, kept_rest));
    const float next = __fadd_rn(kept, increment);
    h.rest = __fsub_rn(increment, __fsub_rn(next, kept));
    h.value = next;
  }
};
