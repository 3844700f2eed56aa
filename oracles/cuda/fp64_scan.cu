// The scan S_t = w_t S_{t-1} + k_t v_t^T of fp64 balls and its reverse: a thread for
// every lane, steps in order, every operation as on the CPU (fp64_scan.py).
#include "ball.cuh"
#include "layout.cuh"

using In = Operand<2>;
enum { VALUE, RADIUS, M, W, V };  // parts of a state

__device__ __forceinline__ Ball ball_at(const In& x, long long g, long long t,
                                        long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l)};
}

template <bool COMPANIONS>
__device__ __forceinline__ State state_at(const Room<5>& room, long long g, long long k,
                                          long long l) {
    State s;
    s.value = room.at(VALUE, g, 0, k, l);
    s.radius = room.at(RADIUS, g, 0, k, l);
    if (COMPANIONS) {
        s.m = room.at(M, g, 0, k, l);
        s.w = room.at(W, g, 0, k, l);
        s.v = room.at(V, g, 0, k, l);
    }
    return s;
}

template <bool COMPANIONS>
__device__ __forceinline__ void put(const Room<5>& room, const State& s, long long g,
                                    long long t, long long k, long long l) {
    room.at(VALUE, g, t, k, l) = s.value.x;
    room.at(RADIUS, g, t, k, l) = s.radius.x;
    if (COMPANIONS) {
        room.at(M, g, t, k, l) = s.m.x;
        room.at(W, g, t, k, l) = s.w.x;
        room.at(V, g, t, k, l) = s.v.x;
    }
}

// A ball of a tile along time, for one g, k and l. EXACT: it has no radius.
template <bool EXACT>
struct Balls {
    Cursor value, radius;

    __device__ __forceinline__ Balls(const In& x, long long g, long long k, long long l)
        : value(x, 0, g, k, l), radius(x, 1, g, k, l) {}
    __device__ __forceinline__ Ball operator[](long long t) const {
        return {value[t], EXACT ? 0.0 : radius[t]};
    }
};

// Where the parts of a state or readout are written, one step after the other.
template <bool COMPANIONS>
struct StateWriter {
    Writer value, radius, m, w, v;

    __device__ __forceinline__ StateWriter(const Room<5>& room, long long g, long long l)
        : value(room, VALUE, g, 0, l),
          radius(room, RADIUS, g, 0, l),
          m(room, M, g, 0, l),
          w(room, W, g, 0, l),
          v(room, V, g, 0, l) {}
    __device__ __forceinline__ void skip(long long entries) {
        value.here += entries;
        radius.here += entries;
        if (COMPANIONS) {
            m.here += entries;
            w.here += entries;
            v.here += entries;
        }
    }
    __device__ __forceinline__ void put(const State& s) {
        value.put(s.value.x);
        radius.put(s.radius.x);
        if (COMPANIONS) {
            m.put(s.m.x);
            w.put(s.w.x);
            v.put(s.v.x);
        }
    }
};

// One state per lane that is its own readout. Steps are loaded so many ahead, as few
// lanes wait for memory longer than they compute. EXACT: w and v have no radii.
template <bool EXACT, bool COMPANIONS, int AHEAD>
__global__ void __launch_bounds__(128)
    scan_lanes(In w, In v, Room<5> state, Room<5> out, Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    State s = state_at<COMPANIONS>(state, g, 0, l);
    const Balls<EXACT> decays(w, g, 0, l), values(v, g, 0, l);
    StateWriter<COMPANIONS> to(out, g, l);
    Ball next_w[AHEAD], next_v[AHEAD];
    const long long whole = shape.steps - shape.steps % AHEAD;
    if (whole > 0) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            next_w[i] = decays[i];
            next_v[i] = values[i];
        }
    }
    for (long long first = 0; first < whole; first += AHEAD) {
        Ball now_w[AHEAD], now_v[AHEAD];
        // The last batch is loaded once more in place of one beyond the end.
        const long long then = first + AHEAD < whole ? first + AHEAD : first;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            now_w[i] = next_w[i];
            now_v[i] = next_v[i];
            next_w[i] = decays[then + i];
            next_v[i] = values[then + i];
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            advance<COMPANIONS>(s, now_w[i], now_v[i]);
            to.put(s);
        }
    }
    for (long long t = whole; t < shape.steps; ++t) {
        advance<COMPANIONS>(s, decays[t], values[t]);
        to.put(s);
    }
    put<COMPANIONS>(state, s, g, 0, 0, l);
}

// The keys first..first + KEYS - 1 of every lane, each with a state. Readouts go on
// from those of the keys before, so that sums are formed in order. With several parts
// the next KEYS are another thread's, whose readouts begin anew `apart` entries further
// on. RAISED: w is a time,
// and exp(w rate) the decay. EXACT: rates, keys and readouts have no radii, and keys and
// readouts of a step lie side by side. What does not depend on each other stands side by
// side, so that it is computed at once.
template <int KEYS, bool RAISED, bool COMPANIONS, bool EXACT>
__global__ void __launch_bounds__(128)
    scan_keys(In w, In rate, In v, In k, In r, Room<5> state, Room<5> out, Room<2> states,
              Shape shape, Passes passes) {
    const long long index = thread_index(), threads = shape.groups * shape.lanes;
    if (index >= passes.parts * threads) return;
    long long part, rest, g, l;
    split(index, threads, part, rest);
    split(rest, shape.lanes, g, l);
    const long long first = passes.first + part * KEYS;
    const double terms = static_cast<double>(shape.keys);
    State s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) s[i] = state_at<COMPANIONS>(state, g, first + i, l);
    const Balls<false> values(v, g, 0, l), times(w, g, 0, l);
    const double* key = k.part[0] + g * k.stride[0][0] + first;
    const double* readout = r.part[0] + g * r.stride[0][0] + first;
    Ball y[KEYS];
    if (RAISED) {
#pragma unroll
        for (int i = 0; i < KEYS; ++i) y[i] = ball_at(rate, g, 0, first + i, l);
    }
    StateWriter<COMPANIONS> to(out, g, l);
    to.skip(part * passes.apart);
    const bool begun = passes.first > 0, keep = states.present();
    Ball next_value = values[0], next_time = RAISED ? times[0] : Ball{0.0, 0.0};
    for (long long t = 0; t < shape.steps; ++t) {
        const Ball value = next_value, time = next_time;
        const long long then = t + 1 < shape.steps ? t + 1 : t;
        next_value = values[then];
        if (RAISED) next_time = times[then];
        Ball decay[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            if (RAISED) {
                const Rounded own = EXACT ? Rounded(0.0) : y[i].radius;
                const Rounded reach = size_of(y[i].value) + own;
                Ball z;
                z.value = time.value * y[i].value;
                z.radius = fused(size_of(time.value), own,
                                 fused(time.radius, reach,
                                       Rounded(U64) * size_of(z.value) + FLOOR));
                decay[i] = exp_of(z);
            } else {
                decay[i] = ball_at(w, g, t, first + i, l);
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const Ball c = EXACT ? Ball{key[i], 0.0} : ball_at(k, g, t, first + i, l);
            advance<COMPANIONS>(s[i], decay[i], driven(Factor(c, 1.0), value));
        }
        State sum;
        sum.value = sum.m = sum.w = sum.v = 0.0;
        sum.radius = Rounded(terms) * FLOOR;
        if (begun) {
            sum.value = *to.value.here;
            sum.radius = *to.radius.here;
            if (COMPANIONS) {
                sum.m = *to.m.here;
                sum.w = *to.w.here;
                sum.v = *to.v.here;
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const Ball c = EXACT ? Ball{readout[i], 0.0} : ball_at(r, g, t, first + i, l);
            read_out<COMPANIONS>(sum, s[i], Factor(c, terms + 1.0));
        }
        to.put(sum);
        key += k.stride[0][1];
        readout += r.stride[0][1];
        if (keep) {
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                states.at(VALUE, g, t, first + i, l) = s[i].value.x;
                states.at(RADIUS, g, t, first + i, l) = s[i].radius.x;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) put<COMPANIONS>(state, s[i], g, 0, first + i, l);
}

// Cotangents of states: G_t = r_t obar_t^T + (carry into t), the carry w_t G_t; a thread
// for every state. `carry` is replaced by the carry out.
__global__ void __launch_bounds__(128) scan_cotangents(In w, In r, In obar, bool has_r,
                                                       Room<2> carry, Room<2> states,
                                                       Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.keys * shape.lanes) return;
    long long row, g, k, l;
    split(index, shape.lanes, row, l);
    split(row, shape.keys, g, k);
    Ball above = {carry.at(VALUE, g, 0, k, l), carry.at(RADIUS, g, 0, k, l)};
    for (long long t = shape.steps - 1; t >= 0; --t) {
        const Ball bar = ball_at(obar, g, t, 0, l);
        const Ball y = has_r ? driven(Factor(ball_at(r, g, t, k, l), 1.0), bar) : bar;
        const Ball decay = ball_at(w, g, t, k, l);
        const Rounded total = above.value + y.value;
        const Rounded radius = above.radius + y.radius + Rounded(U64) * size_of(total);
        states.at(VALUE, g, t, k, l) = total.x;
        states.at(RADIUS, g, t, k, l) = radius.x;
        const Rounded product = decay.value * total;
        const Rounded rounding = Rounded(U64) * size_of(product) + FLOOR;
        above.value = product;
        above.radius = fused(size_of(decay.value), radius,
                             fused(decay.radius, size_of(total) + radius, rounding));
    }
    carry.at(VALUE, g, 0, k, l) = above.value.x;
    carry.at(RADIUS, g, 0, k, l) = above.radius.x;
}
