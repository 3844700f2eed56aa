// The scan of states that a rank-one transition moves, a thread for every column, and
// the norms of those transitions: column_scan.py and transition_norm.py have the
// formulas. Sums over keys are in another order here, which the bounds allow.
#include "layout.cuh"

using In = Operand<1>;

// An operand [G, T, K] or [G, T, L] along its last two axes, from one g on.
struct Rows {
    const double* here;
    long long step, next;

    __device__ __forceinline__ Rows(const In& x, long long g, int axis)
        : here(x.part[0] + g * x.stride[0][0]),
          step(x.stride[0][1]),
          next(x.stride[0][axis]) {}
    __device__ __forceinline__ double at(long long t, long long i) const {
        return here[t * step + i * next];
    }
    __device__ __forceinline__ void prefetch(long long t, long long i) const {
#ifdef __CUDACC__
        asm volatile("prefetch.global.L1 [%0];" ::"l"(here + t * step + i * next));
#endif
    }
};

// Up to KEYS keys, in registers while they fit, else in local memory.
template <int KEYS>
__global__ void column_scan(In w, In p, In q, In k, In r, In v, In grow, In loss, In own,
                            In read, In read_loss, double last, double* state,
                            double* error, double* o, double* states, double* errors,
                            Shape shape) {
    constexpr int UNROLLED = KEYS <= 64 ? KEYS : 8;
    constexpr int WARP = 32, SECTOR = 4;  // threads, and doubles that memory gives at once
    const long long index = thread_index(), lanes = shape.lanes, steps = shape.steps;
    if (index >= shape.groups * lanes) return;
    long long g, l;
    split(index, lanes, g, l);
    const int keys = static_cast<int>(shape.keys);
    const Rows ws(w, g, 2), ps(p, g, 2), qs(q, g, 2), ks(k, g, 2), rs(r, g, 2);
    const Rows vs(v, g, 3), grows(grow, g, 3), losses(loss, g, 3), owns(own, g, 3);
    const Rows reads(read, g, 3), read_losses(read_loss, g, 3);
    double s[KEYS], size = 0.0, e = error[index];
    double* const columns = state + g * keys * lanes + l;
#pragma unroll UNROLLED
    for (int i = 0; i < KEYS; ++i) {
        s[i] = i < keys ? columns[i * lanes] : 0.0;
        size += s[i] * s[i];
    }
    const long long whole = shape.groups * steps * lanes;
    for (long long t = 0; t < steps; ++t) {
        // Threads of a warp read the same rows: each fetches its share of the next ones.
        if (t + 1 < steps)
            for (int i = threadIdx.x % WARP * SECTOR; i < keys; i += WARP * SECTOR) {
                qs.prefetch(t + 1, i);
                ws.prefetch(t + 1, i);
                ps.prefetch(t + 1, i);
                ks.prefetch(t + 1, i);
                rs.prefetch(t + 1, i);
            }
        const double lost = losses.at(t, 0);
        e = (grows.at(t, 0) + lost) * e + lost * sqrt(size);
        double inner[4] = {0.0, 0.0, 0.0, 0.0}, out[4] = {0.0, 0.0, 0.0, 0.0};
        double square[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll UNROLLED
        for (int i = 0; i < KEYS; ++i)
            if (i < keys) inner[i % 4] += qs.at(t, i) * s[i];
        const double seen = (inner[0] + inner[1]) + (inner[2] + inner[3]);
        const double value = vs.at(t, l);
#pragma unroll UNROLLED
        for (int i = 0; i < KEYS; ++i)
            if (i < keys) {
                const double kept = ps.at(t, i) * seen + ws.at(t, i) * s[i];
                const double x = ks.at(t, i) * value + kept;
                s[i] = x;
                square[i % 4] += x * x;
                out[i % 4] += rs.at(t, i) * x;
            }
        size = (square[0] + square[1]) + (square[2] + square[3]);
        const double length = sqrt(size);
        e += owns.at(t, l) + last * length;
        const double above = length + e;
        double* const place = o + (g * steps + t) * lanes + l;
        place[0] = (out[0] + out[1]) + (out[2] + out[3]);
        place[whole] = reads.at(t, 0) * e + read_losses.at(t, 0) * above;
        place[2 * whole] = above;
        if (states != nullptr) {
            const long long at = g * (steps + 1) + t + 1;
#pragma unroll UNROLLED
            for (int i = 0; i < KEYS; ++i)
                if (i < keys) states[(at * keys + i) * lanes + l] = s[i];
            errors[at * lanes + l] = e;
        }
    }
#pragma unroll UNROLLED
    for (int i = 0; i < KEYS; ++i)
        if (i < keys) columns[i * lanes] = s[i];
    error[index] = e;
}

// ||diag(w) + p q^T||^2 from above, [G, T], a thread for each.
__global__ void transition_norms(In w, In p, In q, double least_above, long long halvings,
                                 double smallest, double* found, Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.steps) return;
    long long g, t;
    split(index, shape.steps, g, t);
    const Rows ws(w, g, 2), ps(p, g, 2), qs(q, g, 2);
    double top = 0.0, left = 0.0, right = 0.0;
    bool finite = true;
    for (long long i = 0; i < shape.keys; ++i) {
        const double a = ws.at(t, i), b = ps.at(t, i), c = qs.at(t, i);
        const double square = a * a;
        finite = finite && square <= 1.7976931348623157e308;
        top = square > top ? square : top;
        left += b * b;
        right += c * c;
    }
    const double apart = sqrt(top) + sqrt(left * right), reach = apart * apart;
    finite = finite && reach <= 1.7976931348623157e308;
    double low = top * (1.0 + least_above) + smallest;
    double high = reach * (1.0 + least_above);
    high = high > low ? high : low;
    for (long long n = 0; n < halvings; ++n) {
        const double middle = 0.5 * (low + high);
        double x = 0.0, y = 0.0, z = 0.0;
        for (long long i = 0; i < shape.keys; ++i) {
            const double a = ws.at(t, i), b = ps.at(t, i), c = qs.at(t, i);
            const double over = 1.0 / (middle - a * a);
            x += (a * b) * (a * b) * over;
            y += a * b * c * over;
            z += c * c * over;
        }
        // A margin for the roundings of the sums.
        if ((left + x) * z * (1.0 + 1e-12) < (1.0 - y) * (1.0 - y))
            high = middle;
        else
            low = middle;
    }
    found[index] = finite ? high : 1.0 / 0.0;
}
