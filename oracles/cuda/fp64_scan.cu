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

// One state per lane that is its own readout. Steps are loaded so many ahead, as few
// lanes wait for memory longer than they compute. EXACT: w and v have no radii.
template <bool EXACT, int AHEAD>
struct Steps {
    Ball w[AHEAD], v[AHEAD];

    __device__ __forceinline__ void load(const In& from_w, const In& from_v,
                                         long long g, long long first, long long l,
                                         long long steps) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const long long t = first + i < steps ? first + i : steps - 1;
            w[i].value = from_w.at(0, g, t, 0, l);
            v[i].value = from_v.at(0, g, t, 0, l);
            w[i].radius = EXACT ? 0.0 : from_w.at(1, g, t, 0, l);
            v[i].radius = EXACT ? 0.0 : from_v.at(1, g, t, 0, l);
        }
    }
};

template <bool EXACT, bool COMPANIONS, int AHEAD>
__global__ void __launch_bounds__(128)
    scan_lanes(In w, In v, Room<5> state, Room<5> out, Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    State s = state_at<COMPANIONS>(state, g, 0, l);
    Steps<EXACT, AHEAD> now, next;
    next.load(w, v, g, 0, l, shape.steps);
    for (long long first = 0; first < shape.steps; first += AHEAD) {
        now = next;
        next.load(w, v, g, first + AHEAD, l, shape.steps);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (first + i < shape.steps) {
                advance<COMPANIONS>(s, now.w[i], now.v[i]);
                put<COMPANIONS>(out, s, g, first + i, 0, l);
            }
        }
    }
    put<COMPANIONS>(state, s, g, 0, 0, l);
}

// The keys first..first + KEYS - 1 of every lane, each with a state. Readouts go on
// from those of the keys before, so that sums are formed in order. RAISED: w is a time,
// and exp(w rate) the decay.
template <int KEYS, bool RAISED, bool COMPANIONS>
__global__ void __launch_bounds__(128)
    scan_keys(In w, In rate, In v, In k, In r, bool has_k, bool has_r, Room<5> state,
              Room<5> out, Room<2> states, Shape shape, long long first) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const double terms = static_cast<double>(shape.keys);
    State s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        if (first + i < shape.keys) s[i] = state_at<COMPANIONS>(state, g, first + i, l);
    for (long long t = 0; t < shape.steps; ++t) {
        const Ball value = ball_at(v, g, t, 0, l);
        const Ball time = RAISED ? ball_at(w, g, t, 0, l) : Ball{0.0, 0.0};
        State sum;
        if (has_r && first > 0) {
            sum.value = out.at(VALUE, g, t, 0, l);
            sum.radius = out.at(RADIUS, g, t, 0, l);
            if (COMPANIONS) {
                sum.m = out.at(M, g, t, 0, l);
                sum.w = out.at(W, g, t, 0, l);
                sum.v = out.at(V, g, t, 0, l);
            }
        } else {
            sum.value = sum.m = sum.w = sum.v = 0.0;
            sum.radius = Rounded(terms) * FLOOR;
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const long long key = first + i;
            if (key < shape.keys) {
                Ball decay;
                if (RAISED) {
                    const Ball y = ball_at(rate, g, 0, key, l);
                    const Rounded reach = size_of(y.value) + y.radius;
                    Ball z;
                    z.value = time.value * y.value;
                    z.radius = fused(size_of(time.value), y.radius,
                                     fused(time.radius, reach,
                                           Rounded(U64) * size_of(z.value) + FLOOR));
                    decay = exp_of(z);
                } else {
                    decay = ball_at(w, g, t, key, l);
                }
                const Ball x =
                    has_k ? driven(Factor(ball_at(k, g, t, key, l), 1.0), value) : value;
                advance<COMPANIONS>(s[i], decay, x);
                if (states.present()) {
                    states.at(VALUE, g, t, key, l) = s[i].value.x;
                    states.at(RADIUS, g, t, key, l) = s[i].radius.x;
                }
                if (has_r)
                    read_out<COMPANIONS>(sum, s[i],
                                         Factor(ball_at(r, g, t, key, l), terms + 1.0));
            }
        }
        if (has_r)
            put<COMPANIONS>(out, sum, g, t, 0, l);
        else if (first == 0)
            put<COMPANIONS>(out, s[0], g, t, 0, l);
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        if (first + i < shape.keys) put<COMPANIONS>(state, s[i], g, 0, first + i, l);
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
