// The maps of a chunk's rows combined: row r > 0 of the maps becomes the combination of
// all rows before r. That of all rows is returned, or becomes row 0.
//
// IN_ORDER  one thread per channel takes one row after another
// SHUFFLE   by doubling (Hillis and Steele, CACM 29, 1986) inside a warp: a row a lane
// SHARED    the same in shared memory, from one of two copies into the other
//
// SHUFFLE and SHARED combine the same pairs, so they give the same bits.
#pragma once

#include "scan_block.cuh"

enum Inner { IN_ORDER, SHUFFLE, SHARED };

// Rows that are read before one is written: the compiler would not move a read past a
// write, and wait for each.
constexpr int READ_AHEAD = 4;

template <Variant VARIANT, int ROWS, int CHANNELS, int PITCH>
__device__ __forceinline__ Affine combine_in_order(
    RowMaps<VARIANT, ROWS, CHANNELS, PITCH>& maps, int channel) {
  Affine before = maps.get(0, channel), next[READ_AHEAD];
#pragma unroll
  for (int read = 1; read < ROWS + READ_AHEAD; read++) {
    const int r = read - READ_AHEAD;
    const Affine map = next[read % READ_AHEAD];
    if (read < ROWS) next[read % READ_AHEAD] = maps.get(read, channel);
    if (r < 1) continue;
    maps.put(r, channel, before);
    before = combined<VARIANT, true>(before, map);
  }
  return before;
}

// In the other direction, from the last of `rows` rows: row r < rows - 1 becomes the
// combination of all rows after r; that of all rows is returned.
template <Variant VARIANT, int ROWS, int CHANNELS, int PITCH>
__device__ __forceinline__ Affine combine_in_reverse(
    RowMaps<VARIANT, ROWS, CHANNELS, PITCH>& maps, int rows, int channel) {
  Affine after = {0.0f, 0.0f, 0.0f, 0.0f}, next[READ_AHEAD];
#pragma unroll
  for (int read = ROWS - 1; read >= -READ_AHEAD; read--) {
    const int r = read + READ_AHEAD;
    const Affine map = next[r % READ_AHEAD];
    if (read >= 0) next[r % READ_AHEAD] = maps.get(read, channel);
    if (r >= ROWS) continue;
    maps.put(r, channel, after);
    after = r >= rows - 1 ? map : combined<VARIANT, true>(after, map);
  }
  return after;
}

template <int WIDTH>
__device__ __forceinline__ Affine shuffled(const Affine& map, int from) {
  return {__shfl_sync(0xffffffffu, map.decay, from, WIDTH),
          __shfl_sync(0xffffffffu, map.drive, from, WIDTH),
          __shfl_sync(0xffffffffu, map.decay_rest, from, WIDTH),
          __shfl_sync(0xffffffffu, map.drive_rest, from, WIDTH)};
}

template <Variant VARIANT, int ROWS, int CHANNELS, int PITCH>
__device__ __forceinline__ void combine_by_shuffles(
    RowMaps<VARIANT, ROWS, CHANNELS, PITCH>& maps, int thread, int threads) {
  static_assert(32 % ROWS == 0, "a warp takes whole channels");
  static_assert(CHANNELS % (32 / ROWS) == 0, "a warp takes as many channels each time");
  const int row = thread % ROWS;
  // All lanes of a warp have the same number of turns.
  for (int c = thread / ROWS; c < CHANNELS; c += threads / ROWS) {
    Affine map = maps.get(row, c);
#pragma unroll
    for (int reach = 1; reach < ROWS; reach *= 2) {
      const Affine earlier = shuffled<ROWS>(map, row - reach);
      if (row >= reach) map = combined<VARIANT, true>(earlier, map);
    }
    // Row r gets what ends at row r - 1; row 0 what ends at the last one.
    maps.put(row, c, shuffled<ROWS>(map, (row + ROWS - 1) % ROWS));
  }
}

template <int COUNT, Variant VARIANT, int ROWS, int CHANNELS, int PITCH>
__device__ __forceinline__ void combine_in_shared(
    RowMaps<VARIANT, ROWS, CHANNELS, PITCH> (&maps)[2], int row, int channel) {
  int from = 0;
#pragma unroll
  for (int reach = 1; reach < ROWS; reach *= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      Affine map = maps[from].get(row, channel + i);
      if (row >= reach) {
        map = combined<VARIANT, true>(maps[from].get(row - reach, channel + i), map);
      }
      maps[1 - from].put(row, channel + i, map);
    }
    from = 1 - from;
    __syncthreads();
  }
  Affine moved[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) moved[i] = maps[from].get(row, channel + i);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) maps[0].put((row + 1) % ROWS, channel + i, moved[i]);
}
