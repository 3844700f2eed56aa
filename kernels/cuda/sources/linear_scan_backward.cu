// linear_scan backward: G_t = a_{t+1} G_{t+1} + hbar_t, db_t = G_t, da_t = G_t h_{t-1}.
//
// Chunks, rows and steps are those of the forward pass, taken from the last to the
// first; the carry is chained from chunk to chunk. The states are computed again inside
// each chunk, from the one before it, which the forward pass kept. Kept holds the
// adjoints that are handed on, as it does the states.
#include "row_of_steps.cuh"
#include "rows.cuh"

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
  constexpr int CHUNK = ROWS * STEPS, THREADS = LANES * ROWS;
  constexpr int WORDS = Carry<VARIANT>::WORDS;
  __shared__ RowMaps<VARIANT, ROWS, WIDTH> forward_maps, adjoint_maps;
  __shared__ State forward_starts[WIDTH], adjoint_starts[WIDTH];
  __shared__ Turn turn;
  extern __shared__ uint4 dynamic[];
  constexpr bool IN_PLACE = Decay::COSTS && sizeof(T) == 4;
  constexpr bool IN_SHARED = Decay::COSTS && sizeof(T) == 2;

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

  // gates[s + 1] is the decay of the step after step s, or the identity at the end.
  Packed<T, COUNT> gates[STEPS + 1], drives[STEPS], cotangents[STEPS];
  auto* const kept = reinterpret_cast<Packed<float, COUNT>*>(dynamic) + row * LANES + lane;
  const T* const a_row = a + batch * a_batch + time * a_time + channel;
  const T* const b_row = b + batch * b_batch + time * b_time + channel;
  const T* const hbar_row = hbar + batch * hbar_batch + time * hbar_time + channel;
  gates[STEPS] = filled<T, COUNT>(Decay::IDENTITY_GATE);
  if (valid == STEPS) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      gates[s].load(a_row + s * a_time);
      drives[s].load(b_row + s * b_time);
    }
    if (!ends) gates[STEPS].load(a_row + STEPS * a_time);
  } else {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      gates[s] = filled<T, COUNT>(Decay::IDENTITY_GATE);
      drives[s].clear();
      if (s < valid) {
        gates[s].load(a_row + s * a_time);
        drives[s].load(b_row + s * b_time);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < STEPS; s++) cotangents[s].clear();
  if (hbar) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      if (s < valid) cotangents[s].load(hbar_row + s * hbar_time);
    }
  }

  if (valid > 0) {
    float decays[STEPS + 1][COUNT];
#pragma unroll
    for (int s = 0; s <= STEPS; s++) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) decays[s][i] = Decay::decay(gates[s].at(i));
    }
    const auto add = [&](bool is_first, Affine& map, int s, int i, float drive) {
      map = after_step<VARIANT>(is_first, map, gates[s].at(i), decays[s][i], drive);
    };
    Affine forward[COUNT], adjoint[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) add(s == 0, forward[i], s, i, drives[s].at(i));
      if (valid == STEPS) {
#pragma unroll
        for (int s = STEPS - 1; s >= 0; s--) {
          add(s == STEPS - 1, adjoint[i], s + 1, i, cotangents[s].at(i));
        }
      } else {
#pragma unroll
        for (int s = STEPS - 2; s >= 0; s--) {
          if (s >= valid) continue;
          add(s == valid - 1, adjoint[i], s + 1, i, cotangents[s].at(i));
        }
      }
    }
#pragma unroll
    for (int s = 0; s <= STEPS; s++) {
      if constexpr (IN_PLACE) gates[s] = packed<T, COUNT>(decays[s]);
      if constexpr (IN_SHARED) kept[s * THREADS] = packed<float, COUNT>(decays[s]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      forward_maps.put(row, lane * COUNT + i, forward[i]);
      adjoint_maps.put(row, lane * COUNT + i, adjoint[i]);
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
      const Affine after = combine_in_reverse(adjoint_maps, rows, c);
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

  const auto forward_start = [&](int i) {
    const int c = lane * COUNT + i;
    const State state = forward_starts[c];
    return row > 0 ? applied<VARIANT, true>(forward_maps.get(row, c), state) : state;
  };
  const auto adjoint_start = [&](int i) {
    const int c = lane * COUNT + i;
    const State state = adjoint_starts[c];
    return row < rows - 1 ? applied<VARIANT, true>(adjoint_maps.get(row, c), state)
                          : state;
  };
  constexpr Variant AS = IN_LOGS<VARIANT> ? PLAIN : VARIANT;
  const auto stepped = [&](State state, float decay, float drive) {
    return applied<AS, false>({decay, drive, 0.0f, 0.0f}, state);
  };
  const long long first = (batch * length + time) * channels + channel;
  if (valid == STEPS) {
    const auto decays_of = [&](int s) {
      if constexpr (IN_SHARED) {
        return kept[s * THREADS];
      } else {
        float decays[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
          decays[i] = IN_PLACE ? gates[s].at(i) : gates[s].again(i);
        }
        return packed<float, COUNT>(decays);
      }
    };
    float before[STEPS][COUNT];  // the state that each step starts from
    State states[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) states[i] = forward_start(i);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const auto decays = decays_of(s);
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        before[s][i] = rounded<VARIANT>(states[i]);
        states[i] = stepped(states[i], decays.at(i), drives[s].again(i));
      }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) states[i] = adjoint_start(i);
    auto decays_after = decays_of(STEPS);
#pragma unroll
    for (int s = STEPS - 1; s >= 0; s--) {
      const auto decays = decays_of(s);
      float drive_bar[COUNT], gate_bar[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        states[i] = stepped(states[i], decays_after.at(i), cotangents[s].again(i));
        drive_bar[i] = rounded<VARIANT>(states[i]);
        const float product = __fmul_rn(drive_bar[i], before[s][i]);
        gate_bar[i] = Decay::gate_bar(decays.at(i), product);
        if (s == 0 && time == 0 && initial_bar) {
          initial_bar[batch * channels + channel + i] =
              __fmul_rn(decays.at(i), drive_bar[i]);
        }
      }
      const long long at = first + s * channels;
      packed<T, COUNT>(drive_bar).store_streaming(db != nullptr, db + at);
      packed<T, COUNT>(gate_bar).store_streaming(da != nullptr, da + at);
      decays_after = decays;
    }
    return;
  }
  // The last steps, where they do not fill a row.
#pragma unroll 1
  for (int i = 0; i < COUNT; i++) {
    float before[STEPS], decays[STEPS + 1];
    State state = forward_start(i), adjoint = adjoint_start(i);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      decays[s] = decays[s + 1] = 1.0f;
      if (s < valid) {
        before[s] = rounded<VARIANT>(state);
        decays[s] = Decay::decay(element(a_row + s * a_time + i));
        state = stepped(state, decays[s], element(b_row + s * b_time + i));
      }
    }
#pragma unroll
    for (int s = STEPS - 1; s >= 0; s--) {
      if (s < valid) {
        const float cotangent = hbar ? element(hbar_row + s * hbar_time + i) : 0.0f;
        adjoint = stepped(adjoint, decays[s + 1], cotangent);
        const float drive_bar = rounded<VARIANT>(adjoint);
        const float product = __fmul_rn(drive_bar, before[s]);
        const float gate_bar = Decay::gate_bar(decays[s], product);
        if (db) put_element(db + first + s * channels + i, drive_bar);
        if (da) put_element(da + first + s * channels + i, gate_bar);
        if (s == 0 && time == 0 && initial_bar) {
          initial_bar[batch * channels + channel + i] = __fmul_rn(decays[0], drive_bar);
        }
      }
    }
  }
}
