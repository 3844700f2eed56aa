// Double-double numbers with radii: the building blocks of double_word.py and the
// functions of double_word_functions.py, in their order. Those give sources and proofs.
#pragma once
#include "rounded.cuh"

struct Word {
    Rounded hi, lo;
};

struct Triple {
    Rounded hi, lo, radius;
};

constexpr double TINY = 0x1p-1074;
constexpr double SUM_ERROR = 0x1p-104, PRODUCT_ERROR = 0x1p-103, EXP_ERROR = 0x1p-101;
constexpr double SAFE_PRODUCT = 0x1p-960;
constexpr double FLOOR = 0x1p-1070;
constexpr double LOG1P_LEFT_OUT = 0x1p-107;

// Tables of double_word_functions.py, one after the other.
constexpr int POWERS = 64, LOG1P_TERMS = 13, SCALES = 1056, LEAST_SCALE = -541;
struct Tables {
    const double* start;

    __device__ __forceinline__ Triple coarse(long long i) const { return pair(i); }
    __device__ __forceinline__ Triple fine(long long i) const { return pair(POWERS + i); }
    __device__ __forceinline__ Triple log1p_term(long long i) const {
        return pair(2 * POWERS + i);
    }
    __device__ __forceinline__ Rounded scale(long long exponent) const {
        return start[2 * (2 * POWERS + LOG1P_TERMS) + exponent - LEAST_SCALE];
    }
    __device__ __forceinline__ Triple pair(long long i) const {
        return {start[2 * i], start[2 * i + 1], 0.0};
    }
};

__device__ __forceinline__ Word two_sum(Rounded a, Rounded b) {
    const Rounded total = a + b, kept = total - a;
    return {total, (a - (total - kept)) + (b - kept)};
}

__device__ __forceinline__ Word fast_two_sum(Rounded a, Rounded b) {
    const Rounded total = a + b;
    return {total, b - (total - a)};
}

__device__ __forceinline__ Triple operator+(Triple x, Triple y) {
    const Word s = two_sum(x.hi, y.hi), t = two_sum(x.lo, y.lo);
    const Word v = fast_two_sum(s.hi, s.lo + t.hi);
    const Word z = fast_two_sum(v.hi, t.lo + v.lo);
    const bool inexact = (x.lo != 0.0) | (y.lo != 0.0);
    const Rounded own = inexact ? Rounded(SUM_ERROR) * size_of(z.hi) : Rounded(0.0);
    return {z.hi, z.lo, x.radius + y.radius + own};
}

__device__ __forceinline__ Triple operator*(Triple x, Triple y) {
    const Rounded c = x.hi * y.hi;
    const Rounded low = fused(x.lo, y.hi, fused(x.hi, y.lo, x.lo * y.lo));
    const Word z = fast_two_sum(c, fused(x.hi, y.hi, -c) + low);
    const Rounded ax = size_of(x.hi), ay = size_of(y.hi);
    const bool nonzero = (ax + x.radius != 0.0) & (ay + y.radius != 0.0);
    const bool inexact = (size_of(x.lo) + size_of(y.lo) + x.radius + y.radius != 0.0) |
                         (size_of(c) < SAFE_PRODUCT);
    const Rounded own = nonzero & inexact
                            ? Rounded(PRODUCT_ERROR) * size_of(z.hi) + FLOOR
                            : Rounded(0.0);
    return {z.hi, z.lo, ax * y.radius + x.radius * (ay + y.radius) + own};
}

__device__ __forceinline__ Triple negative(Triple x) { return {-x.hi, -x.lo, x.radius}; }

__device__ __forceinline__ Triple bare(Word x) { return {x.hi, x.lo, 0.0}; }

__device__ __forceinline__ Triple without_radius(Triple x) { return {x.hi, x.lo, 0.0}; }

__device__ __forceinline__ Triple single(Rounded x) { return {x, 0.0, 0.0}; }

__device__ inline Triple reciprocal(Triple x) {
    const Rounded y = Rounded(1.0) / x.hi;
    const Triple p = without_radius(x) * single(y);
    Triple e = single(1.0) + negative(p);
    e = e + Triple{e.hi * e.hi, 0.0, 0x1p-149};
    const Triple z = single(y) + e * single(y);
    const Rounded spread =
        x.radius < 0.5 ? x.radius / (Rounded(1.0) - x.radius) : infinity();
    return {z.hi, z.lo, z.radius + spread};
}

__device__ inline Triple inverse(Triple x) {
    const Rounded size = size_of(x.hi);
    const Triple unknown = {0.0, 0.0, infinity()};
    if (!((size > Rounded(2.0) * x.radius) & (size < infinity()))) return unknown;
    int exponent;
    frexp(x.hi.x, &exponent);
    const int shift = 1 - exponent;
    const Rounded lost = shift < 0 ? Rounded(4 * TINY) : Rounded(0.0);
    const Rounded hi = ldexp(x.hi.x, shift), r = Rounded(ldexp(x.radius.x, shift)) + lost;
    const Triple z = reciprocal({hi, ldexp(x.lo.x, shift), 0.0});
    const Rounded spread = r / (size_of(hi) * (size_of(hi) - r)) * (1.0 + 0x1p-50);
    const Rounded radius = z.radius + spread;
    const Word moved = fast_two_sum(ldexp(z.hi.x, shift), ldexp(z.lo.x, shift));
    if (!(size_of(moved.hi) < infinity())) return unknown;
    return {moved.hi, moved.lo, Rounded(ldexp(radius.x, shift)) + lost};
}

__device__ __forceinline__ Rounded spread(Rounded radius) {
    return radius < 1.0 ? radius * (Rounded(1.0) + radius) : infinity();
}

__device__ inline Triple exp_of(Triple x, Tables tables) {
    constexpr double PER_STEP = 0x1.71547652b82fep+12;
    constexpr double STEP_1 = 0x1.62e42fep-13, STEP_2 = 0x1.f473de6af278fp-42;
    constexpr double STEP_3 = -0x1.8cff81a12a17ep-97;
    const Triple third = {0x1.5555555555555p-2, 0x1.5555555555555p-56, 0.0};
    if ((x.hi == 0.0) & (x.lo == 0.0) & (x.radius == 0.0)) return single(1.0);
    if (!(x.hi < 710.0)) return {infinity(), 0.0, infinity()};
    if (x.hi < -746.0)
        return {0.0, 0.0, x.radius < 1.0 ? Rounded(TINY) : infinity()};
    const Rounded m = rint((x.hi * PER_STEP).x);
    const long long k = static_cast<long long>(m.x);
    Triple r = bare(two_sum(x.hi, -m * STEP_1));
    r = without_radius(r + without_radius(single(-m) * single(STEP_2)));
    r = without_radius(r + bare(two_sum(x.lo, -m * STEP_3)));
    const Triple half = {Rounded(0.5) * r.hi, Rounded(0.5) * r.lo, 0.0};
    const Triple square = without_radius(half * r);
    const Triple cube = without_radius(without_radius(square * r) * third);
    const Rounded s = r.hi;
    const Rounded tail =
        Rounded(1.0 / 24) +
        s * (Rounded(1.0 / 120) + s * (Rounded(1.0 / 720) + s / 5040.0));
    Triple p = without_radius(cube + single(s * s * (s * s) * tail));
    p = without_radius(square + p);
    p = without_radius(r + p);
    const Triple power = without_radius(tables.coarse((k >> 6) & 63) * tables.fine(k & 63));
    p = without_radius(power * p);
    const Triple z = power + p;
    const long long exponent = k >> 12, lower = exponent >> 1;
    const Rounded low = tables.scale(lower), high = tables.scale(exponent - lower);
    const Word w = fast_two_sum(z.hi * low * high, z.lo * low * high);
    return {w.hi, w.lo, w.hi * (spread(x.radius) + EXP_ERROR) + Rounded(4 * TINY)};
}

__device__ inline Triple log1p_of(Triple t, Tables tables) {
    if (t.hi + t.radius < 0x1p-8) {
        Triple s = tables.log1p_term(LOG1P_TERMS - 1);
        s.radius = 0x1p-106;
        for (int n = LOG1P_TERMS - 2; n >= 0; --n) {
            Triple term = tables.log1p_term(n);
            term.radius = 0x1p-106;
            s = s * t + term;
        }
        s = s * t;
        return {s.hi, s.lo, s.radius + Rounded(LOG1P_LEFT_OUT) * (s.hi + s.radius)};
    }
    // Any nearby y will do: Newton's step proves itself.
    const Rounded y = log1p(t.hi.x);
    Triple e = (single(1.0) + t) * exp_of(single(-y), tables);
    e = e + single(-1.0);
    const Rounded size = size_of(e.hi) + e.radius;
    if (!(size < 0x1p-20)) return {y, 0.0, infinity()};
    const Rounded own = size * (size * size + Rounded(0x1p-51) * size + e.radius);
    return single(y) + (e + Triple{Rounded(-0.5) * e.hi * e.hi, 0.0, own});
}

__device__ inline Triple softplus(Triple x, Tables tables) {
    const bool above = x.hi >= 0.0;
    const Triple s = log1p_of(exp_of(above ? negative(x) : x, tables), tables);
    return above ? x + s : s;
}

__device__ inline Triple sigmoid(Triple x, Tables tables) {
    const bool above = x.hi >= 0.0;
    const Triple t = exp_of(above ? negative(x) : x, tables);
    const Triple s = reciprocal(single(1.0) + t);
    return above ? s : t * s;
}
