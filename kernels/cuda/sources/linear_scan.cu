// linear_scan forward: h_t = a_t h_{t-1} + b_t.
//
// A block takes LANES x COUNT channels of a chunk of ROWS x STEPS steps, each thread
// STEPS consecutive steps (a row) of COUNT channels:
//
//   1. a thread combines the steps of its row, in order;
//   2. the rows are combined (rows.cuh);
//   3. the state before the chunk comes, and the one after it is made;
//   4. a thread takes its row's start state and steps through its row.
//
// CHAINED does all of it in one pass, the carry chained from block to block. In two
// passes, TOTALS writes what step 2 gives, a kernel of carry.cuh carries states over it,
// and EDGES takes them from there. The order of operations depends on ROWS, STEPS and
// INNER alone, not on LANES, COUNT and whether one pass or two.
#include "carry.cuh"
#include "rows.cuh"
#include "sequential.cuh"

enum Pass { CHAINED, TOTALS, EDGES };

// a (or what Decay makes it from), b: [B, T, D], their strides in elements, the last
// one 1; initial [B, D] or null; h [B, T, D] and final [B, D] without gaps; edges
// [chunks, B, D, WORDS]: the state before each chunk and its rest, written by CHAINED
// where it is not null and read by EDGES; totals [chunks - 1, B, D]. CHAINED hands on
// states that Kept holds.
template <Pass PASS, typename T, typename Decay, Variant VARIANT, Inner INNER, int COUNT,
          int LANES, int ROWS, int STEPS, int BLOCKS, typename Kept>
__global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    forward(const T* __restrict__ a, const T* __restrict__ b,
            const float* __restrict__ initial, T* __restrict__ h,
            float* __restrict__ final, float* __restrict__ edges,
            float4* __restrict__ totals, Word* workspace, long long batches,
            long long length, long long channels, long long a_batch, long long a_time,
            long long b_batch, long long b_time) {
  constexpr int WIDTH = LANES * COUNT;
  constexpr int CHUNK = ROWS * STEPS;
  constexpr int WORDS = Carry<VARIANT>::WORDS;
  constexpr int PITCH = WIDTH + (INNER == SHUFFLE ? 1 : 0);
  __shared__ RowMaps<VARIANT, ROWS, WIDTH, PITCH> copies[INNER == SHARED ? 2 : 1];
  auto& maps = copies[0];
  __shared__ State starts[WIDTH];
  __shared__ Turn turn;

  const int lane = threadIdx.x, row = threadIdx.y;
  if (lane == 0 && row == 0) {
    const unsigned chunks = unsigned((length + CHUNK - 1) / CHUNK);
    turn = PASS == CHAINED ? take_turn(workspace, gridDim.x, chunks)
                           : Turn{blockIdx.x, 0u};
  }
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
      const Affine step = step_map<Decay>(decays[s].at(i), drives[s].at(i));
      whole[i] = s == 0 ? step
                        : combined<VARIANT, false>(whole[i], step);
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

  const int thread = row * LANES + lane;
  if constexpr (INNER == SHUFFLE) {
    combine_by_shuffles(maps, thread, LANES * ROWS);
    __syncthreads();
  } else if constexpr (INNER == SHARED) {
    combine_in_shared<COUNT>(copies, row, lane * COUNT);
    __syncthreads();
  }
  const long long lanes = batches * channels;
  for (int c = thread; c < WIDTH; c += LANES * ROWS) {
    const long long d = (long long)(tile)*WIDTH + c;
    if (d >= channels) continue;
    const Affine total = INNER == IN_ORDER ? combine_in_order(maps, c) : maps.get(0, c);
    const long long place = batch * channels + d;
    const long long edge = chunk * lanes + place;
    if constexpr (PASS == TOTALS) {
      totals[edge] = as_four(total);
      continue;
    }
    State start = {0.0f, 0.0f};
    if constexpr (PASS == EDGES) {
      start.value = edges[WORDS * edge];
      if constexpr (HAS_RESTS<VARIANT>) start.rest = edges[WORDS * edge + 1];
    } else {
      if (chunk > 0) {
        start = Carry<VARIANT>::await(workspace, turn, chunk, place, lanes);
      } else if (initial) {
        start.value = initial[place];
      }
      if ((chunk + 1ll) * CHUNK < length) {
        const State after = applied<VARIANT, true>(total, start);
        Carry<VARIANT, Kept>::hand_on(workspace, turn, chunk, place, lanes, after);
      }
      if (edges) put_edge<VARIANT>(edges, edge, start);
    }
    starts[c] = start;
  }
  if constexpr (PASS == TOTALS) return;
  __syncthreads();
  if (valid == 0) return;

  State state[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const int c = lane * COUNT + i;
    state[i] = starts[c];
    if (row > 0) state[i] = applied<VARIANT, true>(maps.get(row, c), state[i]);
  }
  T* h_row = h + (batch * length + time) * channels + channel;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    if (s < valid) {
      float values[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const Affine step = step_map<Decay>(decays[s].at(i), drives[s].at(i));
        state[i] = applied<VARIANT, false>(step, state[i]);
        values[i] = rounded<VARIANT>(state[i]);
      }
      packed<T, COUNT>(values).store(h_row + s * channels);
    }
  }
  if (time + valid == length) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      final[batch * channels + channel + i] = rounded<VARIANT>(state[i]);
    }
  }
}
