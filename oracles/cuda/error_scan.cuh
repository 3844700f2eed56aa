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

__device__ __forceinline__ Rounded raised(Rounded peak, Rounded top) {
    if (top <= peak) return peak;
    return top == top ? top : infinity();
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
                                         const Coefficients& c) {
    const Rounded u = c.u, one = 1.0, old = size_of(s.value), before = s.error;
    const Rounded reach = high * (old + before);
    s.value = w * s.value + x.value;
    Rounded e = high * before + we * old + x.error + c.eta;
    if (c.fma == 0.0) {
        e = e + u * reach;
        s.peak = raised(s.peak, reach * (one + u));
    }
    s.error = (e + u * size_of(s.value)) / (one - u) + c.add_eta;
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

template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ void advance(ErrorState& s, const ErrorNumber& w,
                                        const ErrorNumber& x, const Coefficients& c,
                                        bool boundary, const Path& path) {
    if (boundary && c.state_u > 0.0) keep_state<TREES, COMPENSATED>(s, c, path);
    const Rounded high = size_of(w.value) + w.error;
    s.peak = raised(s.peak, raised(w.peak, x.peak));
    if (TREES)
        any_order(s, w.value, w.error, high, x, c);
    else if (COMPENSATED)
        in_order_compensated(s, w.value, w.error, high, x, c);
    else
        in_order(s, w.value, w.error, high, x, c);
    if (c.products > 0.0) {
        s.span = larger(high, high * (Rounded(1.0) + c.u) * s.span);
        s.peak = raised(s.peak, s.span);
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
