// Tiles of selective_scan_rows in shared memory: rows of u, delta and z, and B and C.
#pragma once

#include "row_vectors.cuh"
#include "storage.cuh"

template <class Storage, int WARPS>
struct RowsLayout {
  static constexpr int VECTOR = 16 / sizeof(Storage);  // steps in 16 bytes
  static constexpr int SUB_BLOCK = 2 * VECTOR;
  static constexpr int TILE = 8 * VECTOR;
  static constexpr int CHANNELS = 16;                  // of a warp
  static constexpr int ROWS = CHANNELS * 8;            // vectors of one tensor's tile
  static constexpr int MEETING = 2 * SUB_BLOCK + 4;    // floats a channel
  static constexpr int KEYS = TILE * 32;               // floats of one tile
};

// One tensor's rows as one lane copies them: row lane / 8 and those 4, 8 and 12 below it,
// vector lane % 8 of each tile.
template <class Storage, bool ALIGNED>
struct RowSource {
  const Storage* at;    // in the tile to copy next
  long long four_rows;  // elements
  int rows;             // that exist, from the lane's first on

  // `COUNT` rows from the one 4 `first` below, into the tile at `to`, the lane's place in
  // its first row. Of the steps `left` exist from the vector's first on.
  template <int COUNT>
  __device__ __forceinline__ void copy(uint4* to, int first, int left) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      copy_vector<ALIGNED>(to + (first + i) * 4 * 8, at + (first + i) * four_rows,
                           4 * (first + i) < rows ? left : 0);
    }
  }

  __device__ __forceinline__ void next_tile() { at += 8 * (16 / sizeof(Storage)); }
};

// B and C of one tile, rows of the lane's key: from memory, then as floats to `keys`.
template <class Storage, int WARPS, bool ALIGNED>
struct KeyFetch {
  using Layout = RowsLayout<Storage, WARPS>;
  static constexpr int VECTOR = Layout::VECTOR;
  static constexpr int PASSES = (8 + WARPS - 1) / WARPS;
  Packed<Storage, VECTOR> fetched[PASSES];

  __device__ __forceinline__ void load(const Storage* row, int first_step,
                                       int steps) {
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
      const int vector = int(threadIdx.x) / 32 + i * WARPS;
      const int step = first_step + vector * VECTOR;
      const int left = vector < 8 && row != nullptr ? steps - step : 0;
      fetched[i] = load_vector<ALIGNED, Storage>(row + step, left);
    }
  }

  __device__ __forceinline__ void store(float* keys) const {
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
      const int vector = int(threadIdx.x) / 32 + i * WARPS;
      if (vector < 8) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          keys[(vector * VECTOR + k) * 32 + threadIdx.x % 32] = fetched[i].at(k);
        }
      }
    }
  }
};
