// Vectors of float, __half and __nv_bfloat16 in 32-bit registers, read as floats.
//
// A vector stays in the words it was loaded in, so that a 16-bit one takes half the
// registers until each element is needed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<__nv_bfloat16> = true;

template <typename T, int COUNT>
struct Packed {
  static constexpr int PER_WORD = 4 / int(sizeof(T));
  static constexpr int WORDS = (COUNT + PER_WORD - 1) / PER_WORD;
  static_assert(sizeof(T) == 4 || sizeof(T) == 2, "storage of 2 or 4 bytes");
  static_assert(COUNT * sizeof(T) <= 16, "one load has at most 16 bytes");

  unsigned words[WORDS];

  // Element i as a float: exact.
  __device__ __forceinline__ float at(int i) const;

  // The same once more, by another instruction: the compiler would keep the float from
  // the first time, in twice the registers.
  __device__ __forceinline__ float again(int i) const;

  // Elements 2i and 2i + 1, or for float element i alone, rounded to nearest even.
  __device__ __forceinline__ void set_word(int i, float first, float second);

  // Hides from the compiler what the words hold, so that it keeps them, and not floats
  // made from them, until the next use.
  __device__ __forceinline__ void keep_packed() {
#pragma unroll
    for (int i = 0; i < WORDS; i++) asm volatile("" : "+r"(words[i]));
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < WORDS; i++) words[i] = 0u;
  }

  // `from` and `to` are aligned to the vector's bytes.
  __device__ __forceinline__ void load(const T* from);
  __device__ __forceinline__ void store(T* to) const;

  // The same where `exists`, to global memory that nobody reads soon. Without a branch,
  // which would part the steps of a loop; and in one piece: the compiler would take
  // vectors apart, into stores that leave every sector half written.
  __device__ __forceinline__ void store_streaming(bool exists, T* to) const;
};

template <typename T, int COUNT>
__device__ __forceinline__ float Packed<T, COUNT>::at(int i) const {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(words[i]);
  } else {
    const unsigned word = words[i / 2];
    if constexpr (IS_BF16<T>) {
      return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
    } else {
      const __half_raw half = {(unsigned short)(i % 2 ? word >> 16 : word)};
      return __half2float(__half(half));
    }
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ float Packed<T, COUNT>::again(int i) const {
  if constexpr (sizeof(T) == 4) {
    return at(i);
  } else if constexpr (IS_BF16<T>) {
    unsigned bits;
    if (i % 2) {
      asm("prmt.b32 %0, %1, 0, 0x3244;" : "=r"(bits) : "r"(words[i / 2]));
    } else {
      asm("prmt.b32 %0, %1, 0, 0x1044;" : "=r"(bits) : "r"(words[i / 2]));
    }
    return __uint_as_float(bits);
  } else {
    // Negated twice: the second time as part of what uses it.
    const unsigned short half = i % 2 ? words[i / 2] >> 16 : words[i / 2];
    float negative;
    asm("{\n\t.reg .b16 half;\n\tneg.f16 half, %1;\n\tcvt.f32.f16 %0, half;\n\t}"
        : "=f"(negative)
        : "h"(half));
    return -negative;
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ void Packed<T, COUNT>::set_word(int i, float first,
                                                           float second) {
  if constexpr (sizeof(T) == 4) {
    words[i] = __float_as_uint(first);
  } else if constexpr (IS_BF16<T>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    words[i] = *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    words[i] = *reinterpret_cast<const unsigned*>(&pair);
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ void Packed<T, COUNT>::load(const T* from) {
  if constexpr (COUNT * sizeof(T) == 2) {
    words[0] = *reinterpret_cast<const unsigned short*>(from);
  } else if constexpr (WORDS == 1) {
    words[0] = *reinterpret_cast<const unsigned*>(from);
  } else if constexpr (WORDS == 2) {
    const uint2 both = *reinterpret_cast<const uint2*>(from);
    words[0] = both.x;
    words[1] = both.y;
  } else {
    static_assert(WORDS <= 2 || WORDS == 4, "vectors of 1, 2 or 4 words");
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ void Packed<T, COUNT>::store(T* to) const {
  if constexpr (COUNT * sizeof(T) == 2) {
    *reinterpret_cast<unsigned short*>(to) = (unsigned short)words[0];
  } else if constexpr (WORDS == 1) {
    *reinterpret_cast<unsigned*>(to) = words[0];
  } else if constexpr (WORDS == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <typename T, int COUNT>
__device__ __forceinline__ void Packed<T, COUNT>::store_streaming(bool exists,
                                                                  T* to) const {
  const size_t at = __cvta_generic_to_global(to);
  const unsigned stores = exists;
  if constexpr (COUNT * sizeof(T) == 2) {
    asm volatile(
        "{\n\t.reg .pred stores;\n\tsetp.ne.u32 stores, %0, 0;\n\t"
        "@stores st.global.cs.b16 [%1], %2;\n\t}" ::"r"(stores),
        "l"(at), "h"((unsigned short)words[0]));
  } else if constexpr (WORDS == 1) {
    asm volatile(
        "{\n\t.reg .pred stores;\n\tsetp.ne.u32 stores, %0, 0;\n\t"
        "@stores st.global.cs.b32 [%1], %2;\n\t}" ::"r"(stores),
        "l"(at), "r"(words[0]));
  } else {
    static_assert(WORDS == 2, "as many as a thread has channels");
    asm volatile(
        "{\n\t.reg .pred stores;\n\tsetp.ne.u32 stores, %0, 0;\n\t"
        "@stores st.global.cs.v2.b32 [%1], {%2, %3};\n\t}" ::"r"(stores),
        "l"(at), "r"(words[0]), "r"(words[1]));
  }
}

// The vector of `values`, each rounded to nearest even.
template <typename T, int COUNT>
__device__ __forceinline__ Packed<T, COUNT> packed(const float (&values)[COUNT]) {
  Packed<T, COUNT> result;
  constexpr int PER_WORD = Packed<T, COUNT>::PER_WORD;
#pragma unroll
  for (int i = 0; i < Packed<T, COUNT>::WORDS; i++) {
    const int second = i * PER_WORD + 1;
    result.set_word(i, values[i * PER_WORD],
                    PER_WORD == 2 && second < COUNT ? values[second] : 0.0f);
  }
  return result;
}

// A vector of one value, and single elements as floats.
template <typename T, int COUNT>
__device__ __forceinline__ Packed<T, COUNT> filled(float value) {
  float values[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) values[i] = value;
  return packed<T, COUNT>(values);
}

template <typename T>
__device__ __forceinline__ float element(const T* from) {
  Packed<T, 1> one;
  one.load(from);
  return one.at(0);
}

template <typename T>
__device__ __forceinline__ void put_element(T* to, float value) {
  filled<T, 1>(value).store(to);
}

// The value as Kept holds it.
template <typename Kept>
__device__ __forceinline__ float stored(float value) {
  return filled<Kept, 1>(value).at(0);
}
