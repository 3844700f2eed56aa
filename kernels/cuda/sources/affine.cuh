// Affine maps S -> (decay + decay_rest) S + drive + drive_rest, plain and compensated.
//
// Every operation is one rounding, as written; kernels/models/cuda_linear_scan.py does
// the same ones. A rest that a variant does not have is never read.
//
// plain  the drive is one fma
// kahan  the product is rounded; the error of the addition is kept in the rest
//        (Neumaier, ZAMM 54, 1974)
// full   the errors of product and addition are kept, and that of the decay (compensated
//        Horner scheme: Graillat, Langlois and Louvet, Japan J. Indust. Appl. Math. 26,
//        2009)
// log    as plain, but a map holds the logarithm of its decay: decays are combined by
//        adding, so that a product of decays that leaves the range does no harm;
//        with the reproducible or the fast exponential
#pragma once

#include "functions.cuh"

enum Variant { PLAIN, KAHAN, FULL, LOG, FAST_LOG };

template <Variant VARIANT>
constexpr bool HAS_RESTS = VARIANT == KAHAN || VARIANT == FULL;
template <Variant VARIANT>
constexpr bool IN_LOGS = VARIANT == LOG || VARIANT == FAST_LOG;

struct Affine {
  float decay, drive, decay_rest, drive_rest;
};

struct State {
  float value, rest;
};

// x + y rounded, and its exact error: Knuth, The Art of Computer Programming 2, 4.2.2.
struct Sum {
  float value, error;
};

__device__ __forceinline__ Sum two_sum(float x, float y) {
  const float total = __fadd_rn(x, y);
  const float y_seen = __fsub_rn(total, x);
  const float x_seen = __fsub_rn(total, y_seen);
  return {total, __fadd_rn(__fsub_rn(x, x_seen), __fsub_rn(y, y_seen))};
}

// The decay of a logarithm.
template <Variant VARIANT>
__device__ __forceinline__ float exp_of(float log_decay) {
  static_assert(IN_LOGS<VARIANT>, "others hold decays themselves");
  return VARIANT == LOG ? scancheck::Reproducible::exp(log_decay)
                        : scancheck::Fast::exp(log_decay);
}

// decay x + drive with the rest of x, for a map whose rests count or not.
template <Variant VARIANT, bool RESTS>
__device__ __forceinline__ State applied(const Affine& map, State x) {
  if constexpr (VARIANT == PLAIN) {
    return {__fmaf_rn(map.decay, x.value, map.drive), 0.0f};
  } else if constexpr (IN_LOGS<VARIANT>) {
    return {__fmaf_rn(exp_of<VARIANT>(map.decay), x.value, map.drive), 0.0f};
  } else {
    const float product = __fmul_rn(map.decay, x.value);
    const Sum sum = two_sum(product, map.drive);
    float error = sum.error;
    if constexpr (VARIANT == FULL) {
      error = __fadd_rn(__fmaf_rn(map.decay, x.value, -product), error);
    }
    float rest = __fmaf_rn(map.decay, x.rest, error);
    if constexpr (VARIANT == FULL && RESTS) {
      rest = __fmaf_rn(map.decay_rest, x.value, rest);
    }
    if constexpr (RESTS) rest = __fadd_rn(rest, map.drive_rest);
    return {sum.value, rest};
  }
}

// The map `left`, then `right`, whose rests count or not.
template <Variant VARIANT, bool RESTS>
__device__ __forceinline__ Affine combined(const Affine& left, const Affine& right) {
  const State drive = applied<VARIANT, RESTS>(
      right, State{left.drive, left.drive_rest});
  if constexpr (IN_LOGS<VARIANT>) {
    return {__fadd_rn(right.decay, left.decay), drive.value, 0.0f, 0.0f};
  }
  const float decay = __fmul_rn(right.decay, left.decay);
  float rest = 0.0f;
  if constexpr (VARIANT == FULL) {
    rest = __fmaf_rn(right.decay, left.decay, -decay);
    rest = __fmaf_rn(right.decay, left.decay_rest, rest);
    if constexpr (RESTS) rest = __fmaf_rn(right.decay_rest, left.decay, rest);
  }
  return {decay, drive.value, rest, drive.rest};
}

// The state as one float; an infinity stays whatever its rest is.
template <Variant VARIANT>
__device__ __forceinline__ float rounded(State x) {
  if constexpr (!HAS_RESTS<VARIANT>) return x.value;
  return isfinite(x.value) ? __fadd_rn(x.value, x.rest) : x.value;
}
