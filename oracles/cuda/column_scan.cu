// The scan of states that a rank-one transition moves, a few threads for every column,
// and the norms of those transitions: column_scan.py and transition_norm.py have the
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

enum {
    WARP = 32,   // threads
    KEYS = 8,    // of a column that a thread holds
    AHEAD = 2,   // steps that rows are fetched before they are needed
    SECTOR = 4,  // doubles that memory gives at once
};

// The sum over the threads of a column, to the bit the same in each.
template <int SHARES>
__device__ __forceinline__ double shared_sum(double x) {
#pragma unroll
    for (int apart = WARP / 2; apart >= WARP / SHARES; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

// Up to KEYS * SHARES keys: key i is held by the thread i % SHARES of its column, so that
// threads which read together read side by side. All threads of a warp take all steps:
// sums pass through shuffles.
template <int SHARES>
__global__ void column_scan(In w, In p, In q, In k, In r, In v, In grow, In loss, In own,
                            In read, In read_loss, double last, double* state,
                            double* error, double* o, double* states, double* errors,
                            Shape shape) {
    constexpr int COLUMNS = WARP / SHARES;  // of a warp
    const long long lanes = shape.lanes, steps = shape.steps, all = shape.groups * lanes;
    const int place = threadIdx.x % WARP, share = place / COLUMNS;
    const long long begin = thread_index() / WARP * COLUMNS;
    if (begin >= all) return;
    // A column beyond the last one is that one again, and is not written.
    const bool there = begin + place % COLUMNS < all, tells = there && share == 0;
    const long long index = there ? begin + place % COLUMNS : all - 1;
    long long g, l;
    split(index, lanes, g, l);
    const int keys = static_cast<int>(shape.keys);
    const Rows ws(w, g, 2), ps(p, g, 2), qs(q, g, 2), ks(k, g, 2), rs(r, g, 2);
    const Rows vs(v, g, 3), grows(grow, g, 3), losses(loss, g, 3), owns(own, g, 3);
    const Rows reads(read, g, 3), read_losses(read_loss, g, 3);
    double s[KEYS], square = 0.0, e = error[index];
    double* const columns = state + g * keys * lanes + l;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        const int i = j * SHARES + share;
        s[j] = i < keys ? columns[i * lanes] : 0.0;
        square += s[j] * s[j];
    }
    double length = sqrt(shared_sum<SHARES>(square));
    const long long whole = shape.groups * steps * lanes;
    for (long long t = 0; t < steps; ++t) {
        // Threads of a warp read the same rows: each fetches its share of later ones.
        if (t + AHEAD < steps) {
            for (int i = place * SECTOR; i < keys; i += WARP * SECTOR) {
                qs.prefetch(t + AHEAD, i);
                ws.prefetch(t + AHEAD, i);
                ps.prefetch(t + AHEAD, i);
                ks.prefetch(t + AHEAD, i);
                rs.prefetch(t + AHEAD, i);
            }
            vs.prefetch(t + AHEAD, l);
            owns.prefetch(t + AHEAD, l);
        }
        const double lost = losses.at(t, 0), value = vs.at(t, l);
        e = (grows.at(t, 0) + lost) * e + lost * length;
        double inner[2] = {0.0, 0.0}, out[2] = {0.0, 0.0}, squares[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            const int i = j * SHARES + share;
            if (i < keys) inner[j % 2] += qs.at(t, i) * s[j];
        }
        const double seen = shared_sum<SHARES>(inner[0] + inner[1]);
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            const int i = j * SHARES + share;
            if (i < keys) {
                const double kept = ps.at(t, i) * seen + ws.at(t, i) * s[j];
                const double x = ks.at(t, i) * value + kept;
                s[j] = x;
                squares[j % 2] += x * x;
                out[j % 2] += rs.at(t, i) * x;
            }
        }
        length = sqrt(shared_sum<SHARES>(squares[0] + squares[1]));
        const double told = shared_sum<SHARES>(out[0] + out[1]);
        e += owns.at(t, l) + last * length;
        if (tells) {
            const double above = length + e;
            double* const row = o + (g * steps + t) * lanes + l;
            row[0] = told;
            row[whole] = reads.at(t, 0) * e + read_losses.at(t, 0) * above;
            row[2 * whole] = above;
        }
        if (there && states != nullptr) {
            const long long at = g * (steps + 1) + t + 1;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                const int i = j * SHARES + share;
                if (i < keys) states[(at * keys + i) * lanes + l] = s[j];
            }
            if (tells) errors[at * lanes + l] = e;
        }
    }
    if (!there) return;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        const int i = j * SHARES + share;
        if (i < keys) columns[i * lanes] = s[j];
    }
    if (tells) error[index] = e;
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
