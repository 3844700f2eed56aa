// linear_scan forward in one pass, the next tile loaded while one is computed.
//
// A block takes one tile after another, in the order of tickets. A tile has LANES x COUNT
// channels of CHUNKS chunks of ROWS x STEPS steps. Its elements are copied to shared
// memory beside the computation (cp.async), each by the thread that uses it, so that no
// barrier is needed, and held in registers then. The operations are those of linear_scan.cu,
// in the same order.
//
// A block holds two tickets beside that of its present tile. It waits only for smaller
// ones than that: so the block with the smallest unfinished one always runs on.
#pragma once

#include "carry.cuh"
#include "row_vectors.cuh"
#include "rows.cuh"

// The elements of a thread's row, and what step 4 of linear_scan.cu takes of the decays:
// as they are, where that costs nothing, else as floats.
template <typename T, typename Decay, Variant VARIANT, int COUNT, int STEPS>
struct Row {
  static constexpr bool AS_FLOATS = Decay::COSTS;

  Packed<T, COUNT> gates[STEPS], drives[STEPS];
  float decays[AS_FLOATS ? STEPS : 1][AS_FLOATS ? COUNT : 1];

  // The map of all steps of channel i, combined in order.
  __device__ __forceinline__ Affine combine(int i) {
    Affine whole = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const float gate = gates[s].at(i), drive = drives[s].at(i);
      const float decay = Decay::decay(gate);
      if constexpr (AS_FLOATS) decays[s][i] = decay;
      if constexpr (IN_LOGS<VARIANT>) {
        whole.decay = s == 0 ? gate : __fadd_rn(gate, whole.decay);
        whole.drive = s == 0 ? drive : __fmaf_rn(decay, whole.drive, drive);
      } else {
        const Affine step = {decay, drive, 0.0f, 0.0f};
        whole = s == 0 ? step : combined<VARIANT, false>(whole, step);
      }
    }
    return whole;
  }

  // The state after step s.
  __device__ __forceinline__ State stepped(State before, int s, int i) const {
    constexpr Variant AS = IN_LOGS<VARIANT> ? PLAIN : VARIANT;
    float decay;
    if constexpr (AS_FLOATS) {
      decay = decays[s][i];
    } else {
      decay = gates[s].again(i);
    }
    return applied<AS, false>({decay, drives[s].again(i), 0.0f, 0.0f}, before);
  }

  __device__ __forceinline__ void keep_packed() {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        if constexpr (!AS_FLOATS) gates[s].keep_packed();
        drives[s].keep_packed();
      }
    }
  }
};

// Hides that the value is the same in every turn of a loop, so that the compiler does not
// keep all its multiples in registers throughout.
__device__ __forceinline__ long long in_loop(long long value) {
  asm volatile("" : "+l"(value));
  return value;
}

// Arguments as of forward; every row of a and b is aligned for vectors of COUNT. The
// dynamic shared memory holds the copies.
template <typename T, typename Decay, Variant VARIANT, int COUNT, int LANES, int ROWS,
          int STEPS, int CHUNKS, int BLOCKS>
__global__ void __launch_bounds__(LANES* ROWS* CHUNKS, BLOCKS)
    pipelined(const T* __restrict__ a, const T* __restrict__ b,
              const float* __restrict__ initial, T* __restrict__ h,
              float* __restrict__ final, float* __restrict__ edges, Word* workspace,
              long long batches, long long length, long long channels,
              long long a_batch, long long a_time, long long b_batch,
              long long b_time) {
  constexpr int WIDTH = LANES * COUNT;
  constexpr int CHUNK = ROWS * STEPS, SPAN = CHUNKS * CHUNK;
  constexpr int THREADS = LANES * ROWS * CHUNKS;
  constexpr int BYTES = COUNT * int(sizeof(T));
  typedef Packed<T, COUNT> Vector;
  extern __shared__ uint4 shared[];
  Vector* const copies = reinterpret_cast<Vector*>(shared);  // [2][STEPS][THREADS]
  // By parity: a thread may be a tile ahead of another.
  __shared__ RowMaps<VARIANT, ROWS, WIDTH> all_maps[2][CHUNKS];
  __shared__ State starts[CHUNKS][WIDTH];
  __shared__ Turn turns[2];

  const int lane = threadIdx.x, part = threadIdx.y / ROWS, row = threadIdx.y % ROWS;
  const int thread = threadIdx.y * LANES + lane;
  const unsigned tiles = unsigned((channels + WIDTH - 1) / WIDTH);
  const unsigned links = unsigned((length + SPAN - 1) / SPAN);
  const unsigned total = tiles * unsigned(batches) * links;

  const auto next_turn = [&]() {
    return take_turn(workspace, total + 2u * gridDim.x, links);
  };
  const auto copy = [&](unsigned number) {
    const unsigned rest = number / tiles;
    const unsigned batch = rest % unsigned(batches), link = rest / unsigned(batches);
    const long long channel = (long long)(number % tiles) * WIDTH + lane * COUNT;
    const long long time = (long long)(link)*SPAN + threadIdx.y * STEPS;
    const long long left = channel < channels ? length - time : 0;
    const int valid = left < STEPS ? (left < 0 ? 0 : int(left)) : STEPS;
    const T* a_row = a + batch * a_batch + time * a_time + channel;
    const T* b_row = b + batch * b_batch + time * b_time + channel;
    const long long a_stride = in_loop(a_time), b_stride = in_loop(b_time);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int bytes = s < valid ? BYTES : 0;
      Vector* const to = copies + s * THREADS + thread;
      copy_bytes<BYTES>(shared_address(to), a_row, bytes);
      copy_bytes<BYTES>(shared_address(to + STEPS * THREADS), b_row, bytes);
      a_row += a_stride;
      b_row += b_stride;
    }
    commit_copies();
  };

  if (thread == 0) {
    turns[0] = next_turn();
    turns[1] = next_turn();
  }
  __syncthreads();
  Turn turn = turns[0], next = turns[1];
  __syncthreads();
  if (turn.number < total) copy(turn.number);
  for (int parity = 0; turn.number < total; parity ^= 1) {
    Turn after;
    if (thread == 0) after = next_turn();
    Row<T, Decay, VARIANT, COUNT, STEPS> steps;
    await_copies<0>();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      steps.gates[s] = copies[s * THREADS + thread];
      steps.drives[s] = copies[(STEPS + s) * THREADS + thread];
    }
    if (next.number < total) copy(next.number);

    auto& maps = all_maps[parity][part];
#pragma unroll
    for (int i = 0; i < COUNT; i++) maps.put(row, lane * COUNT + i, steps.combine(i));
    steps.keep_packed();
    if (thread == 0) turns[parity] = after;
    __syncthreads();
    after = turns[parity];

    const unsigned tile = turn.number % tiles, rest = turn.number / tiles;
    const unsigned batch = rest % unsigned(batches), link = rest / unsigned(batches);
    const long long lanes = batches * channels;
    Affine whole;
    if (thread < WIDTH * CHUNKS) {
      const int c = thread % WIDTH;
      auto& mine = all_maps[parity][thread / WIDTH];
      whole = combine_in_order(mine, c);
      if (CHUNKS > 1) mine.put(0, c, whole);
    }
    if (CHUNKS > 1) __syncthreads();
    if (thread < WIDTH && (long long)(tile)*WIDTH + thread < channels) {
      const int c = thread;
      const long long place = batch * channels + (long long)(tile)*WIDTH + c;
      State start[CHUNKS + 1];
      start[0] = {0.0f, 0.0f};
      if (link > 0) {
        start[0] = Carry<VARIANT>::await(workspace, turn, link, place, lanes);
      } else if (initial) {
        start[0].value = initial[place];
      }
#pragma unroll
      for (int k = 0; k < CHUNKS; k++) {
        if (CHUNKS > 1) whole = all_maps[parity][k].get(0, c);
        start[k + 1] = applied<VARIANT, true>(whole, start[k]);
      }
      if ((link + 1ll) * SPAN < length) {
        Carry<VARIANT>::hand_on(workspace, turn, link, place, lanes, start[CHUNKS]);
      }
#pragma unroll
      for (int k = 0; k < CHUNKS; k++) {
        starts[k][c] = start[k];
        const long long chunk = (long long)(link)*CHUNKS + k;
        if (edges && chunk * CHUNK < length) {
          put_edge<VARIANT>(edges, chunk * lanes + place, start[k]);
        }
      }
    }
    __syncthreads();

    const long long channel = (long long)(tile)*WIDTH + lane * COUNT;
    const long long time = (long long)(link)*SPAN + threadIdx.y * STEPS;
    const long long left = channel < channels ? length - time : 0;
    const int valid = left < STEPS ? (left < 0 ? 0 : int(left)) : STEPS;
    if (valid > 0) {
      const auto start = [&](int i) {
        const int c = lane * COUNT + i;
        const State state = starts[part][c];
        return row > 0 ? applied<VARIANT, true>(maps.get(row, c), state) : state;
      };
      State state[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) state[i] = start(i);
      T* const h_row = h + (batch * length + time) * channels + channel;
      T* to = h_row;
      const long long h_stride = in_loop(channels);
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        float values[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
          state[i] = steps.stepped(state[i], s, i);
          values[i] = state[i].value;
          if constexpr (HAS_RESTS<VARIANT>) values[i] = __fadd_rn(values[i], state[i].rest);
        }
        if (s < valid) packed<T, COUNT>(values).store_streaming(to);
        to += h_stride;
      }
      // What was stored is wrong where a state is infinite, as all after it are, or NaN.
      bool again = left < STEPS;
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        if (HAS_RESTS<VARIANT> && !isfinite(state[i].value)) again = true;
      }
      if (again) {
        const T* a_row = a + batch * a_batch + time * a_time + channel;
        const T* b_row = b + batch * b_batch + time * b_time + channel;
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
          State now = start(i);
#pragma unroll 4
          for (int s = 0; s < valid; s++) {
            Packed<T, 1> gate, drive;
            gate.load(a_row + s * a_time + i);
            drive.load(b_row + s * b_time + i);
            now = applied<VARIANT, false>(step_map<Decay>(gate.at(0), drive.at(0)), now);
            const float value[1] = {rounded<VARIANT>(now)};
            packed<T, 1>(value).store(h_row + s * channels + i);
          }
          if (left <= STEPS) {
            final[batch * channels + channel + i] = rounded<VARIANT>(now);
          }
        }
      } else if (left == STEPS) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
          final[batch * channels + channel + i] = rounded<VARIANT>(state[i]);
        }
      }
    }
    turn = next;
    next = after;
  }
}
