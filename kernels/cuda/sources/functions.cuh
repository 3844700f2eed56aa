// exp2, exp, expm1, log, log1p, softplus, sigmoid and silu in fp32, as policies.
//
//   Reproducible   rounding intrinsics and fma alone, so that the compiler can neither
//                  contract nor reorder: the same bits on every device, and in
//                  kernels/models/cuda_functions.py, which has the same operations.
//   Tabulated      as Reproducible, with the hardware's ex2 for every exponential but
//                  expm1: one table of 2^23 values, which differs by architecture, makes
//                  a CPU give the same bits (kernels/models/cuda_ex2.py has sm_90's).
//   Fast           the hardware's ex2, lg2 and rcp where they are accurate enough.
//
// All members are static and take and return float. Errors: kernels/cuda/error_models.py;
// coefficients: benchmarks/cuda_function_coefficients.py. NaN gives NaN. Results of the
// exponentials below 2^-126 are flushed to zero, here by the functions themselves: no
// -ftz=true, no fast-math. Subnormal arguments are taken as they are.
//
// Reduction of exp2: adding 1.5 * 2^23 rounds to an integer n, which the last bits of the
// sum hold; 2^f by a polynomial whose constant term is exactly 1, and n added to its
// exponent. The exponent of a result to be flushed is then 0: the hardware's ftz takes
// it for a subnormal, and the same instruction hands on a NaN.
#pragma once

namespace scancheck {

constexpr float SHIFT = 0x1.8p+23f;
constexpr float LOG2_E = 0x1.715476p+0f;
constexpr float LOG2_E_REST = 0x1.4ae0cp-26f;  // log2(e) - LOG2_E
constexpr float LN_2 = 0x1.62e430p-1f;
constexpr float LN_2_SHORT = 0x1.62e4p-1f;  // 15 bits: n times it is exact
constexpr float LN_2_REST = 0x1.7f7d1cp-20f;  // ln(2) - LN_2_SHORT
constexpr float EXP2_LOWEST = -126.25f;  // below 2^-126: flushed
constexpr float EXP2_HIGHEST = 128.0f;
constexpr float EXP2_REST_LOWEST = -0.75f;  // with n = -126: flushed
constexpr float EXP_LOWEST = -87.5f;  // below ln(2^-126): flushed
constexpr float EXP_HIGHEST = 0x1.62e42ep+6f;  // the last whose exponential is finite
constexpr float EXPM1_LOWEST = -25.0f;  // -1 in fp32
constexpr float EXPM1_HALVED = 88.0f;  // above, 2^n is halved to stay finite
constexpr float SILU_LOWEST = -128.0f;  // sigmoid is 0: keeps -inf * 0 away
constexpr float SMALLEST_NORMAL = 0x1p-126f;
constexpr float LOG_LOWEST_MANTISSA = 0.75f;
constexpr float LOG1P_AS_LOG = 0x1p+30f;  // 1 + x is x
// ex2 cuts its argument to a multiple of 2^-23, so that a decay close to 1 is too small
// by 0.1 u in the mean, step by step; this much more in the argument makes it 0.03 u at
// most for 2^-18 < |x| < 2^-7 (sm_90). Below 2^-24 it still gives 1.
constexpr float EX2_SHIFT = 0x1.5p-27f;

constexpr float EXP2_0 = 0x1.62e430p-1f;
constexpr float EXP2_1 = 0x1.ebfbdap-3f;
constexpr float EXP2_2 = 0x1.c6af78p-5f;
constexpr float EXP2_3 = 0x1.3b2f46p-7f;
constexpr float EXP2_4 = 0x1.5f0a6ap-10f;
constexpr float EXP2_5 = 0x1.408038p-13f;

constexpr float EXPM1_0 = 0x1.000000p-1f;
constexpr float EXPM1_1 = 0x1.555554p-3f;
constexpr float EXPM1_2 = 0x1.5554f2p-5f;
constexpr float EXPM1_3 = 0x1.111312p-7f;
constexpr float EXPM1_4 = 0x1.6d411ap-10f;
constexpr float EXPM1_5 = 0x1.9e099ep-13f;

constexpr float LOG1P_0 = -0x1.ffffd2p-2f;
constexpr float LOG1P_1 = 0x1.554dd0p-2f;
constexpr float LOG1P_2 = -0x1.ff23e8p-3f;
constexpr float LOG1P_3 = 0x1.934b8ap-3f;
constexpr float LOG1P_4 = -0x1.3a44eep-3f;
constexpr float LOG1P_5 = 0x1.b4b80ep-4f;
constexpr float LOG1P_6 = -0x1.d6d044p-5f;
constexpr float LOG1P_7 = 0x1.49489ap-6f;
constexpr float LOG1P_8 = -0x1.afbe7cp-9f;

constexpr float LOG_0 = -0x1.000000p-1f;
constexpr float LOG_1 = 0x1.5555a2p-2f;
constexpr float LOG_2 = -0x1.00003ap-2f;
constexpr float LOG_3 = 0x1.9969e2p-3f;
constexpr float LOG_4 = -0x1.54f316p-3f;
constexpr float LOG_5 = 0x1.288a36p-3f;
constexpr float LOG_6 = -0x1.0d69b0p-3f;
constexpr float LOG_7 = 0x1.ab9e14p-4f;
constexpr float LOG_8 = -0x1.6f8e0cp-5f;

constexpr float RECIPROCAL_0 = 0x1.fad40ap-1f;
constexpr float RECIPROCAL_1 = -0x1.9dbcbep-1f;
constexpr float RECIPROCAL_2 = 0x1.4afd58p-2f;

// fmaxf and fminf drop a NaN; these hand it on, in one instruction too.
__device__ __forceinline__ float max_or_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

__device__ __forceinline__ float min_or_nan(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

// `value`, or 0 where its exponent field is 0, or NaN where x is: x is finite or NaN.
__device__ __forceinline__ float flushed(float x, float value) {
  float result;
  asm("fma.rn.ftz.f32 %0, %1, 0f00000000, %2;"
      : "=f"(result)
      : "f"(x), "f"(value));
  return result;
}

// `value` with n added to its exponent; n in the last bits of `shifted`.
__device__ __forceinline__ float scaled(float value, float shifted) {
  return __uint_as_float((__float_as_uint(shifted) << 23) + __float_as_uint(value));
}

// 2^f, |f| <= 1/2.
__device__ __forceinline__ float exp2_fraction(float f) {
  float p = __fmaf_rn(f, EXP2_5, EXP2_4);
  p = __fmaf_rn(f, p, EXP2_3);
  p = __fmaf_rn(f, p, EXP2_2);
  p = __fmaf_rn(f, p, EXP2_1);
  p = __fmaf_rn(f, p, EXP2_0);
  return __fmaf_rn(f, p, 1.0f);
}

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
    float p = __fmaf_rn(x, LOG1P_8, LOG1P_7);
    p = __fmaf_rn(x, p, LOG1P_6);
    p = __fmaf_rn(x, p, LOG1P_5);
    p = __fmaf_rn(x, p, LOG1P_4);
    p = __fmaf_rn(x, p, LOG1P_3);
    p = __fmaf_rn(x, p, LOG1P_2);
    p = __fmaf_rn(x, p, LOG1P_1);
    p = __fmaf_rn(x, p, LOG1P_0);
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
    float r = __fmaf_rn(e, RECIPROCAL_2, RECIPROCAL_1);
    r = __fmaf_rn(e, r, RECIPROCAL_0);
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
    float p = __fmaf_rn(r, EXPM1_5, EXPM1_4);
    p = __fmaf_rn(r, p, EXPM1_3);
    p = __fmaf_rn(r, p, EXPM1_2);
    p = __fmaf_rn(r, p, EXPM1_1);
    p = __fmaf_rn(r, p, EXPM1_0);
    return __fmaf_rn(__fmul_rn(r, r), p, r);
  }

  // The exponent bits k << 23 for which x 2^-k lies in [0.75, 1.5).
  static __device__ __forceinline__ unsigned log_power(float x) {
    return (__float_as_uint(x) - __float_as_uint(LOG_LOWEST_MANTISSA)) & 0xff800000u;
  }

  // log(1 + f) for -0.25 <= f <= 0.5.
  static __device__ __forceinline__ float log_reduced(float f) {
    float p = __fmaf_rn(f, LOG_8, LOG_7);
    p = __fmaf_rn(f, p, LOG_6);
    p = __fmaf_rn(f, p, LOG_5);
    p = __fmaf_rn(f, p, LOG_4);
    p = __fmaf_rn(f, p, LOG_3);
    p = __fmaf_rn(f, p, LOG_2);
    p = __fmaf_rn(f, p, LOG_1);
    p = __fmaf_rn(f, p, LOG_0);
    return __fmaf_rn(__fmul_rn(f, f), p, f);
  }
};

struct Fast {
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

  // The hardware has nothing that is accurate near 0.
  static __device__ __forceinline__ float expm1(float x) {
    return Reproducible::expm1(x);
  }
  static __device__ __forceinline__ float expm1_below(float x) {
    return Reproducible::expm1_below(x);
  }
  static __device__ __forceinline__ float log1p(float x) {
    return Reproducible::log1p(x);
  }
  static __device__ __forceinline__ float log1p_unit(float x) {
    return Reproducible::log1p_unit(x);
  }

  // Subnormal x give -inf, as 0 does.
  static __device__ __forceinline__ float log(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return __fmul_rn(result, LN_2);
  }

  static __device__ __forceinline__ float softplus(float x) {
    const float e = exp(-fabsf(x));
    return __fadd_rn(max_or_nan(x, 0.0f), log1p_unit(e));
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

struct Tabulated : Reproducible {
  static __device__ __forceinline__ float exp2_(float x) { return Fast::exp2_(x); }
  static __device__ __forceinline__ float exp2_in_range(float x) { return exp2_(x); }
  static __device__ __forceinline__ float exp2_below(float x) { return exp2_(x); }

  static __device__ __forceinline__ float exp2_product(float x, float y) {
    return Fast::exp2_product(x, y);
  }
  static __device__ __forceinline__ float exp2_product_below(float x, float y) {
    return Fast::exp2_product(x, y);
  }

  static __device__ __forceinline__ float exp(float x) { return Fast::exp(x); }
  static __device__ __forceinline__ float exp_below(float x) { return Fast::exp(x); }

  static __device__ __forceinline__ float softplus(float x) {
    return Fast::softplus(x);
  }

  static __device__ __forceinline__ float sigmoid(float x) {
    return sigmoid_of(x, exp(-fabsf(x)));
  }

  static __device__ __forceinline__ float silu(float x) {
    return __fmul_rn(max_or_nan(x, SILU_LOWEST), sigmoid(x));
  }
};

}  // namespace scancheck
