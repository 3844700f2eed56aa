// The functions of functions.cuh over all 2^32 inputs: hashes of their bits, to be
// compared with those of the CPU's, and errors against fp64.
//
// Input i is the float whose bits are i. NaN counts as one value, whatever its payload.
// Build without -ftz=true, which flushes subnormals that the functions keep.
#include "functions.cuh"

namespace scancheck {

constexpr float FLT_MAX = 0x1.fffffep+127f;
constexpr int HASH_BLOCK = 22;  // log2 of the inputs that share a hash
constexpr int ERROR_BLOCK = 23;  // log2 of the inputs that share an error: one exponent

__device__ __forceinline__ unsigned one_nan(float value) {
  return value != value ? 0x7fc00000u : __float_as_uint(value);
}

// SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014). Hashes add up modulo 2^64, so that their order is free.
__device__ __forceinline__ unsigned long long mixed(unsigned bits, unsigned input) {
  unsigned long long z = (static_cast<unsigned long long>(bits) << 32) | input;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The larger value wins, with its input in the lower half; values are not negative.
__device__ __forceinline__ unsigned long long with_input(double value, unsigned input) {
  const unsigned bits = __float_as_uint(__double2float_ru(value));
  return (static_cast<unsigned long long>(bits) << 32) | input;
}

// Where the exact result is a normal number: the relative error in u = 2^-24, and what
// it has beyond SLOPE |x|, or of a logarithm |log(x)| error beyond SLOPE |log(x)|.
struct Errors {
  unsigned long long relative;
  unsigned long long excess;
  unsigned long long flushed;  // in 2^-126 max(1, |x|), where a result is flushed
  unsigned long long kind;     // number of NaN, infinite, finite ones that should not be
};

template <class Function>
__device__ __forceinline__ void judge(float x, float y, unsigned i, Errors& e) {
  const double exact = Function::exact(static_cast<double>(x));
  const double size = fabs(exact);
  const bool overflows = size >= 0x1.ffffffp+127;
  const bool nan = exact != exact;
  const bool wrong_kind = nan ? y == y
                              : y != y || isinf(y) != overflows ||
                                    (overflows && (y > 0) != (exact > 0));
  if (wrong_kind) {
    e.kind += 1;
  } else if (!nan && !overflows) {
    const double error = fabs(static_cast<double>(y) - exact);
    if (size < 0x1p-126 || x < Function::LOWEST) {
      const double flushed = error * 0x1p+126 / fmax(1.0, fabs(static_cast<double>(x)));
      e.flushed = max(e.flushed, with_input(flushed, i));
    } else {
      const double relative = error / size * 0x1p+24;
      const double excess =
          Function::LOGARITHM ? (relative - Function::SLOPE) * size
                              : relative - Function::SLOPE * fabs(static_cast<double>(x));
      e.relative = max(e.relative, with_input(relative, i));
      e.excess = max(e.excess, with_input(fmax(0.0, excess), i));
    }
  }
}

// One element of `sums` and of `errors` per block of inputs, zero before.
template <class Function>
__device__ void check(unsigned long long* sums, Errors* errors) {
  const unsigned first = blockIdx.x << 20;
  unsigned long long sum = 0;
  Errors e = {0, 0, 0, 0};
  for (unsigned k = threadIdx.x; k < (1u << 20); k += blockDim.x) {
    const unsigned i = first + k;
    const float x = __uint_as_float(i);
    const float y = Function::value(x);
    sum += mixed(one_nan(y), i);
    judge<Function>(x, y, i, e);
  }
  atomicAdd(&sums[first >> HASH_BLOCK], sum);
  Errors& all = errors[first >> ERROR_BLOCK];
  atomicMax(&all.relative, e.relative);
  atomicMax(&all.excess, e.excess);
  atomicMax(&all.flushed, e.flushed);
  atomicAdd(&all.kind, e.kind);
}

__device__ __forceinline__ double sigmoid_exact(double x) {
  const double e = exp(-fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

__device__ __forceinline__ double softplus_exact(double x) {
  return (x < 0 ? 0.0 : x) + log1p(exp(-fabs(x)));
}

__device__ __forceinline__ double silu_exact(double x) {
  return x < -1000.0 ? -0.0 : x * sigmoid_exact(x);
}

// The argument as a .ftz instruction takes it.
__device__ __forceinline__ double flushed_argument(double x) {
  return fabs(x) < 0x1p-126 ? copysign(0.0, x) : x;
}

__device__ __forceinline__ float lg2(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float rcp(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#define CHECK(NAME, VALUE, EXACT, SLOPE_, LOGARITHM_, LOWEST_)                       \
  struct NAME##_function {                                                           \
    static constexpr double SLOPE = SLOPE_;                                          \
    static constexpr bool LOGARITHM = LOGARITHM_;                                    \
    static constexpr float LOWEST = LOWEST_; /* below, a factor is flushed */        \
    static __device__ __forceinline__ float value(float x) { return VALUE; }         \
    static __device__ __forceinline__ double exact(double x) { return EXACT; }       \
  };                                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                  \
      check_##NAME(unsigned long long* sums, Errors* errors) {                       \
    check<NAME##_function>(sums, errors);                                            \
  }
#define PLAIN(NAME, VALUE, EXACT) CHECK(NAME, VALUE, EXACT, 0.0, false, -FLT_MAX)
#define EXPONENTIAL(NAME, VALUE, EXACT) CHECK(NAME, VALUE, EXACT, 1.23, false, -FLT_MAX)

PLAIN(reproducible_exp2, Reproducible::exp2_(x), exp2(x))
PLAIN(reproducible_exp, Reproducible::exp(x), exp(x))
PLAIN(reproducible_expm1, Reproducible::expm1(x), expm1(x))
PLAIN(reproducible_log, Reproducible::log(x), log(x))
PLAIN(reproducible_log1p, Reproducible::log1p(x), log1p(x))
PLAIN(reproducible_softplus, Reproducible::softplus(x), softplus_exact(x))
PLAIN(reproducible_sigmoid, Reproducible::sigmoid(x), sigmoid_exact(x))
CHECK(reproducible_silu, Reproducible::silu(x), silu_exact(x), 0.0, false, -87.3f)
PLAIN(fast_exp2, Fast::exp2_(x), exp2(x))
PLAIN(fast_exp2_shifted, Fast::exp2_product(x, 1.0f), exp2(x))
EXPONENTIAL(fast_exp, Fast::exp(x), exp(x))
CHECK(fast_log, Fast::log(x), log(flushed_argument(x)), 2.7, true, -FLT_MAX)
EXPONENTIAL(fast_softplus, Fast::softplus(x), softplus_exact(x))
EXPONENTIAL(fast_sigmoid, Fast::sigmoid(x), sigmoid_exact(x))
CHECK(fast_silu, Fast::silu(x), silu_exact(x), 1.23, false, -87.3f)
EXPONENTIAL(tabulated_exp, Tabulated::exp(x), exp(x))
EXPONENTIAL(tabulated_softplus, Tabulated::softplus(x), softplus_exact(x))
EXPONENTIAL(tabulated_sigmoid, Tabulated::sigmoid(x), sigmoid_exact(x))
CHECK(tabulated_silu, Tabulated::silu(x), silu_exact(x), 1.23, false, -87.3f)
CHECK(hardware_lg2, lg2(x), log2(flushed_argument(x)), 2.0, true, -FLT_MAX)
PLAIN(hardware_rcp, rcp(x), 1.0 / flushed_argument(x))

// How many of all inputs give other bits in the variant that skips clamps.
extern "C" __global__ void count_other_variants(unsigned long long* counts) {
  unsigned long long c[5] = {0, 0, 0, 0, 0};
  const unsigned first = blockIdx.x << 20;
  for (unsigned k = threadIdx.x; k < (1u << 20); k += blockDim.x) {
    const float x = __uint_as_float(first + k);
    const unsigned two = one_nan(Reproducible::exp2_(x));
    c[0] += !(x >= 128.0f) && two != one_nan(Reproducible::exp2_below(x));
    c[1] += x >= -126.0f && x < 128.0f &&
            two != one_nan(Reproducible::exp2_in_range(x));
    c[2] += two != one_nan(Reproducible::exp2_product(x, 1.0f));
    c[3] += !(x > EXP_HIGHEST) &&
            one_nan(Reproducible::exp(x)) != one_nan(Reproducible::exp_below(x));
    c[4] += !(x > EXPM1_HALVED) &&
            one_nan(Reproducible::expm1(x)) != one_nan(Reproducible::expm1_below(x));
  }
  for (int k = 0; k < 5; ++k) atomicAdd(&counts[k], c[k]);
}

// ex2.approx.ftz at i 2^-23, i in [0, 2^23).
extern "C" __global__ void ex2_table(float* table) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  table[i] = Fast::exp2_(static_cast<float>(i) * 0x1p-23f);
}

// What the table makes of ex2.approx.ftz. The argument's size is cut to a multiple of
// 2^-23; the fraction f of a negative one becomes 1 - f - 2^-23, one power below, unless
// it is 0; results below 2^-126 are flushed.
__device__ __forceinline__ float ex2_by_table(float x, const float* table) {
  const float y = min_or_nan(max_or_nan(x, -127.0f), 128.0f);
  const unsigned fixed = static_cast<unsigned>(fabsf(y) * 0x1p+23f);
  const int fraction = fixed & 0x7fffff, whole = fixed >> 23;
  const bool complement = x < 0.0f && fraction != 0;
  const float value = table[complement ? 0x7fffff - fraction : fraction];
  const int power = x < 0.0f ? -whole - complement : whole;
  return flushed(y, scaled(value, __int_as_float(power)));
}

// counts: mismatches by sign and exponent of the input. examples: their number, then up
// to 40 of input, hardware, model.
extern "C" __global__ void ex2_compare(const float* table, unsigned long long* counts,
                                       unsigned* examples) {
  const unsigned first = blockIdx.x << 20;
  unsigned long long count = 0;
  for (unsigned k = threadIdx.x; k < (1u << 20); k += blockDim.x) {
    const float x = __uint_as_float(first + k);
    const unsigned is = one_nan(Fast::exp2_(x));
    const unsigned model = one_nan(ex2_by_table(x, table));
    if (is != model) {
      // One example for each thread keeps them from queueing.
      const unsigned slot = count++ == 0 ? atomicAdd(examples, 1u) : 40;
      if (slot < 40) {
        examples[1 + 3 * slot] = first + k;
        examples[2 + 3 * slot] = is;
        examples[3 + 3 * slot] = model;
      }
    }
  }
  atomicAdd(&counts[first >> ERROR_BLOCK], count);
}

}  // namespace scancheck
