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

enum : unsigned { ALL = 0xffffffffu };  // threads of a warp
enum { WARP = 32 };

// The sum over the threads of a column, to the bit the same in each.
template <int SHARES>
__device__ __forceinline__ double shared_sum(double x) {
#pragma unroll
    for (int apart = WARP / 2; apart >= WARP / SHARES; apart /= 2)
        x += __shfl_xor_sync(ALL, x, apart);
    return x;
}

// What a step takes, as much of it as a thread needs.
template <int KEYS>
struct Step {
    double w[KEYS], p[KEYS], q[KEYS], k[KEYS], r[KEYS];
    double v, own, grow, loss, read, read_loss;
};

// An operand along time.
struct Along {
    const double* at;
    long long step;

    __device__ __forceinline__ Along(const In& x, long long g, long long l,
                                     long long share)
        : at(x.part[0] + g * x.stride[0][0] + l * x.stride[0][3] + share),
          step(x.stride[0][1]) {}
    __device__ __forceinline__ double entry() {
        const double x = *at;
        at += step;
        return x;
    }
    // Every SHARES-th key: they lie side by side, and there are KEYS * SHARES of them.
    template <int KEYS, int SHARES>
    __device__ __forceinline__ void keys(double* x) {
#pragma unroll
        for (int j = 0; j < KEYS; ++j) x[j] = at[j * SHARES];
        at += step;
    }
};

// KEYS * SHARES keys, those beyond the last one zero: key i is held by the thread
// i % SHARES of its column, so that threads which read together read side by side. All
// threads of a warp take all steps, for sums pass through shuffles. A step's operands are
// read all at once, while the one before is computed.
template <int KEYS, int SHARES>
__global__ void column_scan(In w, In p, In q, In k, In r, In v, In grow, In loss, In own,
                            In read, In read_loss, double last, double* state,
                            double* error, double* o, double* states, double* errors,
                            Shape shape) {
    constexpr int COLUMNS = WARP / SHARES;  // of a warp
    const long long lanes = shape.lanes, steps = shape.steps, all = shape.groups * lanes;
    const int place = threadIdx.x % WARP, share = place / COLUMNS;
    const long long begin = thread_index() / WARP * COLUMNS;
    if (begin >= all || steps == 0) return;
    // A column beyond the last one is that one again, and is not written.
    const bool there = begin + place % COLUMNS < all, tells = there && share == 0;
    const long long index = there ? begin + place % COLUMNS : all - 1;
    long long g, l;
    split(index, lanes, g, l);
    Along ws(w, g, 0, share), ps(p, g, 0, share), qs(q, g, 0, share);
    Along ks(k, g, 0, share), rs(r, g, 0, share), vs(v, g, l, 0), owns(own, g, l, 0);
    Along grows(grow, g, 0, 0), losses(loss, g, 0, 0);
    Along reads(read, g, 0, 0), read_losses(read_loss, g, 0, 0);
    const auto taken = [&]() {
        Step<KEYS> x;
        qs.keys<KEYS, SHARES>(x.q);
        ps.keys<KEYS, SHARES>(x.p);
        ws.keys<KEYS, SHARES>(x.w);
        ks.keys<KEYS, SHARES>(x.k);
        rs.keys<KEYS, SHARES>(x.r);
        x.v = vs.entry();
        x.own = owns.entry();
        x.grow = grows.entry();
        x.loss = losses.entry();
        x.read = reads.entry();
        x.read_loss = read_losses.entry();
        return x;
    };
    // Keys of this thread, which lie apart by SHARES.
    const int count = static_cast<int>((shape.keys - share + SHARES - 1) / SHARES);
    const long long apart = SHARES * lanes, whole = shape.groups * steps * lanes;
    double* const column = state + (g * shape.keys + share) * lanes + l;
    double s[KEYS], square = 0.0, e = error[index];
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        s[j] = j < count ? column[j * apart] : 0.0;
        square += s[j] * s[j];
    }
    // The norm of the column from above; `squares` are this thread's. Below 2^-900 sums of
    // squares may have lost entries to underflow.
    const auto length_of = [&](double squares) {
        const double total = shared_sum<SHARES>(squares);
        const bool lost = total < 1.1830521861667747e-271;
        double found = sqrt(total);
        if (__any_sync(ALL, lost)) {
            double sum = 0.0;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) sum += fabs(s[j]);
            sum = shared_sum<SHARES>(sum);
            if (lost) found = sum;
        }
        return found;
    };
    double length = length_of(square);
    double* out = o + g * steps * lanes + l;
    // S_1 and its error, where states are kept.
    const long long second = g * (steps + 1) + 1;
    double* kept = states + (second * shape.keys + share) * lanes + l;
    double* kept_error = errors + second * lanes + l;
    const bool keeps = there && states != nullptr;
    const auto advance = [&](const Step<KEYS>& x) {
        double inner = 0.0, sum = 0.0, squares = 0.0;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) inner += x.q[j] * s[j];
        const double seen = shared_sum<SHARES>(inner);
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            const double moved = x.k[j] * x.v + (x.p[j] * seen + x.w[j] * s[j]);
            s[j] = j < count ? moved : 0.0;  // zero times infinity is not zero
            squares += s[j] * s[j];
            sum += x.r[j] * s[j];
        }
        const double told = shared_sum<SHARES>(sum);
        e = (x.grow + x.loss) * e + x.loss * length;
        length = length_of(squares);
        e += x.own + last * length;
        if (tells) {
            const double above = length + e;
            out[0] = told;
            out[whole] = x.read * e + x.read_loss * above;
            out[2 * whole] = above;
            if (keeps) *kept_error = e;
        }
        if (keeps)
#pragma unroll
            for (int j = 0; j < KEYS; ++j)
                if (j < count) kept[j * apart] = s[j];
        out += lanes;
        kept += shape.keys * lanes;
        kept_error += lanes;
    };
    Step<KEYS> now = taken();
#pragma unroll 2
    for (long long t = 1; t < steps; ++t) {
        const Step<KEYS> next = taken();
        advance(now);
        now = next;
    }
    advance(now);
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
