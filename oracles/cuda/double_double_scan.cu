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

// Steps are loaded so many ahead. SINGLE: w and v are exact float64.
template <bool SINGLE, int AHEAD>
struct Steps {
    Triple w[AHEAD], v[AHEAD];

    __device__ __forceinline__ void load(const In& from_w, const In& from_v,
                                         long long g, long long first, long long l,
                                         long long steps) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const long long t = first + i < steps ? first + i : steps - 1;
            if (SINGLE) {
                w[i] = single(from_w.at(0, g, t, 0, l));
                v[i] = single(from_v.at(0, g, t, 0, l));
            } else {
                w[i] = triple_at(from_w, g, t, 0, l);
                v[i] = triple_at(from_v, g, t, 0, l);
            }
        }
    }
};

// One state per lane that is its own readout.
template <bool SINGLE, int AHEAD>
__global__ void __launch_bounds__(128)
    scan_lanes(In w, In v, Room<3> state, Room<3> out, Shape shape) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    Triple s = triple_at(state, g, 0, 0, l);
    Steps<SINGLE, AHEAD> now, next;
    next.load(w, v, g, 0, l, shape.steps);
    for (long long first = 0; first < shape.steps; first += AHEAD) {
        now = next;
        next.load(w, v, g, first + AHEAD, l, shape.steps);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (first + i < shape.steps) {
                s = now.w[i] * s + now.v[i];
                put(out, s, g, first + i, 0, l);
            }
        }
    }
    put(state, s, g, 0, 0, l);
}

// The keys first..first + KEYS - 1 of every lane, each with a state. Readouts go on
// from those of the keys before, so that sums are formed in order.
template <int KEYS>
__global__ void __launch_bounds__(128)
    scan_keys(In w, In v, In k, In r, bool has_k, bool has_r, Room<3> state, Room<3> out,
              Room<3> states, Shape shape, long long first) {
    const long long index = thread_index();
    if (index >= shape.groups * shape.lanes) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    Triple s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        if (first + i < shape.keys) s[i] = triple_at(state, g, 0, first + i, l);
    for (long long t = 0; t < shape.steps; ++t) {
        const Triple value = triple_at(v, g, t, 0, l);
        Triple sum = single(0.0);
        if (has_r && first > 0) sum = triple_at(out, g, t, 0, l);
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const long long key = first + i;
            if (key < shape.keys) {
                const Triple x = has_k ? triple_at(k, g, t, key, l) * value : value;
                s[i] = triple_at(w, g, t, key, l) * s[i] + x;
                if (states.present()) put(states, s[i], g, t, key, l);
                if (has_r) sum = sum + triple_at(r, g, t, key, l) * s[i];
            }
        }
        if (has_r || first == 0) put(out, has_r ? sum : s[0], g, t, 0, l);
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        if (first + i < shape.keys) put(state, s[i], g, 0, first + i, l);
}
