// Bounds on a kernel's rounding errors: the companion scans of bounds/error_scan.py and
// the second moment of bounds/moment_system.py, in their order. Those explain them.
#pragma once
#include "rounded.cuh"

// The coefficient vector and a row of the path table of the bounds.
struct Coefficients {
    double u, eta, add_eta, state_u, state_eta, state_largest, trees, fma, comp, products,
        step_u;
};

struct Path {
    double steps, adds, growth, grown, second;
};

struct ErrorState {
    Rounded value, size, error, stored, floor, top, reach, rest, span, peak, running;
};

// A number with its magnitude, error bound and peak.
struct ErrorNumber {
    Rounded value, size, error, peak;
};

__device__ __forceinline__ Rounded larger(Rounded a, Rounded b) { return b > a ? b : a; }

// x / d for d = 1 - u of a format shorter than fp64, by its reciprocal. That is exact to
// 2**-55, so the product is a neighbour of the quotient, which one correction rounds
// right (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", IBM J. Res. Dev. 34, 1990) wherever nothing leaves the normal range.
struct Divisor {
    Rounded d, reciprocal;
    bool exact;  // whether that holds
    __device__ __forceinline__ explicit Divisor(Rounded value)
        : d(value), reciprocal(Rounded(1.0) / value), exact(value < 1.0 - 0x1p-30) {}
};

__device__ __forceinline__ Rounded operator/(Rounded x, const Divisor& by) {
    const Rounded q = x * by.reciprocal;
    const Rounded quotient = fused(fused(-q, by.d, x), by.reciprocal, q);
    const Rounded size = size_of(x);
    const bool safe = by.exact && (size > 0x1p-900 || size == 0.0) && size < 0x1p900;
    return safe ? quotient : x / by.d;
}

template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ Rounded total_error(const ErrorState& s, const Coefficients& c,
                                               const Path& path) {
    const Rounded u = c.u;
    Rounded e = s.error;
    if (!TREES) {
        if (COMPENSATED) e = e + (u * (size_of(s.value) + e) + c.add_eta);
        return e;
    }
    e = e + (s.stored + Rounded(path.growth) * (s.size + e + s.stored));
    const Rounded adds = path.adds;
    const Rounded lost = Rounded(2.0) * larger(adds, 1.0) * s.floor +
                         Rounded(path.steps) * c.eta * s.reach;
    if (lost > 0.0) e = e + Rounded(path.grown) * lost;
    if (COMPENSATED) {
        e = e + Rounded(path.second) * (s.rest + u * adds * s.size);
        if (c.comp == 1.0) e = e + u * (s.size + e);
        e = e + u * (size_of(s.value) + e);
    }
    return e;
}

template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ Rounded settle(ErrorState& s, const Coefficients& c,
                                          const Path& path) {
    const Rounded e = total_error<TREES, COMPENSATED>(s, c, path);
    const Rounded size = TREES ? s.size : size_of(s.value);
    s.peak = raised(s.peak, size + e);
    return e;
}

template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ void keep_state(ErrorState& s, const Coefficients& c,
                                           const Path& path) {
    const Rounded size = size_of(s.value);
    const Rounded kept = total_error<TREES, COMPENSATED>(s, c, path);
    Rounded lost = Rounded(c.state_u) * (size + kept) + c.state_eta;
    if (COMPENSATED) lost = lost + Rounded(c.u) * (size + kept);
    if (!(size + kept <= c.state_largest)) s.peak = infinity();
    if (TREES)
        s.stored = s.stored + lost;
    else
        s.error = s.error + lost;
}

__device__ __forceinline__ void any_order(ErrorState& s, Rounded w, Rounded we,
                                          Rounded high, const ErrorNumber& x,
                                          const Coefficients& c) {
    const Rounded u = c.u, one = 1.0, product_u = c.step_u, size = s.size;
    s.value = w * s.value + x.value;
    s.size = size_of(w) * size + x.size;
    s.error = high * (one + product_u) * s.error + (we + product_u * high) * size + x.error;
    s.stored = high * (one + u) * s.stored;
    s.floor = high * s.floor + c.eta + c.add_eta;
    s.top = larger(s.top, s.size + s.error);
    s.reach = larger(high * s.reach, s.top);
    s.rest = high * (s.rest + u * size);
}

__device__ __forceinline__ void in_order(ErrorState& s, Rounded w, Rounded we,
                                         Rounded high, const ErrorNumber& x,
                                         const Coefficients& c, const Divisor& one_less) {
    const Rounded u = c.u, one = 1.0, old = size_of(s.value), before = s.error;
    const Rounded reach = high * (old + before);
    const bool twice = c.fma == 0.0;  // whether product and sum are rounded
    s.value = w * s.value + x.value;
    const Rounded e = high * before + we * old + x.error + c.eta;
    const Rounded more = twice ? e + u * reach : e;
    s.peak = raised(s.peak, twice ? reach * (one + u) : Rounded(0.0));
    s.error = (more + u * size_of(s.value)) / one_less + c.add_eta;
}

__device__ __forceinline__ void in_order_compensated(ErrorState& s, Rounded w, Rounded we,
                                                     Rounded high, const ErrorNumber& x,
                                                     const Coefficients& c) {
    const Rounded u = c.u, one = 1.0, two = 2.0, old = size_of(s.value);
    const Rounded reach = high * (old + s.error + s.rest);
    s.value = w * s.value + x.value;
    Rounded e = high * s.error + we * old + x.error + c.eta + c.add_eta;
    Rounded inherited = high * s.rest;
    if (c.comp == 1.0)
        e = e + u * (reach + size_of(x.value) + x.error + s.rest);
    else
        inherited = inherited + two * u * reach;
    const Rounded rounding = Rounded(5.0) * u;
    Rounded word = size_of(s.value) + e + (one + two * rounding) * inherited;
    word = word / (one - u * (one + two * rounding));
    const Rounded rest = inherited + u * word;
    s.error = e + rounding * rest;
    s.rest = (one + rounding) * rest;
    s.peak = raised(s.peak, larger(reach * (one + u), word));
}

// KEEPS: the state may be rounded where it is kept.
template <bool TREES, bool COMPENSATED, bool KEEPS = true>
__device__ __forceinline__ void advance(ErrorState& s, const ErrorNumber& w,
                                        const ErrorNumber& x, const Coefficients& c,
                                        const Divisor& one_less, bool boundary,
                                        const Path& path) {
    if (KEEPS && boundary && c.state_u > 0.0)
        keep_state<TREES, COMPENSATED>(s, c, path);
    const Rounded high = size_of(w.value) + w.error;
    s.peak = raised(s.peak, raised(w.peak, x.peak));
    if (TREES)
        any_order(s, w.value, w.error, high, x, c);
    else if (COMPENSATED)
        in_order_compensated(s, w.value, w.error, high, x, c);
    else
        in_order(s, w.value, w.error, high, x, c, one_less);
    if (TREES) {
        s.span = larger(high, high * (Rounded(1.0) + c.u) * s.span);
        s.peak = raised(s.peak, c.products > 0.0 ? s.span : Rounded(0.0));
    }
}

// Squares of unit roundoffs and what underflow adds to each.
struct MomentCoefficients {
    double product, sum, state, product_floor, sum_floor, state_floor;
};

struct Moment {
    Rounded value, moment;
};

__device__ __forceinline__ void advance(Moment& s, const Moment& w, const Moment& x,
                                        const MomentCoefficients& c, bool boundary) {
    Rounded v = s.moment;
    if (boundary) v = v + (Rounded(c.state) * s.value * s.value + c.state_floor);
    const Rounded p = w.value * s.value;
    v = w.value * w.value * v + w.moment * (s.value * s.value + v) +
        Rounded(c.product) * p * p + c.product_floor;
    s.value = p + x.value;
    s.moment = v + x.moment + Rounded(c.sum) * s.value * s.value + c.sum_floor;
}
