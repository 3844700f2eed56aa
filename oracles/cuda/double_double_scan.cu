// The scan S_t = w_t S_{t-1} + k_t v_t^T of double-doubles: a thread for every lane,
// steps in order, every operation as on the CPU (double_double_tile.py).
#include "double_word.cuh"
#include "layout.cuh"

using In = Operand<3>;

__device__ __forceinline__ Triple triple_at(const In& x, long long g, long long t,
                                            long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l), x.at(2, g, t, k, l)};
}

__device__ __forceinline__ Triple triple_at(const Room<3>& x, long long g, long long t,
                                            long long k, long long l) {
    return {x.at(0, g, t, k, l), x.at(1, g, t, k, l), x.at(2, g, t, k, l)};
}

__device__ __forceinline__ void put(const Room<3>& room, const Triple& s, long long g,
                                    long long t, long long k, long long l) {
    room.at(0, g, t, k, l) = s.hi.x;
    room.at(1, g, t, k, l) = s.lo.x;
    room.at(2, g, t, k, l) = s.radius.x;
}

// A number of a tile along time, for one g, k and l. SINGLE: an exact float64.
template <bool SINGLE>
struct Triples {
    Cursor hi, lo, radius;

    __device__ __forceinline__ Triples(const In& x, long long g, long long k, long long l)
        : hi(x, 0, g, k, l), lo(x, 1, g, k, l), radius(x, 2, g, k, l) {}
    __device__ __forceinline__ Triple operator[](long long t) const {
        if (SINGLE) return single(hi[t]);
        return {hi[t], lo[t], radius[t]};
    }
};

struct TripleWriter {
    Writer hi, lo, radius;

    __device__ __forceinline__ TripleWriter(const Room<3>& room, long long g, long long k,
                                            long long l)
        : hi(room, 0, g, k, l), lo(room, 1, g, k, l), radius(room, 2, g, k, l) {}
    __device__ __forceinline__ void put(const Triple& s) {
        hi.put(s.hi.x);
        lo.put(s.lo.x);
        radius.put(s.radius.x);
    }
};

// One state per lane that is its own readout. Steps are loaded so many ahead, as few
// lanes wait for memory longer than they compute. SINGLE: w and v are exact float64.
template <bool SINGLE, int AHEAD>
__global__ void __launch_bounds__(128)
    scan_lanes(In w, In v, Room<3> state, Room<3> out, Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    Triple s = triple_at(state, g, 0, 0, l);
    const Triples<SINGLE> decays(w, g, 0, l), values(v, g, 0, l);
    TripleWriter to(out, g, 0, l);
    Triple next_w[AHEAD], next_v[AHEAD];
    const long long whole = shape.steps - shape.steps % AHEAD;
    if (whole > 0) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            next_w[i] = decays[i];
            next_v[i] = values[i];
        }
    }
    for (long long first = 0; first < whole; first += AHEAD) {
        Triple now_w[AHEAD], now_v[AHEAD];
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
            s = now_w[i] * s + now_v[i];
            to.put(s);
        }
    }
    for (long long t = whole; t < shape.steps; ++t) {
        s = decays[t] * s + values[t];
        to.put(s);
    }
    put(state, s, g, 0, 0, l);
}

// The keys first..first + KEYS - 1 of every lane, each with a state. Readouts go on
// from those of the keys before, so that sums are formed in order; without them a state
// is its own readout. What does not depend on each other stands side by side, so that
// it is computed at once.
template <int KEYS, bool DRIVEN, bool READ>
__global__ void __launch_bounds__(128)
    scan_keys(In w, In v, In k, In r, Room<3> state, Room<3> out, Room<3> states,
              Shape shape, long long first) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const Triples<false> values(v, g, 0, l);
    TripleWriter to(out, g, 0, l);
    const bool begun = first > 0, keep = states.present();
    Triple s[KEYS], next_w[KEYS], next_value = values[0];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        s[i] = triple_at(state, g, 0, first + i, l);
        next_w[i] = triple_at(w, g, 0, first + i, l);
    }
    for (long long t = 0; t < shape.steps; ++t) {
        const Triple value = next_value;
        const long long then = t + 1 < shape.steps ? t + 1 : t;
        next_value = values[then];
        Triple x[KEYS], now_w[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            now_w[i] = next_w[i];
            next_w[i] = triple_at(w, g, then, first + i, l);
            x[i] = value;
            if (DRIVEN) x[i] = triple_at(k, g, t, first + i, l) * value;
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) s[i] = now_w[i] * s[i] + x[i];
        if (READ) {
            Triple sum = single(0.0), terms[KEYS];
            if (begun) sum = {*to.hi.here, *to.lo.here, *to.radius.here};
#pragma unroll
            for (int i = 0; i < KEYS; ++i)
                terms[i] = triple_at(r, g, t, first + i, l) * s[i];
#pragma unroll
            for (int i = 0; i < KEYS; ++i) sum = sum + terms[i];
            to.put(sum);
        } else if (!begun) {
            to.put(s[0]);
        }
        if (keep) {
#pragma unroll
            for (int i = 0; i < KEYS; ++i) put(states, s[i], g, t, first + i, l);
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) put(state, s[i], g, 0, first + i, l);
}
