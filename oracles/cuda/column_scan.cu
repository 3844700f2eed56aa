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
};

enum {
    WARP = 32,  // threads
    KEYS = 8,   // of a column that a thread holds
};

// The keys of a row [G, T, K] that a thread takes, of one step: every SHARES-th one. Those
// of the next step are fetched as soon as these are used, long before they are needed.
template <int SHARES>
struct Keys {
    const double* next;
    long long step;
    double x[KEYS];

    // Keys of a row lie side by side.
    __device__ __forceinline__ Keys(const In& row, long long g, int share, int count)
        : next(row.part[0] + g * row.stride[0][0] + share), step(row.stride[0][1]) {
#pragma unroll
        for (int j = 0; j < KEYS; ++j) x[j] = j < count ? next[j * SHARES] : 0.0;
        next += step;
    }
    __device__ __forceinline__ void fetch(int j) { x[j] = next[j * SHARES]; }
};

// The entry of an operand [G, T, L] or [G, T] at one step, fetched likewise.
struct Entry {
    const double* next;
    long long step;
    double x;

    __device__ __forceinline__ Entry(const In& operand, long long g, long long l)
        : next(operand.part[0] + g * operand.stride[0][0] + l * operand.stride[0][3]),
          step(operand.stride[0][1]),
          x(*next) {
        next += step;
    }
    __device__ __forceinline__ void fetch() {
        x = *next;
        next += step;
    }
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
    if (steps == 0) return;
    // Of keys that lie apart by SHARES.
    const int count = static_cast<int>((shape.keys - share + SHARES - 1) / SHARES);
    Keys<SHARES> ws(w, g, share, count), ps(p, g, share, count), qs(q, g, share, count);
    Keys<SHARES> ks(k, g, share, count), rs(r, g, share, count);
    Entry vs(v, g, l), owns(own, g, l), grows(grow, g, 0), losses(loss, g, 0);
    Entry reads(read, g, 0), read_losses(read_loss, g, 0);
    double s[KEYS], square = 0.0, e = error[index];
    const long long apart = SHARES * lanes, whole = shape.groups * steps * lanes;
    double* const column = state + (g * shape.keys + share) * lanes + l;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        s[j] = j < count ? column[j * apart] : 0.0;
        square += s[j] * s[j];
    }
    double length = sqrt(shared_sum<SHARES>(square));
    double* out = o + g * steps * lanes + l;
    // S_1 and its error, where states are kept.
    const long long second = g * (steps + 1) + 1;
    double* kept = states + (second * shape.keys + share) * lanes + l;
    double* kept_error = errors + second * lanes + l;
    const bool keeps = there && states != nullptr;
    for (long long t = 0; t < steps; ++t) {
        const bool more = t + 1 < steps;
        double inner[2] = {0.0, 0.0}, sums[2] = {0.0, 0.0}, squares[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < KEYS; ++j)
            if (j < count) {
                inner[j % 2] += qs.x[j] * s[j];
                if (more) qs.fetch(j);
            }
        const double seen = shared_sum<SHARES>(inner[0] + inner[1]);
#pragma unroll
        for (int j = 0; j < KEYS; ++j)
            if (j < count) {
                const double kept = ps.x[j] * seen + ws.x[j] * s[j];
                const double x = ks.x[j] * vs.x + kept;
                s[j] = x;
                squares[j % 2] += x * x;
                sums[j % 2] += rs.x[j] * x;
                if (more) {
                    ps.fetch(j);
                    ws.fetch(j);
                    ks.fetch(j);
                    rs.fetch(j);
                }
            }
        const double told = shared_sum<SHARES>(sums[0] + sums[1]);
        e = (grows.x + losses.x) * e + losses.x * length;
        length = sqrt(shared_sum<SHARES>(squares[0] + squares[1]));
        e += owns.x + last * length;
        const double above = length + e;
        if (tells) {
            out[0] = told;
            out[whole] = reads.x * e + read_losses.x * above;
            out[2 * whole] = above;
        }
        if (keeps) {
#pragma unroll
            for (int j = 0; j < KEYS; ++j)
                if (j < count) kept[j * apart] = s[j];
            if (tells) *kept_error = e;
        }
        if (more) {
            vs.fetch();
            owns.fetch();
            grows.fetch();
            losses.fetch();
            reads.fetch();
            read_losses.fetch();
        }
        qs.next += qs.step;
        ps.next += ps.step;
        ws.next += ws.step;
        ks.next += ks.step;
        rs.next += rs.step;
        out += lanes;
        kept += shape.keys * lanes;
        kept_error += lanes;
    }
    if (!there) return;
#pragma unroll
    for (int j = 0; j < KEYS; ++j)
        if (j < count) column[j * apart] = s[j];
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
