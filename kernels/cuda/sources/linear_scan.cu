// linear_scan forward: h_t = a_t h_{t-1} + b_t.
//
// A block takes LANES x COUNT channels of CHUNKS chunks of ROWS x STEPS steps, each thread
// STEPS consecutive steps (a row) of COUNT channels of each chunk:
//
//   1. a thread combines the steps of its row, in order;
//   2. the rows are combined (rows.cuh);
//   3. the state before the chunk comes, and the one after it is made;
//   4. a thread takes its row's start state and steps through its row.
//
// The first chunk is held in registers, the second, if there are two, in shared memory:
// so that one link of the carry's chain, which takes almost 1 us, serves twice the steps.
//
// CHAINED does all of it in one pass, the carry chained from block to block. In two
// passes, TOTALS writes what step 2 gives, a kernel of carry.cuh carries states over it,
// and EDGES takes them from there. The order of operations depends on ROWS, STEPS and
// INNER alone, not on LANES, COUNT, CHUNKS and whether one pass or two.
#include "carry.cuh"
#include "row_of_steps.cuh"
#include "row_vectors.cuh"
#include "rows.cuh"
#include "sequential.cuh"

enum Pass { CHAINED, TOTALS, EDGES };

// a (or what Decay makes it from), b: [B, T, D], their strides in elements, the last
// one 1; initial [B, D] or null; h [B, T, D] and final [B, D] without gaps; edges
// [chunks, B, D, WORDS]: the state before each chunk and its rest, written by CHAINED
// where it is not null and read by EDGES; totals [chunks - 1, B, D]. CHAINED hands on
// states that Kept holds.
template <Pass PASS, typename T, typename Decay, Variant VARIANT, Inner INNER, int COUNT,
          int LANES, int ROWS, int STEPS, int CHUNKS, bool FLOATS, int BLOCKS,
          typename Kept>
__global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    forward(const T* __restrict__ a, const T* __restrict__ b,
            const float* __restrict__ initial, T* __restrict__ h,
            float* __restrict__ final, float* __restrict__ edges,
            float4* __restrict__ totals, Word* workspace, long long batches,
            long long length, long long channels, long long a_batch, long long a_time,
            long long b_batch, long long b_time) {
  constexpr int WIDTH = LANES * COUNT, THREADS = LANES * ROWS;
  constexpr int CHUNK = ROWS * STEPS, SPAN = CHUNKS * CHUNK;
  constexpr int WORDS = Carry<VARIANT>::WORDS;
  constexpr int PITCH = WIDTH + (INNER == SHUFFLE ? 1 : 0);
  static_assert(CHUNKS == 1 || PASS == CHAINED && INNER == IN_ORDER, "rows in order");
  static_assert(CHUNKS == 1 || !FLOATS, "decays are made again");
  static_assert(CHUNKS * WIDTH <= THREADS, "a thread for every channel of each chunk");
  typedef RowOfSteps<T, Decay, VARIANT, COUNT, STEPS, FLOATS> Row;
  typedef Packed<T, COUNT> Vector;
  extern __shared__ uint4 dynamic[];
  __shared__ RowMaps<VARIANT, ROWS, WIDTH, PITCH>
      maps[CHUNKS == 2 || INNER == SHARED ? 2 : 1];
  __shared__ State starts[CHUNKS][WIDTH];
  __shared__ Turn turn;

  const int lane = threadIdx.x, row = threadIdx.y;
  const int thread = row * LANES + lane;
  if (thread == 0) {
    const unsigned links = unsigned((length + SPAN - 1) / SPAN);
    turn = PASS == CHAINED ? take_turn(workspace, gridDim.x, links)
                           : Turn{blockIdx.x, 0u};
  }
  __syncthreads();
  const unsigned tiles = unsigned((channels + WIDTH - 1) / WIDTH);
  const unsigned tile = turn.number % tiles;
  const unsigned rest = turn.number / tiles;
  const unsigned batch = rest % unsigned(batches);
  const unsigned link = rest / unsigned(batches);

  const long long channel = (long long)(tile)*WIDTH + lane * COUNT;
  const long long time = (long long)(link)*SPAN + row * STEPS;
  const auto valid_in = [&](int chunk) {
    const long long left = channel < channels ? length - time - chunk * CHUNK : 0;
    return left < STEPS ? (left < 0 ? 0 : int(left)) : STEPS;
  };
  const T* const a_row = a + batch * a_batch + time * a_time + channel;
  const T* const b_row = b + batch * b_batch + time * b_time + channel;

  Row steps;
  steps.load(a_row, b_row, a_time, b_time, valid_in(0));
  Vector* const copies = reinterpret_cast<Vector*>(dynamic) + thread;
  auto* const kept = reinterpret_cast<Packed<float, COUNT>*>(dynamic) + thread;
  if constexpr (CHUNKS == 2) {
    static_assert(sizeof(Vector) == 8, "4 channels of 16 bits");
    const int valid = valid_in(1);
    const T* a_from = a_row + CHUNK * a_time;
    const T* b_from = b_row + CHUNK * b_time;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int bytes = s < valid ? 8 : 0;
      const unsigned to = shared_address(copies + s * THREADS);
      copy_8_bytes(to, a_from + s * a_time, bytes);
      copy_8_bytes(to + STEPS * THREADS * 8, b_from + s * b_time, bytes);
    }
    commit_copies();
  }
  const auto take_copies = [&](Row& into) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      into.gates[s] = copies[s * THREADS];
      into.drives[s] = copies[(STEPS + s) * THREADS];
    }
  };

  Affine row_map[COUNT];
  steps.template combine<THREADS>(row_map, kept);
#pragma unroll
  for (int i = 0; i < COUNT; i++) maps[0].put(row, lane * COUNT + i, row_map[i]);
  if constexpr (CHUNKS == 2) {
    await_copies<0>();
    Row later;
    take_copies(later);
    later.template combine<THREADS>(row_map, kept);
#pragma unroll
    for (int i = 0; i < COUNT; i++) maps[1].put(row, lane * COUNT + i, row_map[i]);
  }
  __syncthreads();

  if constexpr (INNER == SHUFFLE) {
    combine_by_shuffles(maps[0], thread, THREADS);
    __syncthreads();
  } else if constexpr (INNER == SHARED) {
    combine_in_shared<COUNT>(maps, row, lane * COUNT);
    __syncthreads();
  }
  const int c = thread % WIDTH;
  Affine total;
  if (INNER == IN_ORDER && thread < CHUNKS * WIDTH) {
    total = combine_in_order(maps[thread / WIDTH], c);
    if (CHUNKS == 2) maps[thread / WIDTH].put(0, c, total);
  }
  if (CHUNKS == 2) __syncthreads();
  const long long d = (long long)(tile)*WIDTH + c;
  if (thread < WIDTH && d < channels) {
    const long long lanes = batches * channels;
    const long long place = batch * channels + d;
    const long long edge = (long long)(link)*CHUNKS * lanes + place;
    if (CHUNKS == 2 || INNER != IN_ORDER) total = maps[0].get(0, c);
    State start = {0.0f, 0.0f};
    if constexpr (PASS == TOTALS) {
      totals[edge] = as_four(total);
    } else if constexpr (PASS == EDGES) {
      start.value = edges[WORDS * edge];
      if constexpr (HAS_RESTS<VARIANT>) start.rest = edges[WORDS * edge + 1];
    } else {
      if (link > 0) {
        start = Carry<VARIANT>::await(workspace, turn, link, place, lanes);
      } else if (initial) {
        start.value = initial[place];
      }
      State next, after = applied<VARIANT, true>(total, start);
      if constexpr (CHUNKS == 2) {
        next = {stored<Kept>(after.value), after.rest};
        after = applied<VARIANT, true>(maps[1].get(0, c), next);
      }
      if ((link + 1ll) * SPAN < length) {
        Carry<VARIANT, Kept>::hand_on(workspace, turn, link, place, lanes, after);
      }
      if (edges) put_edge<VARIANT>(edges, edge, start);
      if constexpr (CHUNKS == 2) {
        starts[1][c] = next;
        const bool exists = (long long)(link)*SPAN + CHUNK < length;
        if (edges && exists) put_edge<VARIANT>(edges, edge + lanes, next);
      }
    }
    starts[0][c] = start;
  }
  if constexpr (PASS == TOTALS) return;
  __syncthreads();

#pragma unroll 1
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
    const int valid = valid_in(chunk);
    if (valid == 0) return;
    if (CHUNKS == 2 && chunk == 1) take_copies(steps);
    const auto start = [&](int i) {
      const int c = lane * COUNT + i;
      const State state = starts[chunk][c];
      return row > 0 ? applied<VARIANT, true>(maps[chunk].get(row, c), state) : state;
    };
    State states[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) states[i] = start(i);
    const long long first = time + chunk * CHUNK;
    T* const h_row = h + (batch * length + first) * channels + channel;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      steps.template step<THREADS>(states, s, kept);
      float values[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        values[i] = states[i].value;
        if constexpr (HAS_RESTS<VARIANT>) {
          values[i] = __fadd_rn(values[i], states[i].rest);
        }
      }
      packed<T, COUNT>(values).store_streaming(s < valid, h_row + s * channels);
    }
    // Once a state is not finite, none after it is, and `rounded` differs from what was
    // stored. After steps that do not exist the states are wrong.
    bool again = valid < STEPS;
    if constexpr (HAS_RESTS<VARIANT>) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) again = again || !isfinite(states[i].value);
    }
    const bool ends = first + valid == length;
    if (again) {
#pragma unroll 1
      for (int i = 0; i < COUNT; i++) {
        State state = start(i);
#pragma unroll 4
        for (int s = 0; s < valid; s++) {
          const long long t = chunk * CHUNK + s;
          const float gate = element(a_row + t * a_time + i);
          const float drive = element(b_row + t * b_time + i);
          state = applied<VARIANT, false>(step_map<Decay>(gate, drive), state);
          put_element(h_row + s * channels + i, rounded<VARIANT>(state));
        }
        if (ends) final[batch * channels + channel + i] = rounded<VARIANT>(state);
      }
    } else if (ends) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        final[batch * channels + channel + i] = rounded<VARIANT>(states[i]);
      }
    }
  }
}
