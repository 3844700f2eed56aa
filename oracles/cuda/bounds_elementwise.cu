// Numbers of the bounds entry by entry, as bounds/error_number.py has them, operation by
// operation: a launch where arrays would take a dozen.
#include "error_scan.cuh"
#include "layout.cuh"

using In = Operand<4>;

// A binary format: significand bits, exponent of its least normal number, and its ends.
struct Format {
    long long precision, emin;
    double largest;
    long long has_infinity;
};

// Whether rounding to the format changes nothing: zero, infinity, and whole multiples of
// the last place.
__device__ __forceinline__ bool holds(const Format& format, double x) {
    const double size = fabs(x);
    if (size == 0.0) return true;
    if (!(size <= format.largest)) return size == infinity().x && format.has_infinity;
    const int field = static_cast<int>(__double_as_longlong(size) >> 52);
    long long place = (field == 0 ? 1 : field) - 1023;
    if (place < format.emin) place = format.emin;
    const double units = ldexp(size, static_cast<int>(format.precision - 1 - place));
    return rint(units) == units;
}

// Magnitude, error and peak of stored inputs, [3, count].
__global__ void __launch_bounds__(128)
    error_given(const double* values, Format format, double u, double eta, double flushed,
                double* out, long long count) {
    const long long i = thread_index();
    if (i >= count) return;
    const Rounded size = fabs(values[i]);
    Rounded error = holds(format, values[i]) ? Rounded(0.0) : Rounded(u) * size + eta;
    if (size < flushed) error = larger(error, size);
    out[i] = size.x;
    out[count + i] = error.x;
    out[2 * count + i] = (size + error).x;
}

// The larger one as NumPy has it: NaN where either is.
__device__ __forceinline__ Rounded maximum(Rounded a, Rounded b) {
    return a != a || a >= b ? a : b;
}

struct Model {
    double e0, e1, eta;
};

// exp(x), whose error is e0 + e1 |x| of it.
__global__ void __launch_bounds__(128) error_exp(In x, Model model, Room<4> out,
                                                 Shape shape) {
    const long long i = thread_index();
    if (i >= shape.groups * shape.steps * shape.keys * shape.lanes) return;
    long long row, slab, g, t, k, l;
    split(i, shape.lanes, row, l);
    split(row, shape.keys, slab, k);
    split(slab, shape.steps, g, t);
    const double exponent = x.at(0, g, t, k, l), off = x.at(2, g, t, k, l);
    const Rounded one = 1.0, error = off, eta = model.eta, value = exp(exponent);
    const Rounded own = Rounded(model.e0) + Rounded(model.e1) * (size_of(exponent) + error);
    const Rounded top = maximum(value, exp((Rounded(exponent) + error).x));
    Rounded e = value * expm1(off) + top * own + eta;
    if (value == 0.0) e = top * (one + own) + eta;
    Rounded peak = x.at(3, g, t, k, l);
    if (exponent == -infinity().x) e = peak = Rounded(0.0);
    out.at(0, g, t, k, l) = value.x;
    out.at(1, g, t, k, l) = value.x;
    out.at(2, g, t, k, l) = e.x;
    out.at(3, g, t, k, l) = maximum(value + e, peak).x;
}
