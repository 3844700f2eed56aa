// fp64 balls: the formulas, in their order, of ball_loops.py, fp64_exp.py, fp64_log1p.py
// and of the steps in fp64_scan.py, whose comments give their proofs.
#pragma once
#include "rounded.cuh"

struct Ball {
    Rounded value, radius;
};

constexpr double U64 = 0x1p-53;
constexpr double TINY = 0x1p-1074;
constexpr double FLOOR = 0x1p-1072;
constexpr double FUNCTION_ERROR = 0x1p-51;
constexpr double INFLATION = 1.0 + 1e-9;
constexpr double LOWEST = -746.0, HIGHEST = 710.0;

__device__ __forceinline__ Rounded exp_of(Rounded x) {
    constexpr double LOG2_E = 0x1.71547652b82fep+0;
    constexpr double LN_2 = 0x1.62e42fee00000p-1, LN_2_REST = 0x1.a39ef35793c76p-33;
    constexpr double SHIFT = 0x1.8p+52;
    Rounded y = x < LOWEST ? Rounded(LOWEST) : x;
    y = y > HIGHEST ? Rounded(HIGHEST) : y;
    const Rounded shifted = fused(y, LOG2_E, SHIFT);
    const Rounded n = shifted - SHIFT;
    const Rounded r = fused(-n, LN_2_REST, fused(-n, LN_2, y));
    Rounded p = fused(r, 1.0 / 6227020800.0, 1.0 / 479001600.0);
    p = fused(r, p, 1.0 / 39916800.0);
    p = fused(r, p, 1.0 / 3628800.0);
    p = fused(r, p, 1.0 / 362880.0);
    p = fused(r, p, 1.0 / 40320.0);
    p = fused(r, p, 1.0 / 5040.0);
    p = fused(r, p, 1.0 / 720.0);
    p = fused(r, p, 1.0 / 120.0);
    p = fused(r, p, 1.0 / 24.0);
    p = fused(r, p, 1.0 / 6.0);
    p = fused(r, p, 0.5);
    p = Rounded(1.0) + fused(r * r, p, r);
    const int exponent = last_bits_of(shifted), half = exponent >> 1;
    return p * power_of_two(half) * power_of_two(exponent - half);
}

__device__ __forceinline__ Ball exp_of(Ball a) {
    const Rounded value = exp_of(a.value), r = a.radius;
    const Rounded above =
        fused(fused(r, r, r), 1.0 + 4 * FUNCTION_ERROR, FUNCTION_ERROR);
    Rounded radius = above * (value + TINY) + FLOOR;
    radius = r < 1.0 ? radius : infinity();
    return {value, a.value + r < LOWEST ? Rounded(FLOOR) : radius};
}

// log(1 + x) for x in [0, 1].
__device__ __forceinline__ Rounded log1p_of(Rounded x) {
    const Rounded s = x / (Rounded(2.0) + x);
    const Rounded t = s * s;
    Rounded p = fused(t, 2.0 / 35.0, 2.0 / 33.0);
    p = fused(t, p, 2.0 / 31.0);
    p = fused(t, p, 2.0 / 29.0);
    p = fused(t, p, 2.0 / 27.0);
    p = fused(t, p, 2.0 / 25.0);
    p = fused(t, p, 2.0 / 23.0);
    p = fused(t, p, 2.0 / 21.0);
    p = fused(t, p, 2.0 / 19.0);
    p = fused(t, p, 2.0 / 17.0);
    p = fused(t, p, 2.0 / 15.0);
    p = fused(t, p, 2.0 / 13.0);
    p = fused(t, p, 2.0 / 11.0);
    p = fused(t, p, 2.0 / 9.0);
    p = fused(t, p, 2.0 / 7.0);
    p = fused(t, p, 2.0 / 5.0);
    p = fused(t, p, 2.0 / 3.0);
    return s * (t * p) + Rounded(2.0) * s;
}

__device__ __forceinline__ Ball operator+(Ball a, Ball b) {
    const Rounded value = a.value + b.value;
    return {value, Rounded(U64) * size_of(value) + a.radius + b.radius};
}

__device__ __forceinline__ Ball operator*(Ball a, Ball b) {
    const Rounded value = a.value * b.value;
    const Rounded radius = size_of(a.value) * b.radius +
                           a.radius * (size_of(b.value) + b.radius) +
                           (Rounded(U64) * size_of(value) + FLOOR);
    return {value, radius};
}

__device__ __forceinline__ Ball one_minus(Ball a) {
    const Rounded value = Rounded(1.0) - a.value;
    return {value, a.radius + Rounded(U64) * size_of(value)};
}

__device__ __forceinline__ Ball reciprocal(Ball a) {
    const Rounded value = Rounded(1.0) / a.value, size = size_of(a.value);
    const Rounded own = Rounded(U64) * size_of(value) + FLOOR;
    const Rounded least = size - a.radius * INFLATION;
    const Rounded radius = least > 0.0 ? own + a.radius / size / least : infinity();
    return {value, a.radius == 0.0 ? own : radius};
}

__device__ __forceinline__ Rounded expm1_above(Rounded r) {
    const Rounded above = (r + r * r) * (1.0 + 4 * FUNCTION_ERROR);
    return r < 1.0 ? above : infinity();
}

// The smaller one; the second where a comparison fails.
__device__ __forceinline__ Rounded least(Rounded a, Rounded b) { return a < b ? a : b; }

__device__ __forceinline__ Ball sigmoid(Ball a) {
    const Rounded below = exp_of(-size_of(a.value));
    const Rounded above = a.value >= 0.0 ? Rounded(1.0) : below;
    const Rounded value = above / (Rounded(1.0) + below);
    const Rounded own = Rounded(2 * (FUNCTION_ERROR + 3 * U64)) * value + FLOOR;
    return {value, own + least(expm1_above(a.radius) * (value + TINY), 1.0)};
}

__device__ __forceinline__ Ball softplus(Ball a) {
    const Rounded x = a.value;
    const Rounded value = (x > 0.0 ? x : Rounded(0.0)) + log1p_of(exp_of(-size_of(x)));
    const Rounded own = Rounded(2 * FUNCTION_ERROR + 2 * U64) * value + FLOOR;
    return {value, own + least(expm1_above(a.radius) * (value + TINY), a.radius)};
}

// What a factor makes of a radius r and a value x: gain r + loss |x|.
struct Factor {
    Rounded value, gain, loss;
    __device__ __forceinline__ Factor(Ball c, double roundings)
        : value(c.value),
          gain(size_of(c.value) + c.radius),
          loss(c.radius + (Rounded(roundings * U64) * size_of(c.value) + TINY)) {}
};

__device__ __forceinline__ Ball driven(Factor k, Ball v) {
    return {k.value * v.value,
            fused(k.gain, v.radius, k.loss * size_of(v.value) + FLOOR)};
}

// S with its radius and, where wanted, the companions M, W and second moment V.
struct State {
    Rounded value, radius, m, w, v;
};

template <bool COMPANIONS>
__device__ __forceinline__ void advance(State& s, Ball decay, Ball x) {
    const Rounded size = size_of(decay.value), old = s.value;
    const Rounded kept = decay.value * old;
    const Rounded made = kept + x.value;
    const Rounded rounding =
        Rounded(U64) * (size_of(kept) + size_of(made)) + (x.radius + FLOOR);
    s.value = made;
    s.radius = fused(size, s.radius,
                     fused(decay.radius, size_of(old) + s.radius, rounding));
    if (COMPANIONS) {
        const Rounded m = s.m;
        s.w = size * (s.w + m);
        s.m = fused(size, m, size_of(x.value));
        s.v = fused(decay.value * decay.value, s.v, fused(kept, kept, made * made));
    }
}

template <bool COMPANIONS>
__device__ __forceinline__ void read_out(State& out, const State& s, Factor c) {
    out.value = fused(c.value, s.value, out.value);
    const Rounded radius = fused(c.loss, size_of(s.value), out.radius);
    out.radius = fused(c.gain, s.radius, radius);
    if (COMPANIONS) {
        const Rounded size = size_of(c.value);
        out.m = fused(size, s.m, out.m);
        out.w = fused(size, s.w, out.w);
        out.v = fused(c.value * c.value, s.v, out.v);
    }
}
