// The companion scans of the bounds over a tile: bounds/error_tile.py and the loops of
// bounds/moment_system.py, operation by operation, a thread for every lane or state.
#include "error_scan.cuh"
#include "layout.cuh"

using In = Operand<4>;
using MomentIn = Operand<2>;
constexpr int COMPONENTS = 11, NUMBER = 4;

__device__ __forceinline__ ErrorNumber number_at(const In& x, long long g, long long t,
                                                 long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l), x.at(2, g, t, k, l),
            x.at(3, g, t, k, l)};
}

// Entry i of arrays [COMPONENTS, count].
__device__ __forceinline__ ErrorState load(const double* s, long long i,
                                           long long count) {
    ErrorState e;
    e.value = s[i];
    e.size = s[count + i];
    e.error = s[2 * count + i];
    e.stored = s[3 * count + i];
    e.floor = s[4 * count + i];
    e.top = s[5 * count + i];
    e.reach = s[6 * count + i];
    e.rest = s[7 * count + i];
    e.span = s[8 * count + i];
    e.peak = s[9 * count + i];
    e.running = s[10 * count + i];
    return e;
}

__device__ __forceinline__ void store(double* s, long long i, long long count,
                                      const ErrorState& e) {
    const Rounded parts[COMPONENTS] = {e.value, e.size,  e.error, e.stored,
                                       e.floor, e.top,   e.reach, e.rest,
                                       e.span,  e.peak,  e.running};
#pragma unroll
    for (int p = 0; p < COMPONENTS; ++p) s[p * count + i] = parts[p].x;
}

// Rows of a state kept or read out, each `stride` from the next.
template <bool TREES>
__device__ __forceinline__ void write_state(double* to, long long stride,
                                            const ErrorState& s, Rounded e,
                                            Rounded peak) {
    to[0] = s.value.x;
    to[stride] = TREES ? s.size.x : size_of(s.value).x;
    to[2 * stride] = e.x;
    to[3 * stride] = peak.x;
    to[4 * stride] = s.floor.x;
}

// The error e and the peak of a state that is read from where it is stored.
__device__ __forceinline__ void as_stored(const ErrorState& s, const Coefficients& c,
                                          Rounded& e, Rounded& peak) {
    const Rounded top = size_of(s.value) + e;
    if (!(top <= c.state_largest)) peak = infinity();
    e = e + (Rounded(c.state_u) * top + c.state_eta);
}

template <bool TREES, bool COMPENSATED>
__global__ void __launch_bounds__(128)
    error_forward(In w, In x, In r, bool has_r, double* s, Coefficients c, double* o,
                  double* states, long long start, long long every, const Path* path,
                  Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const long long count = shape.groups * shape.keys * shape.lanes;
    const long long outs = shape.groups * shape.steps * shape.lanes;
    const long long kept = (shape.steps + 1) * count;
    const Rounded u = c.u, eta = c.eta;
    const bool stores = c.state_u > 0.0;
    const Divisor one_less(Rounded(1.0) - u);
    for (long long k = 0; k < shape.keys; ++k) {
        const long long i = (g * shape.keys + k) * shape.lanes + l;
        ErrorState one = load(s, i, count);
        if (states) {
            Rounded e = settle<TREES, COMPENSATED>(one, c, path[start]);
            Rounded peak = one.peak;
            if (stores && start % every == 0) as_stored(one, c, e, peak);
            write_state<TREES>(states + i, kept, one, e, peak);
        }
        for (long long t = 0; t < shape.steps; ++t) {
            const long long here = start + t;
            advance<TREES, COMPENSATED>(one, number_at(w, g, t, k, l),
                                        number_at(x, g, t, k, l), c, one_less,
                                        here % every == 0, path[here]);
            one.running = infinity();
            Rounded e = settle<TREES, COMPENSATED>(one, c, path[here + 1]);
            Rounded peak = one.peak;
            if (stores && (here + 1) % every == 0) as_stored(one, c, e, peak);
            const Rounded size = TREES ? one.size : size_of(one.value);
            if (states)
                write_state<TREES>(states + (t + 1) * count + i, kept, one, e, peak);
            double* out = o + (g * shape.steps + t) * shape.lanes + l;
            if (has_r) {
                const ErrorNumber rt = number_at(r, g, t, k, l);
                const Rounded m = rt.size * size;
                Rounded pe = rt.size * e + rt.error * (size + e);
                pe = pe + (u * (m + pe) + eta);
                out[0] = (Rounded(out[0]) + rt.value * one.value).x;
                out[outs] = (Rounded(out[outs]) + m).x;
                out[2 * outs] = (Rounded(out[2 * outs]) + pe).x;
                const Rounded top = raised(raised(one.peak, rt.peak), m + pe);
                out[3 * outs] = raised(out[3 * outs], top).x;
            } else {
                out[0] = one.value.x;
                out[outs] = size.x;
                out[2 * outs] = e.x;
                out[3 * outs] = one.peak.x;
            }
        }
        store(s, i, count, one);
    }
}

template <bool TREES, bool COMPENSATED>
__global__ void __launch_bounds__(128)
    error_adjoint(In w, In y, double* s, double* next_w, Coefficients c, double* states,
                  long long start, long long total, long long every, const Path* path,
                  Shape shape) {
    const long long i = thread_index();
    const long long count = shape.groups * shape.keys * shape.lanes;
    if (i >= count) return;
    long long row, g, k, l;
    split(i, shape.lanes, row, l);
    split(row, shape.keys, g, k);
    const Divisor one_less(Rounded(1.0) - c.u);
    ErrorState one = load(s, i, count);
    ErrorNumber above = {next_w[i], next_w[count + i], next_w[2 * count + i],
                         next_w[3 * count + i]};
    for (long long t = shape.steps - 1; t >= 0; --t) {
        const long long done = total - 1 - (start + t);
        const bool boundary = done % every == 0 || (start + t + 1) % every == 0;
        advance<TREES, COMPENSATED>(one, above, number_at(y, g, t, k, l), c, one_less,
                                    boundary, path[done]);
        const Rounded e = settle<TREES, COMPENSATED>(one, c, path[done + 1]);
        write_state<TREES>(states + t * count + i, shape.steps * count, one, e,
                           one.peak);
        above = number_at(w, g, t, k, l);
    }
    store(s, i, count, one);
    const Rounded parts[NUMBER] = {above.value, above.size, above.error, above.peak};
#pragma unroll
    for (int p = 0; p < NUMBER; ++p) next_w[p * count + i] = parts[p].x;
}

// Final states with their total errors, [5, count].
template <bool TREES, bool COMPENSATED>
__global__ void __launch_bounds__(128)
    error_end(const double* s, Coefficients c, const Path* path, double* out,
              long long count) {
    const long long i = thread_index();
    if (i >= count) return;
    ErrorState one = load(s, i, count);
    const Rounded e = settle<TREES, COMPENSATED>(one, c, *path);
    write_state<TREES>(out + i, count, one, one.running < e ? one.running : e,
                       one.peak);
}

__device__ __forceinline__ Moment moment_at(const MomentIn& x, long long g, long long t,
                                            long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l)};
}

__global__ void __launch_bounds__(128)
    moment_forward(MomentIn w, MomentIn x, MomentIn r, bool has_r, double* s,
                   MomentCoefficients c, double* o, long long start, long long every,
                   Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const long long count = shape.groups * shape.keys * shape.lanes;
    const long long outs = shape.groups * shape.steps * shape.lanes;
    for (long long k = 0; k < shape.keys; ++k) {
        const long long i = (g * shape.keys + k) * shape.lanes + l;
        Moment one = {s[i], s[count + i]};
        for (long long t = 0; t < shape.steps; ++t) {
            advance(one, moment_at(w, g, t, k, l), moment_at(x, g, t, k, l), c,
                    (start + t) % every == 0);
            double* out = o + (g * shape.steps + t) * shape.lanes + l;
            if (has_r) {
                const Moment rt = moment_at(r, g, t, k, l);
                const Rounded term = rt.value * one.value;
                const Rounded total = Rounded(out[0]) + term;
                Rounded v = Rounded(out[outs]) +
                            (rt.value * rt.value * one.moment +
                             rt.moment * (one.value * one.value + one.moment) +
                             Rounded(c.product) * term * term + c.product_floor);
                if (k > 0) v = v + (Rounded(c.sum) * total * total + c.sum_floor);
                out[0] = total.x;
                out[outs] = v.x;
            } else {
                out[0] = one.value.x;
                out[outs] = one.moment.x;
            }
        }
        s[i] = one.value.x;
        s[count + i] = one.moment.x;
    }
}
