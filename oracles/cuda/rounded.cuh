// A double whose sums, products and quotients are each rounded to nearest, and are
// never contracted into fused operations: what the compiled loops of the CPU do.
#pragma once

struct Rounded {
    double x;
    __device__ __forceinline__ Rounded() {}
    __device__ __forceinline__ Rounded(double value) : x(value) {}
};

__device__ __forceinline__ Rounded operator+(Rounded a, Rounded b) {
    return __dadd_rn(a.x, b.x);
}
__device__ __forceinline__ Rounded operator-(Rounded a, Rounded b) {
    return __dsub_rn(a.x, b.x);
}
__device__ __forceinline__ Rounded operator*(Rounded a, Rounded b) {
    return __dmul_rn(a.x, b.x);
}
__device__ __forceinline__ Rounded operator/(Rounded a, Rounded b) {
    return __ddiv_rn(a.x, b.x);
}
__device__ __forceinline__ Rounded operator-(Rounded a) { return -a.x; }
__device__ __forceinline__ bool operator<(Rounded a, Rounded b) { return a.x < b.x; }
__device__ __forceinline__ bool operator>(Rounded a, Rounded b) { return a.x > b.x; }
__device__ __forceinline__ bool operator<=(Rounded a, Rounded b) { return a.x <= b.x; }
__device__ __forceinline__ bool operator>=(Rounded a, Rounded b) { return a.x >= b.x; }
__device__ __forceinline__ bool operator!=(Rounded a, Rounded b) { return a.x != b.x; }
__device__ __forceinline__ bool operator==(Rounded a, Rounded b) { return a.x == b.x; }
__device__ __forceinline__ Rounded fused(Rounded a, Rounded b, Rounded c) {
    return __fma_rn(a.x, b.x, c.x);
}
__device__ __forceinline__ Rounded size_of(Rounded a) { return fabs(a.x); }
// The larger one of numbers that are not negative, by their bits: NaN is above infinity.
__device__ __forceinline__ Rounded raised(Rounded peak, Rounded top) {
    constexpr long long SIZE = 0x7fffffffffffffffLL;
    const long long a = __double_as_longlong(peak.x) & SIZE;
    const long long b = __double_as_longlong(top.x) & SIZE;
    return __longlong_as_double(a > b ? a : b);
}
// What `raised` has found, as it is told: infinity for NaN.
__device__ __forceinline__ double told(Rounded peak) {
    constexpr long long INFINITE = 0x7ff0000000000000LL;
    const long long most = __double_as_longlong(peak.x);
    return __longlong_as_double(most < INFINITE ? most : INFINITE);
}
// The integer that an addition of 1.5 2**52 has left in the last bits.
__device__ __forceinline__ int last_bits_of(Rounded a) { return __double2loint(a.x); }
__device__ __forceinline__ Rounded infinity() {
    return __longlong_as_double(0x7ff0000000000000LL);
}
// 2**n from its bits.
__device__ __forceinline__ Rounded power_of_two(int n) {
    return __hiloint2double((n + 1023) << 20, 0);
}
