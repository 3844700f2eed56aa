// The functions of functions.cuh over all 2^32 inputs: hashes of their bits, to be
// compared with those of the CPU's, and errors against fp64.
//
// Input i is the float whose bits are i. NaN counts as one value, whatever its payload.
#include "functions.cuh"

namespace scancheck {

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

struct Errors {
  unsigned long long relative;  // in 2^-24, where the exact result is a normal number
  unsigned long long absolute;  // in 2^-24, there too
  unsigned long long flushed;   // in 2^-126, where it is below that
  unsigned long long kind;      // number of NaN, infinite, finite ones that should not be
};

__device__ __forceinline__ void judge(float y, double exact, unsigned i, Errors& e) {
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
    if (size < 0x1p-126) {
      e.flushed = max(e.flushed, with_input(error * 0x1p+126, i));
    } else {
      e.relative = max(e.relative, with_input(error / size * 0x1p+24, i));
      e.absolute = max(e.absolute, with_input(error * 0x1p+24, i));
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
    judge(y, Function::exact(static_cast<double>(x)), i, e);
  }
  atomicAdd(&sums[first >> HASH_BLOCK], sum);
  Errors& all = errors[first >> ERROR_BLOCK];
  atomicMax(&all.relative, e.relative);
  atomicMax(&all.absolute, e.absolute);
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

#define CHECK(NAME, VALUE, EXACT)                                               \
  struct NAME##_function {                                                      \
    static __device__ __forceinline__ float value(float x) { return VALUE; }    \
    static __device__ __forceinline__ double exact(double x) { return EXACT; }  \
  };                                                                            \
  extern "C" __global__ void __launch_bounds__(256)                             \
      check_##NAME(unsigned long long* sums, Errors* errors) {                  \
    check<NAME##_function>(sums, errors);                                       \
  }

CHECK(reproducible_exp2, Reproducible::exp2_(x), exp2(x))
CHECK(reproducible_exp, Reproducible::exp(x), exp(x))
CHECK(reproducible_expm1, Reproducible::expm1(x), expm1(x))
CHECK(reproducible_log, Reproducible::log(x), log(x))
CHECK(reproducible_log1p, Reproducible::log1p(x), log1p(x))
CHECK(reproducible_softplus, Reproducible::softplus(x), softplus_exact(x))
CHECK(reproducible_sigmoid, Reproducible::sigmoid(x), sigmoid_exact(x))
CHECK(reproducible_silu, Reproducible::silu(x), silu_exact(x))
CHECK(fast_exp2, Fast::exp2_(x), exp2(x))
CHECK(fast_exp, Fast::exp(x), exp(x))
CHECK(fast_log, Fast::log(x), log(x))
CHECK(fast_softplus, Fast::softplus(x), softplus_exact(x))
CHECK(fast_sigmoid, Fast::sigmoid(x), sigmoid_exact(x))
CHECK(fast_silu, Fast::silu(x), silu_exact(x))
CHECK(hardware_lg2, lg2(x), log2(x))
CHECK(hardware_rcp, rcp(x), 1.0 / x)

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

// ex2.approx.ftz at +i 2^-23 and at -i 2^-23, i in [0, 2^23).
extern "C" __global__ void ex2_tables(float* positive, float* negative) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const float x = static_cast<float>(i) * 0x1p-23f;
  positive[i] = Fast::exp2_(x);
  negative[i] = Fast::exp2_(-x);
}

// What the tables make of ex2.approx.ftz: the argument's size cut to a multiple of
// 2^-23, its fraction looked up in the table of its sign, its integer part added to the
// exponent, results below 2^-126 flushed.
__device__ __forceinline__ float ex2_by_table(float x, const float* positive,
                                              const float* negative) {
  if (x != x) return x;
  if (x >= 128.0f) return __uint_as_float(0x7f800000u);
  if (x <= -127.0f) return 0.0f;
  const unsigned fixed = static_cast<unsigned>(fabs(static_cast<double>(x)) * 0x1p+23);
  const unsigned fraction = fixed & 0x7fffffu;
  const int whole = static_cast<int>(fixed >> 23);
  const double value = x < 0.0f ? ldexp(static_cast<double>(negative[fraction]), -whole)
                                : ldexp(static_cast<double>(positive[fraction]), whole);
  return value < 0x1p-126 ? 0.0f : static_cast<float>(value);
}

// counts: mismatches by sign and exponent of the input. examples: their number, then up
// to 40 of input, hardware, model.
extern "C" __global__ void ex2_compare(const float* positive, const float* negative,
                                       unsigned long long* counts, unsigned* examples) {
  const unsigned first = blockIdx.x << 20;
  unsigned long long count = 0;
  for (unsigned k = threadIdx.x; k < (1u << 20); k += blockDim.x) {
    const float x = __uint_as_float(first + k);
    const unsigned is = one_nan(Fast::exp2_(x));
    const unsigned model = one_nan(ex2_by_table(x, positive, negative));
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
