// A tile of selective_scan_backward_rows in shared memory: rows of u, delta, z and ybar
// of a warp's channels, and B and C of the block's group.
#pragma once

#include "row_vectors.cuh"
#include "selective_scan_backward_arguments.cuh"
#include "storage.cuh"

constexpr int CROSSING = 8 * 36;  // floats of one step, while lanes add their channels

template <class Storage, int WARPS>
struct BackwardLayout {
  static constexpr int VECTOR = 16 / sizeof(Storage);  // steps in 16 bytes
  static constexpr int TILE = 4 * VECTOR;
  static constexpr int BLOCKS = TILE / BLOCK_STEPS;
  static constexpr int ROW = 64;         // bytes
  static constexpr int ROWS = 16 * ROW;  // of one tensor
  // Bytes of a warp: rows, starts, meeting, crossing.
  static constexpr int STARTS = 4 * ROWS;
  static constexpr int MEETING = STARTS + BLOCKS * 1024;
  static constexpr int CROSS = MEETING + TILE * 128;
  static constexpr int WARP = CROSS + 2 * 4 * CROSSING;
  static constexpr int KEYS = TILE * 32;  // floats
};

// Of the four vectors of a row the place is turned by the row, so that eight rows do not
// meet in a bank.
__device__ __forceinline__ int turned(int row, int vector) {
  return vector ^ (row / 2 % 4);
}

enum { U_ROWS, DELTA_ROWS, Z_ROWS, Y_BAR_ROWS };

// The rows of a warp's 16 channels as a lane copies them, and as it reads and writes
// steps of its two channels. A gradient takes the place of what it belongs to.
template <class Storage, int WARPS>
struct BackwardRows {
  using Layout = BackwardLayout<Storage, WARPS>;
  static constexpr int VECTOR = Layout::VECTOR;
  static constexpr int COPIES = 2;  // vectors of a tensor's tile that a lane copies

  const BackwardArguments& a;
  long long batch, first;  // `first` channel of the warp
  char* own;               // the warp's shared memory
  int lane, pair;
  int copied;  // vector lane % 4 of row lane / 4: it copies that and the one 8 rows on

  __device__ __forceinline__ BackwardRows(const BackwardArguments& a, long long batch,
                                          long long first, char* own, int lane)
      : a(a), batch(batch), first(first), own(own), lane(lane), pair(lane % 8),
        copied(lane / 4 * Layout::ROW + turned(lane / 4, lane % 4) * 16) {}

  __device__ __forceinline__ void copy(const void* tensor, int rows, long long by_batch,
                                       long long by_channel, long long first_step) const {
    const long long step = first_step + lane % 4 * VECTOR;
    const bool there = tensor != nullptr && step < a.end;
    const Storage* const from =
        static_cast<const Storage*>(there ? tensor : a.u) +
        (there ? batch * by_batch + (first + lane / 4) * by_channel + step : 0);
    const unsigned to = shared_address(own + rows * Layout::ROWS + copied);
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      copy_16_bytes(to + i * 8 * Layout::ROW, from + (there ? i * 8 * by_channel : 0),
                    there ? 16 : 0);
    }
  }

  __device__ __forceinline__ void store(void* tensor, int rows,
                                        long long first_step) const {
    const long long step = first_step + lane % 4 * VECTOR;
    if (tensor == nullptr || step >= a.end) return;
    Storage* const to = static_cast<Storage*>(tensor) +
                        (batch * a.channels + first + lane / 4) * a.steps + step;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      Packed<Storage, VECTOR> values;
      values.load(reinterpret_cast<const Storage*>(own + rows * Layout::ROWS + copied +
                                                   i * 8 * Layout::ROW));
      values.store(to + i * 8 * a.steps);
    }
  }

  // A step of channel lane % 8 + 8 c.
  __device__ __forceinline__ float read(int rows, int c, int step) const {
    Packed<Storage, 1> value;
    value.load(element(rows, c, step));
    return value.at(0);
  }

  __device__ __forceinline__ void write(int rows, int c, int step, float value) const {
    const float values[1] = {value};
    packed<Storage, 1>(values).store(element(rows, c, step));
  }

 private:
  __device__ __forceinline__ Storage* element(int rows, int c, int step) const {
    return reinterpret_cast<Storage*>(own + rows * Layout::ROWS +
                                      (pair + 8 * c) * Layout::ROW +
                                      turned(pair, step / VECTOR) * 16) +
           step % VECTOR;
  }
};

// B and C of a tile: from memory, by the lanes of the first four warps, then as floats to
// `keys`, [step][16 of B, 16 of C].
template <class Storage, int WARPS>
struct BackwardKeys {
  using Layout = BackwardLayout<Storage, WARPS>;
  static constexpr int VECTOR = Layout::VECTOR;

  Packed<Storage, VECTOR> fetched;

  // `row` is null where the lane has no key.
  __device__ __forceinline__ void load(const BackwardArguments& a, const Storage* row,
                                       int warp, long long first_step) {
    const long long step = first_step + warp * VECTOR;
    fetched.clear();
    if (row != nullptr && step < a.end && first_step >= a.begin) {
      fetched.load(row + step);
    }
  }

  __device__ __forceinline__ void store(float* keys, int buffer, int warp,
                                        int lane) const {
    if (warp >= 4) return;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      keys[buffer * Layout::KEYS + (warp * VECTOR + k) * 32 + lane] = fetched.at(k);
    }
  }
};
