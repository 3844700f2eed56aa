// exp2, exp, expm1, log, log1p, softplus, sigmoid and silu in fp32, as policies.
//
//   Reproducible   rounding intrinsics and fma alone, so that the compiler can neither
//                  contract nor reorder: the same bits on every device, and in
//                  kernels/models/cuda_functions.py, which has the same operations.
//   Tabulated      as Reproducible, with the hardware's ex2 for every exponential but
//                  expm1, for which nothing of it is accurate near 0: one table of 2^23
//                  values, which differs by architecture, makes a CPU give the same bits
//                  (kernels/models/cuda_ex2.py has sm_90's).
//   Fast           as Tabulated, with the hardware's lg2 and rcp where they are accurate
//                  enough.
//
// All members are static and take and return float. Errors: kernels/cuda/error_models.py;
// coefficients: benchmarks/cuda_function_coefficients.py. NaN gives NaN. Results of the
// exponentials below 2^-126 are flushed to zero, here by the functions themselves: no
// -ftz=true, no fast-math. Subnormal arguments are taken as they are.
#pragma once

#include "function_parts.cuh"

namespace scancheck {

struct Reproducible {
  // -126 <= x < 128, not checked.
  static __device__ __forceinline__ float exp2_in_range(float x) {
    const float shifted = __fadd_rn(x, SHIFT);
    const float f = __fsub_rn(x, __fsub_rn(shifted, SHIFT));
    return scaled(exp2_fraction(f), shifted);
  }

  static __device__ __forceinline__ float exp2_(float x) {
    const float y = min_or_nan(max_or_nan(x, EXP2_LOWEST), EXP2_HIGHEST);
    return flushed(y, exp2_in_range(y));
  }

  // exp2_ of x < 128: one instruction less.
  static __device__ __forceinline__ float exp2_below(float x) {
    const float y = max_or_nan(x, EXP2_LOWEST);
    return flushed(y, exp2_in_range(y));
  }

  // 2^(x y) for x y < 128, the product not rounded: as many instructions as rounding
  // it and taking exp2_below, and half the error where |x y| is large.
  static __device__ __forceinline__ float exp2_product_below(float x, float y) {
    const float shifted = max_or_nan(__fmaf_rn(x, y, SHIFT), SHIFT - 126.0f);
    const float f = __fmaf_rn(x, y, -__fsub_rn(shifted, SHIFT));
    const float g = max_or_nan(f, EXP2_REST_LOWEST);
    return flushed(g, scaled(exp2_fraction(g), shifted));
  }

  static __device__ __forceinline__ float exp2_product(float x, float y) {
    float shifted = max_or_nan(__fmaf_rn(x, y, SHIFT), SHIFT - 126.0f);
    shifted = min_or_nan(shifted, SHIFT + 128.0f);
    const float f = __fmaf_rn(x, y, -__fsub_rn(shifted, SHIFT));
    const float g = max_or_nan(f, EXP2_REST_LOWEST);
    const float value = flushed(g, scaled(exp2_fraction(g), shifted));
    const bool overflows = shifted == SHIFT + 128.0f && g >= 0.0f;
    return overflows ? __uint_as_float(0x7f800000u) : value;
  }

  // exp(x) for x <= EXP_HIGHEST, such as all x <= 0.
  static __device__ __forceinline__ float exp_below(float x) {
    const float y = max_or_nan(x, EXP_LOWEST);
    const float shifted = __fmaf_rn(y, LOG2_E, SHIFT);
    const float n = __fsub_rn(shifted, SHIFT);
    float f = __fmaf_rn(y, LOG2_E, -n);
    f = __fmaf_rn(y, LOG2_E_REST, f);
    return flushed(y, scaled(exp2_fraction(f), shifted));
  }

  static __device__ __forceinline__ float exp(float x) {
    const float value = exp_below(min_or_nan(x, EXP_HIGHEST));
    return x > EXP_HIGHEST ? __uint_as_float(0x7f800000u) : value;
  }

  // exp(x) - 1 for x <= EXPM1_HALVED, such as all x <= 0.
  static __device__ __forceinline__ float expm1_below(float x) {
    float shifted;
    const float q = expm1_reduced(max_or_nan(x, EXPM1_LOWEST), &shifted);
    const float power = scaled(1.0f, shifted);
    return __fmaf_rn(power, q, __fsub_rn(power, 1.0f));
  }

  static __device__ __forceinline__ float expm1(float x) {
    const float y = min_or_nan(max_or_nan(x, EXPM1_LOWEST), EXP_HIGHEST);
    float shifted;
    const float q = expm1_reduced(y, &shifted);
    const float unit = y > EXPM1_HALVED ? 0.5f : 1.0f;
    const float power = scaled(unit, shifted);
    const float value = __fmaf_rn(power, q, __fsub_rn(power, unit));
    const float doubled = y > EXPM1_HALVED ? __fmul_rn(value, 2.0f) : value;
    return x > EXP_HIGHEST ? __uint_as_float(0x7f800000u) : doubled;
  }

  // log(1 + x) for 0 <= x <= 1.
  static __device__ __forceinline__ float log1p_unit(float x) {
    const float p = polynomial(x, LOG1P);
    return __fmaf_rn(__fmul_rn(x, x), p, x);
  }

  static __device__ __forceinline__ float log(float x) {
    const bool subnormal = x < SMALLEST_NORMAL;
    const float y = subnormal ? __fmul_rn(x, 0x1p+23f) : x;
    const unsigned power = log_power(y);
    const float f =
        __fsub_rn(__uint_as_float(__float_as_uint(y) - power), 1.0f);
    const float k =
        __fmaf_rn(__int2float_rn(static_cast<int>(power)), 0x1p-23f,
                  subnormal ? -23.0f : 0.0f);
    float result = __fmaf_rn(k, LN_2, log_reduced(f));
    result = x < __uint_as_float(0x7f800000u) ? result : x;
    result = x < 0.0f ? __uint_as_float(0x7fffffffu) : result;
    return x == 0.0f ? __uint_as_float(0xff800000u) : result;
  }

  static __device__ __forceinline__ float log1p(float x) {
    const unsigned power = log_power(__fadd_rn(1.0f, x));
    // (1 + x) 2^-k - 1, rounded once.
    const float scale = __uint_as_float(0x3f800000u - power);
    const float f = __fmaf_rn(scale, x, __fsub_rn(scale, 1.0f));
    const float k =
        __fmul_rn(__int2float_rn(static_cast<int>(power)), 0x1p-23f);
    float result = __fmaf_rn(k, LN_2, log_reduced(f));
    result = x < LOG1P_AS_LOG ? result : log(x);
    result = x < -1.0f ? __uint_as_float(0x7fffffffu) : result;
    return x == -1.0f ? __uint_as_float(0xff800000u) : result;
  }

  // log(1 + e^x) without a threshold: above 17.4 the logarithm no longer counts.
  static __device__ __forceinline__ float softplus(float x) {
    const float e = exp_below(-fabsf(x));
    return __fadd_rn(max_or_nan(x, 0.0f), log1p_unit(e));
  }

  static __device__ __forceinline__ float sigmoid(float x) {
    return sigmoid_of(x, exp_below(-fabsf(x)));
  }

  // The sigmoid of x from e = exp(-|x|).
  static __device__ __forceinline__ float sigmoid_of(float x, float e) {
    float r = polynomial(e, RECIPROCAL);
    // Two Newton steps for 1 / (1 + e), whose residual 1 - r - r e needs no 1 + e.
    r = __fmaf_rn(r, __fmaf_rn(-r, e, __fsub_rn(1.0f, r)), r);
    r = __fmaf_rn(r, __fmaf_rn(-r, e, __fsub_rn(1.0f, r)), r);
    return x < 0.0f ? __fmul_rn(e, r) : r;
  }

  static __device__ __forceinline__ float silu(float x) {
    return __fmul_rn(max_or_nan(x, SILU_LOWEST), sigmoid(x));
  }

 private:
  // e^r - 1 of r = x - n ln 2; n in the last bits of `shifted`.
  static __device__ __forceinline__ float expm1_reduced(float x, float* shifted) {
    *shifted = __fmaf_rn(x, LOG2_E, SHIFT);
    const float n = __fsub_rn(*shifted, SHIFT);
    float r = __fmaf_rn(-n, LN_2_SHORT, x);
    r = __fmaf_rn(-n, LN_2_REST, r);
    const float p = polynomial(r, EXPM1);
    return __fmaf_rn(__fmul_rn(r, r), p, r);
  }

  // The exponent bits k << 23 for which x 2^-k lies in [0.75, 1.5).
  static __device__ __forceinline__ unsigned log_power(float x) {
    return (__float_as_uint(x) - __float_as_uint(LOG_LOWEST_MANTISSA)) & 0xff800000u;
  }

  // log(1 + f) for -0.25 <= f <= 0.5.
  static __device__ __forceinline__ float log_reduced(float f) {
    const float p = polynomial(f, LOG);
    return __fmaf_rn(__fmul_rn(f, f), p, f);
  }
};

struct Tabulated : Reproducible {
  static __device__ __forceinline__ float exp2_(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
  static __device__ __forceinline__ float exp2_in_range(float x) { return exp2_(x); }
  static __device__ __forceinline__ float exp2_below(float x) { return exp2_(x); }

  static __device__ __forceinline__ float exp2_product(float x, float y) {
    return exp2_(__fmaf_rn(x, y, EX2_SHIFT));
  }
  static __device__ __forceinline__ float exp2_product_below(float x, float y) {
    return exp2_product(x, y);
  }

  static __device__ __forceinline__ float exp(float x) {
    return exp2_(__fmul_rn(x, LOG2_E));
  }
  static __device__ __forceinline__ float exp_below(float x) { return exp(x); }

  static __device__ __forceinline__ float softplus(float x) {
    const float e = exp(-fabsf(x));
    return __fadd_rn(max_or_nan(x, 0.0f), log1p_unit(e));
  }

  static __device__ __forceinline__ float sigmoid(float x) {
    return sigmoid_of(x, exp(-fabsf(x)));
  }

  static __device__ __forceinline__ float silu(float x) {
    return __fmul_rn(max_or_nan(x, SILU_LOWEST), sigmoid(x));
  }
};

struct Fast : Tabulated {
  // Subnormal x give -inf, as 0 does.
  static __device__ __forceinline__ float log(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return __fmul_rn(result, LN_2);
  }

  static __device__ __forceinline__ float sigmoid(float x) {
    float result;
    const float sum = __fadd_rn(1.0f, exp(-x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(sum));
    return result;
  }

  static __device__ __forceinline__ float silu(float x) {
    return __fmul_rn(max_or_nan(x, SILU_LOWEST), sigmoid(x));
  }
};

}  // namespace scancheck
