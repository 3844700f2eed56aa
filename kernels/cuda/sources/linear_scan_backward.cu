// linear_scan backward: G_t = a_{t+1} G_{t+1} + hbar_t, db_t = G_t, da_t = G_t h_{t-1}.
//
// Chunks, rows and steps are those of the forward pass, taken from the last to the
// first; the carry is chained from chunk to chunk. The states are computed again inside
// each chunk, from the one before it, which the forward pass kept. Kept holds the
// adjoints that are handed on, as it does the states.
#include "rows.cuh"

// The map of one step of the adjoint: the decay of the step after it, or 1 at the end.
template <typename Decay, typename Vector>
__device__ __forceinline__ Affine adjoint_step(const Vector& decay_after, bool is_last,
                                               float cotangent, int i) {
  if (is_last) return {Decay::IDENTITY, cotangent, 0.0f, 0.0f};
  return step_map<Decay>(decay_after.at(i), cotangent);
}

// a, b, hbar: [B, T, D], their strides in elements, the last one 1; hbar may be null
// (zeros), and so may final_bar [B, D]; edges [chunks, B, D, WORDS]; da, db [B, T, D]
// and initial_bar [B, D] without gaps, null where they are not wanted.
template <typename T, typename Decay, Variant VARIANT, int COUNT, int LANES, int ROWS,
          int STEPS, int BLOCKS, typename Kept>
__global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    single_pass_backward(const T* __restrict__ a, const T* __restrict__ b,
                         const float* __restrict__ edges, const T* __restrict__ hbar,
                         const float* __restrict__ final_bar, T* __restrict__ da,
                         T* __restrict__ db, float* __restrict__ initial_bar,
                         Word* workspace, long long batches, long long length,
                         long long channels, long long a_batch, long long a_time,
                         long long b_batch, long long b_time, long long hbar_batch,
                         long long hbar_time) {
  constexpr int WIDTH = LANES * COUNT;
  constexpr int CHUNK = ROWS * STEPS;
  constexpr int WORDS = Carry<VARIANT>::WORDS;
  __shared__ RowMaps<VARIANT, ROWS, WIDTH> forward_maps, adjoint_maps;
  __shared__ State forward_starts[WIDTH], adjoint_starts[WIDTH];
  __shared__ Turn turn;

  const int lane = threadIdx.x, row = threadIdx.y;
  const long long chunks = (length + CHUNK - 1) / CHUNK;
  if (lane == 0 && row == 0) turn = take_turn(workspace, gridDim.x, unsigned(chunks));
  __syncthreads();
  const unsigned tiles = unsigned((channels + WIDTH - 1) / WIDTH);
  const unsigned tile = turn.number % tiles;
  const unsigned rest = turn.number / tiles;
  const unsigned batch = rest % unsigned(batches);
  const unsigned link = rest / unsigned(batches);
  const long long chunk = chunks - 1 - link;

  const long long channel = (long long)(tile)*WIDTH + lane * COUNT;
  const long long time = chunk * CHUNK + row * STEPS;
  const long long left = channel < channels ? length - time : 0;
  const int valid = left < STEPS ? (left < 0 ? 0 : int(left)) : STEPS;
  const bool ends = time + valid == length;

  Packed<T, COUNT> decays[STEPS], drives[STEPS], cotangents[STEPS], decay_after;
  const T* a_row = a + batch * a_batch + time * a_time + channel;
  const T* b_row = b + batch * b_batch + time * b_time + channel;
  const T* hbar_row = hbar + batch * hbar_batch + time * hbar_time + channel;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    decays[s].clear();
    drives[s].clear();
    cotangents[s].clear();
    if (s < valid) {
      decays[s].load(a_row + s * a_time);
      if (da) drives[s].load(b_row + s * b_time);
      if (hbar) cotangents[s].load(hbar_row + s * hbar_time);
    }
  }
  decay_after.clear();
  if (valid > 0 && !ends) decay_after.load(a_row + STEPS * a_time);

  if (valid > 0) {
    Affine forward[COUNT], adjoint[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        const Affine step = step_map<Decay>(decays[s].at(i), drives[s].at(i));
        forward[i] = s == 0 ? step
                            : combined<VARIANT, false>(forward[i], step);
      }
#pragma unroll
      for (int s = STEPS - 1; s >= 0; s--) {
        if (s >= valid) continue;
        const Affine step =
            adjoint_step<Decay>(s == STEPS - 1 ? decay_after : decays[(s + 1) % STEPS],
                                ends && s == valid - 1, cotangents[s].at(i), i);
        adjoint[i] = s == valid - 1
                         ? step
                         : combined<VARIANT, false>(adjoint[i], step);
      }
      forward_maps.put(row, lane * COUNT + i, forward[i]);
      adjoint_maps.put(row, lane * COUNT + i, adjoint[i]);
    }
  }
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      decays[s].keep_packed();
      drives[s].keep_packed();
      cotangents[s].keep_packed();
    }
  }
  __syncthreads();

  const long long in_chunk = length - chunk * CHUNK;
  const int rows = in_chunk < CHUNK ? int((in_chunk + STEPS - 1) / STEPS) : ROWS;
  const long long lanes = batches * channels;
  for (int k = row * LANES + lane; k < 2 * WIDTH; k += LANES * ROWS) {
    const int c = k % WIDTH;
    const long long d = (long long)(tile)*WIDTH + c;
    if (d >= channels) continue;
    const long long place = (long long)(batch)*channels + d;
    if (k < WIDTH) {
      combine_in_order(forward_maps, c);
      const float* edge = edges + WORDS * (chunk * lanes + place);
      forward_starts[c] = {edge[0], HAS_RESTS<VARIANT> ? edge[1] : 0.0f};
    } else {
      const Affine after = rows == ROWS ? combine_in_reverse(adjoint_maps, ROWS, c)
                                        : combine_in_reverse(adjoint_maps, rows, c);
      State start = {final_bar ? final_bar[place] : 0.0f, 0.0f};
      if (link > 0) {
        start = Carry<VARIANT>::await(workspace, turn, link, place, lanes);
      }
      if (chunk > 0) {
        const State handed = applied<VARIANT, true>(after, start);
        Carry<VARIANT, Kept>::hand_on(workspace, turn, link, place, lanes, handed);
      }
      adjoint_starts[c] = start;
    }
  }
  __syncthreads();
  if (valid == 0) return;

  float before[STEPS][COUNT];  // the state that each step starts from
  State adjoint[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const int c = lane * COUNT + i;
    State state = forward_starts[c];
    if (row > 0) state = applied<VARIANT, true>(forward_maps.get(row, c), state);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      before[s][i] = rounded<VARIANT>(state);
      const Affine step = step_map<Decay>(decays[s].at(i), drives[s].at(i));
      state = applied<VARIANT, false>(step, state);
    }
    adjoint[i] = adjoint_starts[c];
    if (row < rows - 1) {
      adjoint[i] = applied<VARIANT, true>(adjoint_maps.get(row, c), adjoint[i]);
    }
  }
  const long long first = (batch * length + time) * channels + channel;
#pragma unroll
  for (int s = STEPS - 1; s >= 0; s--) {
    if (s < valid) {
      float drive_bar[COUNT], decay_bar[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const Affine step =
            adjoint_step<Decay>(s == STEPS - 1 ? decay_after : decays[(s + 1) % STEPS],
                                ends && s == valid - 1, cotangents[s].at(i), i);
        adjoint[i] = applied<VARIANT, false>(step, adjoint[i]);
        drive_bar[i] = rounded<VARIANT>(adjoint[i]);
        decay_bar[i] = Decay::gate_bar(decays[s].at(i),
                                       __fmul_rn(drive_bar[i], before[s][i]));
        if (s == 0 && time == 0 && initial_bar) {
          initial_bar[batch * channels + channel + i] =
              __fmul_rn(Decay::decay(decays[0].at(i)), drive_bar[i]);
        }
      }
      if (db) packed<T, COUNT>(drive_bar).store(db + first + s * channels);
      if (da) packed<T, COUNT>(decay_bar).store(da + first + s * channels);
    }
  }
}
