// Where the numbers of a tile [G, T, K, L] lie; parts of a number are arrays of doubles.
#pragma once

// An operand: strides of 0 repeat an entry, and a part without an array is zero.
template <int PARTS>
struct Operand {
    const double* part[PARTS];
    long long stride[PARTS][4];

    __device__ __forceinline__ double at(int p, long long g, long long t, long long k,
                                         long long l) const {
        const long long* s = stride[p];
        return part[p] ? part[p][g * s[0] + t * s[1] + k * s[2] + l * s[3]] : 0.0;
    }
};

static __device__ const double NOTHING = 0.0;

// One part of an operand along time, for one g, k and l.
struct Cursor {
    const double* here;
    long long step;

    template <int PARTS>
    __device__ __forceinline__ Cursor(const Operand<PARTS>& x, int p, long long g,
                                      long long k, long long l)
        : here(&NOTHING), step(0) {
        const long long* s = x.stride[p];
        if (x.part[p]) {
            here = x.part[p] + g * s[0] + k * s[2] + l * s[3];
            step = s[1];
        }
    }
    __device__ __forceinline__ double operator[](long long t) const {
        return here[t * step];
    }
};

// Room for a result; absent where its first part is.
template <int PARTS>
struct Room {
    double* part[PARTS];
    long long stride[4];

    __device__ __forceinline__ bool present() const { return part[0] != nullptr; }
    __device__ __forceinline__ double& at(int p, long long g, long long t, long long k,
                                          long long l) const {
        return part[p][g * stride[0] + t * stride[1] + k * stride[2] + l * stride[3]];
    }
};

// One part of a room along time.
struct Writer {
    double* here;
    long long step;

    template <int PARTS>
    __device__ __forceinline__ Writer(const Room<PARTS>& x, int p, long long g,
                                      long long k, long long l)
        : here(x.part[p] + g * x.stride[0] + k * x.stride[2] + l * x.stride[3]),
          step(x.stride[1]) {}
    __device__ __forceinline__ void put(double value) {
        *here = value;
        here += step;
    }
};

struct Shape {
    long long groups, steps, keys, lanes;
};

// Which keys a launch takes: from `first` on, in parts whose readouts lie `apart`.
struct Passes {
    long long first, parts, apart;
};

__device__ __forceinline__ long long thread_index() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// index = outer * size + inner; 32 bits where they do, as a division of 64 is slow.
__device__ __forceinline__ void split(long long index, long long size, long long& outer,
                                      long long& inner) {
    if ((index | size) >> 32) {
        outer = index / size;
        inner = index % size;
    } else {
        const unsigned i = static_cast<unsigned>(index), n = static_cast<unsigned>(size);
        outer = i / n;
        inner = i % n;
    }
}
