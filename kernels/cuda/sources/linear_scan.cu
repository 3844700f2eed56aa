// linear_scan forward: h_t = a_t h_{t-1} + b_t in one pass, with the carry chained.
//
// A block takes LANES x COUNT channels of a chunk of ROWS x STEPS steps, each thread
// STEPS consecutive steps (a row) of COUNT channels:
//
//   1. a thread combines the steps of its row, in order;
//   2. one thread per channel combines the rows, in order;
//   3. the state before the chunk is awaited, the one after it published;
//   4. a thread takes its row's start state and steps through its row.
//
// The order of operations depends on ROWS and STEPS alone, not on LANES and COUNT.
#include "affine.cuh"
#include "chain.cuh"
#include "storage.cuh"

// The decay as it is given.
struct GivenDecay {
  static constexpr bool HAS_REST = false;
  static __device__ __forceinline__ Affine step(float a, float b) {
    return {a, b, 0.0f, 0.0f};
  }
};

template <Compensation COMP>
struct Carry {
  static constexpr int WORDS = COMP == PLAIN ? 1 : 2;  // per channel

  static __device__ __forceinline__ State await(const Word* words, unsigned flag) {
    State state = {awaited(words, flag), 0.0f};
    if constexpr (COMP != PLAIN) state.rest = awaited(words + 1, flag);
    return state;
  }

  static __device__ __forceinline__ void hand_on(Word* words, unsigned flag, State x) {
    publish(words, flag, x.value);
    if constexpr (COMP != PLAIN) publish(words + 1, flag, x.rest);
  }
};

// Maps of the rows of a chunk by channel, in shared memory.
template <Compensation COMP, int ROWS, int CHANNELS>
struct RowMaps {
  float2 first[ROWS][CHANNELS];  // decay, drive
  float drive_rest[COMP == PLAIN ? 1 : ROWS][COMP == PLAIN ? 1 : CHANNELS];
  float decay_rest[COMP == FULL ? ROWS : 1][COMP == FULL ? CHANNELS : 1];

  __device__ __forceinline__ Affine get(int row, int channel) const {
    const float2 pair = first[row][channel];
    Affine map = {pair.x, pair.y, 0.0f, 0.0f};
    if constexpr (COMP != PLAIN) map.drive_rest = drive_rest[row][channel];
    if constexpr (COMP == FULL) map.decay_rest = decay_rest[row][channel];
    return map;
  }

  __device__ __forceinline__ void put(int row, int channel, const Affine& map) {
    first[row][channel] = make_float2(map.decay, map.drive);
    if constexpr (COMP != PLAIN) drive_rest[row][channel] = map.drive_rest;
    if constexpr (COMP == FULL) decay_rest[row][channel] = map.decay_rest;
  }
};

// a (or what Decay makes it from), b: [B, T, D], their strides in elements, the last
// one 1; initial [B, D] or null; h [B, T, D] and final [B, D] without gaps; edges
// [chunks, B, D, WORDS] or null: the state before each chunk and its rest.
template <typename T, typename Decay, Compensation COMP, int COUNT, int LANES, int ROWS,
          int STEPS, int BLOCKS>
__global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    single_pass(const T* __restrict__ a, const T* __restrict__ b,
                const float* __restrict__ initial, T* __restrict__ h,
                float* __restrict__ final, float* __restrict__ edges, Word* workspace,
                long long batches, long long length, long long channels,
                long long a_batch, long long a_time, long long b_batch,
                long long b_time) {
  constexpr int WIDTH = LANES * COUNT;
  constexpr int CHUNK = ROWS * STEPS;
  constexpr int WORDS = Carry<COMP>::WORDS;
  __shared__ RowMaps<COMP, ROWS, WIDTH> maps;
  __shared__ State starts[WIDTH];
  __shared__ Turn turn;

  const int lane = threadIdx.x, row = threadIdx.y;
  if (lane == 0 && row == 0) turn = take_turn(workspace, gridDim.x);
  __syncthreads();
  const unsigned tiles = unsigned((channels + WIDTH - 1) / WIDTH);
  const unsigned tile = turn.number % tiles;
  const unsigned rest = turn.number / tiles;
  const unsigned batch = rest % unsigned(batches);
  const unsigned chunk = rest / unsigned(batches);

  const long long channel = (long long)(tile)*WIDTH + lane * COUNT;
  const long long time = (long long)(chunk)*CHUNK + row * STEPS;
  const long long left = channel < channels ? length - time : 0;
  const int valid = left < STEPS ? (left < 0 ? 0 : int(left)) : STEPS;

  Packed<T, COUNT> decays[STEPS], drives[STEPS];
  const T* a_row = a + batch * a_batch + time * a_time + channel;
  const T* b_row = b + batch * b_batch + time * b_time + channel;
  if (valid == STEPS) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      decays[s].load(a_row + s * a_time);
      drives[s].load(b_row + s * b_time);
    }
  } else {
    // What fills up the last chunk is combined too, into maps that no step is after.
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      decays[s].clear();
      drives[s].clear();
      if (s < valid) {
        decays[s].load(a_row + s * a_time);
        drives[s].load(b_row + s * b_time);
      }
    }
  }

  Affine whole[COUNT];
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const Affine step = Decay::step(decays[s].at(i), drives[s].at(i));
      whole[i] = s == 0 ? step
                        : combined<COMP, Decay::HAS_REST, false>(whole[i], step);
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) maps.put(row, lane * COUNT + i, whole[i]);
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      decays[s].keep_packed();
      drives[s].keep_packed();
    }
  }
  __syncthreads();

  for (int c = row * LANES + lane; c < WIDTH; c += LANES * ROWS) {
    const long long d = (long long)(tile)*WIDTH + c;
    if (d >= channels) continue;
    // Row r of the maps becomes the combination of all rows before r.
    Affine before = maps.get(0, c);
#pragma unroll
    for (int r = 1; r < ROWS; r++) {
      const Affine next = maps.get(r, c);
      maps.put(r, c, before);
      before = combined<COMP, true, true>(before, next);
    }
    const long long place = (long long)(batch)*channels + d;
    const long long stride = batches * channels;
    Word* words = workspace + 1 + WORDS * (chunk * stride + place);
    State start = {initial ? initial[place] : 0.0f, 0.0f};
    if (chunk > 0) start = Carry<COMP>::await(words - WORDS * stride, turn.flag);
    if ((chunk + 1ll) * CHUNK < length) {
      Carry<COMP>::hand_on(words, turn.flag, applied<COMP, true, true>(before, start));
    }
    if (edges) {
      float* edge = edges + WORDS * (chunk * stride + place);
      edge[0] = start.value;
      if constexpr (COMP != PLAIN) edge[1] = start.rest;
    }
    starts[c] = start;
  }
  __syncthreads();
  if (valid == 0) return;

  State state[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const int c = lane * COUNT + i;
    state[i] = starts[c];
    if (row > 0) state[i] = applied<COMP, true, true>(maps.get(row, c), state[i]);
  }
  T* h_row = h + (batch * length + time) * channels + channel;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    if (s < valid) {
      float values[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const Affine step = Decay::step(decays[s].at(i), drives[s].at(i));
        state[i] = applied<COMP, Decay::HAS_REST, false>(step, state[i]);
        values[i] = rounded<COMP>(state[i]);
      }
      packed<T, COUNT>(values).store(h_row + s * channels);
    }
  }
  if (time + valid == length) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      final[batch * channels + channel + i] = rounded<COMP>(state[i]);
    }
  }
}
