// What the functions of functions.cuh are made of: constants, polynomials, and operations
// that need an instruction of their own.
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

// Coefficients, the lowest degree first.
__device__ constexpr float EXP2[] = {
    0x1.62e430p-1f, 0x1.ebfbdap-3f, 0x1.c6af78p-5f, 0x1.3b2f46p-7f,
    0x1.5f0a6ap-10f, 0x1.408038p-13f};
__device__ constexpr float EXPM1[] = {
    0x1.000000p-1f, 0x1.555554p-3f, 0x1.5554f2p-5f, 0x1.111312p-7f,
    0x1.6d411ap-10f, 0x1.9e099ep-13f};
__device__ constexpr float LOG1P[] = {
    -0x1.ffffd2p-2f, 0x1.554dd0p-2f, -0x1.ff23e8p-3f, 0x1.934b8ap-3f,
    -0x1.3a44eep-3f, 0x1.b4b80ep-4f, -0x1.d6d044p-5f, 0x1.49489ap-6f,
    -0x1.afbe7cp-9f};
__device__ constexpr float LOG[] = {
    -0x1.000000p-1f, 0x1.5555a2p-2f, -0x1.00003ap-2f, 0x1.9969e2p-3f,
    -0x1.54f316p-3f, 0x1.288a36p-3f, -0x1.0d69b0p-3f, 0x1.ab9e14p-4f,
    -0x1.6f8e0cp-5f};
__device__ constexpr float RECIPROCAL[] = {
    0x1.fad40ap-1f, -0x1.9dbcbep-1f, 0x1.4afd58p-2f};

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

// c[FIRST] + c[FIRST + 1] x + ..., by Horner's rule. Not a loop, which is unrolled too late
// to be ordered with what is around it.
template <int FIRST = 0, int COUNT>
__device__ __forceinline__ float polynomial(float x, const float (&c)[COUNT]) {
  if constexpr (FIRST == COUNT - 1) {
    return c[FIRST];
  } else {
    return __fmaf_rn(x, polynomial<FIRST + 1>(x, c), c[FIRST]);
  }
}

// 2^f, |f| <= 1/2.
__device__ __forceinline__ float exp2_fraction(float f) {
  return __fmaf_rn(f, polynomial(f, EXP2), 1.0f);
}

}  // namespace scancheck
