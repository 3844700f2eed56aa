// Stand-in until functions.cuh: fast and reproducible exp(d A), softplus and silu.
#pragma once

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float LOG2_E = 1.44269504088896341f;

// log1p(e) for e in [0, 1].
__device__ __forceinline__ float log1p_unit(float e) {
  float p = -0.0032440228387713432f;
  p = __fmaf_rn(p, e, 0.019851455464959145f);
  p = __fmaf_rn(p, e, -0.056959524750709534f);
  p = __fmaf_rn(p, e, 0.10603655129671097f);
  p = __fmaf_rn(p, e, -0.15305593609809875f);
  p = __fmaf_rn(p, e, 0.1967594027519226f);
  p = __fmaf_rn(p, e, -0.24954134225845337f);
  p = __fmaf_rn(p, e, 0.3332996368408203f);
  p = __fmaf_rn(p, e, -0.4999990165233612f);
  p = __fmaf_rn(p, e, 1.0f);
  return __fmul_rn(p, e);
}

struct Fast {
  // exp(x y) for y = scaled / log2 e.
  static __device__ __forceinline__ float decay(float x, float scaled) {
    return ex2_approx(__fmul_rn(x, scaled));
  }
  static __device__ __forceinline__ float softplus(float x) {
    const float e = ex2_approx(__fmul_rn(-fabsf(x), LOG2_E));
    return __fadd_rn(fmaxf(x, 0.0f), log1p_unit(e));
  }
  static __device__ __forceinline__ float silu(float x) {
    const float e = ex2_approx(__fmul_rn(x, -LOG2_E));
    return __fmul_rn(x, rcp_approx(__fadd_rn(1.0f, e)));
  }
};

struct Reproducible {
  static __device__ __forceinline__ float exp2_rest(float n_shifted, float f) {
    float p = 0.00015403512225020677f;
    p = __fmaf_rn(p, f, 0.0013390735257416964f);
    p = __fmaf_rn(p, f, 0.009618237614631653f);
    p = __fmaf_rn(p, f, 0.05550357326865196f);
    p = __fmaf_rn(p, f, 0.24022649228572845f);
    p = __fmaf_rn(p, f, 0.6931471824645996f);
    p = __fmaf_rn(p, f, 1.0f);
    return __int_as_float(__float_as_int(p) + (__float_as_int(n_shifted) << 23));
  }
  static __device__ __forceinline__ float decay(float x, float scaled) {
    const float shift = 12582912.0f;
    float t = __fmaf_rn(x, scaled, shift);
    t = fmaxf(t, shift - 126.0f);
    const float n = __fsub_rn(t, shift);
    float f = __fmaf_rn(x, scaled, -n);
    f = fmaxf(f, -0.5f);
    return exp2_rest(t, f);
  }
  static __device__ __forceinline__ float softplus(float x) {
    const float e = decay(-fabsf(x), LOG2_E);
    return __fadd_rn(fmaxf(x, 0.0f), log1p_unit(e));
  }
  static __device__ __forceinline__ float silu(float x) {
    const float e = decay(-fabsf(x), LOG2_E);
    const float d = __fadd_rn(1.0f, e);
    float r = __fmaf_rn(__fmaf_rn(0.32323232f, d, -1.4545455f), d, 2.1212121f);
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    return __fmul_rn(x, x < 0.0f ? __fmul_rn(e, r) : r);
  }
};
