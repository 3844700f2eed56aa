// The companion scans of the bounds over a tile: bounds/error_tile.py and the loops of
// bounds/moment_system.py, operation by operation, a thread for every lane or state.
#include "error_scan.cuh"
#include "layout.cuh"

enum { WARP = 32 };
static constexpr unsigned ALL = 0xffffffffu;  // threads of it

using In = Operand<4>;
using MomentIn = Operand<2>;

__device__ __forceinline__ ErrorNumber number_at(const In& x, long long g, long long t,
                                                 long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l), x.at(2, g, t, k, l),
            x.at(3, g, t, k, l)};
}

// Entry i of arrays [COMPONENTS, count]; what a kernel in order does not use is zero.
template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ ErrorState load(const double* s, long long i,
                                           long long count) {
    ErrorState e;
    e.size = e.stored = e.floor = e.top = e.reach = e.rest = e.span = 0.0;
    e.value = s[i];
    e.error = s[2 * count + i];
    e.peak = s[9 * count + i];
    e.running = s[10 * count + i];
    if (TREES || COMPENSATED) e.rest = s[7 * count + i];
    if (TREES) {
        e.size = s[count + i];
        e.stored = s[3 * count + i];
        e.floor = s[4 * count + i];
        e.top = s[5 * count + i];
        e.reach = s[6 * count + i];
        e.span = s[8 * count + i];
    }
    return e;
}

template <bool TREES, bool COMPENSATED>
__device__ __forceinline__ void store(double* s, long long i, long long count,
                                      const ErrorState& e) {
    s[i] = e.value.x;
    s[2 * count + i] = e.error.x;
    s[9 * count + i] = told(e.peak);
    s[10 * count + i] = e.running.x;
    if (TREES || COMPENSATED) s[7 * count + i] = e.rest.x;
    if (TREES) {
        s[count + i] = e.size.x;
        s[3 * count + i] = e.stored.x;
        s[4 * count + i] = e.floor.x;
        s[5 * count + i] = e.top.x;
        s[6 * count + i] = e.reach.x;
        s[8 * count + i] = e.span.x;
    }
}

// Rows of a state kept or read out, each `stride` from the next.
template <bool TREES>
__device__ __forceinline__ void write_state(double* to, long long stride,
                                            const ErrorState& s, Rounded e,
                                            Rounded peak) {
    to[0] = s.value.x;
    to[stride] = TREES ? s.size.x : size_of(s.value).x;
    to[2 * stride] = e.x;
    to[3 * stride] = told(peak);
    to[4 * stride] = s.floor.x;
}

// The error e and the peak of a state that is read from where it is stored.
__device__ __forceinline__ void as_stored(const ErrorState& s, const Coefficients& c,
                                          Rounded& e, Rounded& peak) {
    const Rounded top = size_of(s.value) + e;
    if (!(top <= c.state_largest)) peak = infinity();
    e = e + (Rounded(c.state_u) * top + c.state_eta);
}

// x y as ErrorNumber multiplies.
__device__ __forceinline__ ErrorNumber product(const ErrorNumber& x,
                                               const ErrorNumber& y, Rounded u,
                                               Rounded eta) {
    ErrorNumber z;
    z.value = x.value * y.value;
    z.size = x.size * y.size;
    const Rounded e = x.size * y.error + x.error * (y.size + y.error);
    z.error = e + (u * (z.size + e) + eta);
    z.peak = raised(raised(z.size + z.error, x.peak), y.peak);
    return z;
}

struct Rounding {
    double u, eta;
};

// Products entry by entry; sizes of 1 are repeated.
__global__ void __launch_bounds__(128)
    error_product(In x, In y, Rounding rounding, Room<4> out, Shape shape) {
    const long long i = thread_index();
    if (i >= shape.groups * shape.steps * shape.keys * shape.lanes) return;
    long long row, slab, g, t, k, l;
    split(i, shape.lanes, row, l);
    split(row, shape.keys, slab, k);
    split(slab, shape.steps, g, t);
    const ErrorNumber z = product(number_at(x, g, t, k, l), number_at(y, g, t, k, l),
                                  rounding.u, rounding.eta);
    out.at(0, g, t, k, l) = z.value.x;
    out.at(1, g, t, k, l) = z.size.x;
    out.at(2, g, t, k, l) = z.error.x;
    out.at(3, g, t, k, l) = told(z.peak);
}

// The format that what is written is rounded into; without one it stays as it is.
struct Cast {
    double given, u, eta, largest;
};

// What is written into the state of a key: v, or k v.
__device__ __forceinline__ ErrorNumber written(ErrorNumber x, const Cast& cast) {
    if (cast.given > 0.0) {
        const Rounded top = size_of(x.value) + x.error;
        if (!(top <= cast.largest)) x.peak = infinity();
        x.error = x.error + (Rounded(cast.u) * top + cast.eta);
        x.peak = raised(x.peak, x.size + x.error);
    }
    return x;
}

// An operand along time for one g and l: the keys from k on, each `apart` from the next.
struct Track {
    const double* here[4];
    long long step[4], apart[4];

    __device__ __forceinline__ Track(const In& x, long long g, long long k, long long l,
                                     int spread) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const long long* s = x.stride[p];
            here[p] = x.part[p] ? x.part[p] + g * s[0] + k * s[2] + l * s[3] : &NOTHING;
            step[p] = x.part[p] ? s[1] : 0;
            apart[p] = x.part[p] ? s[2] * spread : 0;
        }
    }
    __device__ __forceinline__ ErrorNumber operator[](int key) const {
        return {here[0][key * apart[0]], here[1][key * apart[1]], here[2][key * apart[2]],
                here[3][key * apart[3]]};
    }
    __device__ __forceinline__ void next() {
#pragma unroll
        for (int p = 0; p < 4; ++p) here[p] += step[p];
    }
};

// Whether a step is a multiple of `every`, without a division for each.
struct Turns {
    long long left, every;

    __device__ __forceinline__ Turns(long long step, long long every)
        : left((every - step % every) % every), every(every) {}
    __device__ __forceinline__ bool due() const { return left == 0; }
    __device__ __forceinline__ void next() { left = (left == 0 ? every : left) - 1; }
};

// The sum over the threads that share a lane, each with keys of its own.
template <int SHARES>
__device__ __forceinline__ void add_shares(ErrorNumber& sum) {
#pragma unroll
    for (int apart = WARP / 2; apart >= WARP / SHARES; apart /= 2) {
        sum.value = sum.value + __shfl_xor_sync(ALL, sum.value.x, apart);
        sum.size = sum.size + __shfl_xor_sync(ALL, sum.size.x, apart);
        sum.error = sum.error + __shfl_xor_sync(ALL, sum.error.x, apart);
        sum.peak = raised(sum.peak, __shfl_xor_sync(ALL, sum.peak.x, apart));
    }
}

// Blocks that a multiprocessor should hold at once, as their registers allow without
// spilling: with threads that share lanes all of a card's are there from the start.
template <bool LONG_STATE, int KEYS, int SHARES>
constexpr int RESIDENT = SHARES > 1    ? (LONG_STATE ? 2 : 4)
                         : KEYS == 1 ? (LONG_STATE ? 4 : 5)
                         : KEYS == 2 ? 3
                                     : 2;

// The keys first..first + KEYS - 1 of every lane, step by step. Readouts go on from
// those of the keys before, so that sums are formed in order. With several SHARES as many
// threads of a warp take KEYS keys each, and with several parts the next KEYS * SHARES
// keys are other threads', whose readouts begin anew `apart` entries further on.
template <bool TREES, bool COMPENSATED, int KEYS, int SHARES>
__global__ void __launch_bounds__(128, RESIDENT<TREES || COMPENSATED, KEYS, SHARES>)
    error_forward(In w, In z, In v, In k, In r, bool has_z, bool has_k, bool has_r,
                  Cast cast, double* s, Coefficients c, double* o, double* states,
                  long long start, long long every, const Path* path, Shape shape,
                  Passes passes) {
    constexpr int LANES = WARP / SHARES;  // of a warp
    const long long threads = shape.groups * shape.lanes, all = passes.parts * threads;
    long long index = thread_index();
    int share = 0;
    bool there = index < all;
    if (SHARES > 1) {
        const long long begin = index / WARP * LANES;
        const int place = threadIdx.x % WARP;
        share = place / LANES;
        if (begin >= all) return;
        // A lane beyond the last one is that one again, and is not written.
        index = begin + place % LANES;
        there = index < all;
        index = there ? index : all - 1;
    } else if (!there) {
        return;
    }
    const bool tells = there && share == 0;
    long long part, rest, g, l;
    split(index, threads, part, rest);
    split(rest, shape.lanes, g, l);
    const long long first = passes.first + part * KEYS * SHARES + share;
    const long long count = shape.groups * shape.keys * shape.lanes;
    const long long outs = shape.groups * shape.steps * shape.lanes;
    const long long kept = (shape.steps + 1) * count;
    const Rounded u = c.u, eta = c.eta;
    const bool stores = c.state_u > 0.0, begun = passes.first > 0;
    const Divisor one_less(Rounded(1.0) - u);
    const long long place = (g * shape.keys + first) * shape.lanes + l;
    const long long next_key = shape.lanes * SHARES;
    ErrorState ones[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const long long at = place + i * next_key;
        ones[i] = load<TREES, COMPENSATED>(s, at, count);
        if (states && there) {
            Rounded e = settle<TREES, COMPENSATED>(ones[i], c, path[start]);
            Rounded peak = ones[i].peak;
            if (stores && start % every == 0) as_stored(ones[i], c, e, peak);
            write_state<TREES>(states + at, kept, ones[i], e, peak);
        }
    }
    Track ws(w, g, first, l, SHARES), zs(z, g, first, l, SHARES);
    Track ks(k, g, first, l, SHARES), rs(r, g, first, l, SHARES);
    Track vs(v, g, 0, l, 0);
    double* out = o + part * passes.apart + g * shape.steps * shape.lanes + l;
    Turns turns(start, every);
    for (long long t = 0; t < shape.steps; ++t, out += shape.lanes) {
        const long long here = start + t;
        const bool kept_before = turns.due();
        turns.next();
        const ErrorNumber value = vs[0];
        ErrorNumber sum = {0.0, 0.0, 0.0, 0.0};
        if (begun && share == 0)
            sum = {out[0], out[outs], out[2 * outs], out[3 * outs]};
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            ErrorState& one = ones[i];
            const ErrorNumber x =
                written(has_k ? product(ks[i], value, u, eta) : value, cast);
            ErrorNumber decay = ws[i];
            if (has_z) decay = product(decay, zs[i], u, eta);
            advance<TREES, COMPENSATED>(one, decay, x, c, one_less, kept_before,
                                        path[here]);
            one.running = infinity();
            Rounded e = settle<TREES, COMPENSATED>(one, c, path[here + 1]);
            Rounded peak = one.peak;
            if (stores && turns.due()) as_stored(one, c, e, peak);
            const Rounded size = TREES ? one.size : size_of(one.value);
            if (states && there)
                write_state<TREES>(states + (t + 1) * count + place + i * next_key, kept,
                                   one, e, peak);
            if (has_r) {
                const ErrorNumber rt = rs[i];
                const Rounded m = rt.size * size;
                Rounded pe = rt.size * e + rt.error * (size + e);
                pe = pe + (u * (m + pe) + eta);
                sum.value = sum.value + rt.value * one.value;
                sum.size = sum.size + m;
                sum.error = sum.error + pe;
                const Rounded top = raised(raised(one.peak, rt.peak), m + pe);
                sum.peak = raised(sum.peak, top);
            } else {
                sum = {one.value, size, e, one.peak};
            }
        }
        if (SHARES > 1) add_shares<SHARES>(sum);
        if (tells) {
            out[0] = sum.value.x;
            out[outs] = sum.size.x;
            out[2 * outs] = sum.error.x;
            out[3 * outs] = told(sum.peak);
        }
        ws.next();
        if (has_z) zs.next();
        if (has_k) ks.next();
        if (has_r) rs.next();
        vs.next();
    }
    if (!there) return;
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        store<TREES, COMPENSATED>(s, place + i * next_key, count, ones[i]);
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
    ErrorState one = load<TREES, COMPENSATED>(s, i, count);
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
    store<TREES, COMPENSATED>(s, i, count, one);
    next_w[i] = above.value.x;
    next_w[count + i] = above.size.x;
    next_w[2 * count + i] = above.error.x;
    next_w[3 * count + i] = above.peak.x;
}

// Final states with their total errors, [5, count].
template <bool TREES, bool COMPENSATED>
__global__ void __launch_bounds__(128)
    error_end(const double* s, Coefficients c, const Path* path, double* out,
              long long count) {
    const long long i = thread_index();
    if (i >= count) return;
    ErrorState one = load<TREES, COMPENSATED>(s, i, count);
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
