// Backward for many channels and up to 16 states, in rows of whole 16-byte vectors.
//
// A warp has 16 channels, two of them, 8 apart, in each group of four lanes; a lane has
// 4 states of both. A tile is 64 bytes of a row: u, delta, z and ybar of the warp's
// channels in shared memory. The states before each BLOCK_STEPS steps of the tile are
// made first; then, block by block from the last one, states and decays in registers,
// forwards, and the adjoint backwards, as selective_scan_backward_steps.cuh has it.
// Of a block's sums over states each lane gets those of one step, whose gates it makes
// and whose gradients take the place of u, delta and z. Sums over channels: the two of a
// lane, the eight pairs in order through `crossing`, warps in order at the end of the
// tile, where `starts` has each warp's; blocks in another kernel.
//
// Groups are multiples of 16 channels.
#pragma once

#include "row_vectors.cuh"
#include "selective_scan_backward_arguments.cuh"
#include "storage.cuh"

template <class Storage, int WARPS>
struct BackwardLayout {
  static constexpr int VECTOR = 16 / sizeof(Storage);  // steps in 16 bytes
  static constexpr int TILE = 4 * VECTOR;
  static constexpr int BLOCKS = TILE / BLOCK_STEPS;
  static constexpr int ROW = 64;               // bytes
  static constexpr int ROWS = 16 * ROW;        // of one tensor
  static constexpr int CROSSING = 8 * 36;      // floats, of one step
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

// Sums over the four lanes of a pair, of four steps: each lane gets those of its step.
// All exchanges of one distance come together, so that none waits for another.
template <int COUNT>
__device__ __forceinline__ void own_sums(const float (&values)[COUNT][BLOCK_STEPS],
                                         int part, float (&sums)[COUNT]) {
  float half[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float sent = part & 2 ? values[i][k] : values[i][k + 2];
      half[i][k] = __shfl_xor_sync(0xffffffffu, sent, 16);
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float kept = part & 2 ? values[i][k + 2] : values[i][k];
      half[i][k] = __fadd_rn(kept, half[i][k]);
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float sent = part & 1 ? half[i][0] : half[i][1];
    sums[i] = __shfl_xor_sync(0xffffffffu, sent, 8);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float kept = part & 1 ? half[i][1] : half[i][0];
    sums[i] = __fadd_rn(kept, sums[i]);
  }
}

// Four states of a row of N; zeros behind.
__device__ __forceinline__ float4 four_states(const float* row, int first, int states) {
  if (states == 16) return *reinterpret_cast<const float4*>(row + first);
  return make_float4(first < states ? row[first] : 0.0f,
                     first + 1 < states ? row[first + 1] : 0.0f,
                     first + 2 < states ? row[first + 2] : 0.0f,
                     first + 3 < states ? row[first + 3] : 0.0f);
}

// Has the value computed whether it is selected later or not, without a branch.
__device__ __forceinline__ float always(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

__device__ __forceinline__ void spread(const float4& from, float (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

template <class Storage, class Functions, int WARPS, int RESIDENT>
__global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    selective_scan_backward_rows(const __grid_constant__ BackwardArguments a) {
  using Layout = BackwardLayout<Storage, WARPS>;
  constexpr int VECTOR = Layout::VECTOR, TILE = Layout::TILE;
  constexpr int COPIES = 2;  // vectors of a tensor's tile that a lane copies
  extern __shared__ float4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int pair = lane % 8, part = lane / 8;
  char* const own = reinterpret_cast<char*>(memory) + warp * Layout::WARP;
  float4* const starts = reinterpret_cast<float4*>(own + Layout::STARTS);
  float4* const meeting = reinterpret_cast<float4*>(own + Layout::MEETING);
  float* const crossing = reinterpret_cast<float*>(own + Layout::CROSS);
  float* const keys =
      reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + WARPS * Layout::WARP);

  const BackwardPlace place = place_of(a, WARPS * 16);
  const int warps = min(WARPS, place.count / 16);
  const bool exists = warp < warps;
  const long long first = place.first + (exists ? warp * 16 : 0);
  const int states = int(a.states);
  const bool goes_on = a.end < a.steps, curved = a.delta_softplus != 0;
  const bool gated = a.z != nullptr;
  const long long length = a.end - a.begin;

  float scaled[2][4], carried[2][4], A_bar[2][4];
  float bias[2], skip[2], D_bar[2], bias_bar[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const long long at = first + pair + 8 * c;
    const long long row = (place.batch * a.channels + at) * states;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int state = part * 4 + i;
      const bool there = state < states;
      scaled[c][i] = there ? scaled_decay(a.A[at * a.A_channel + state]) : 0.0f;
      carried[c][i] = there && a.after != nullptr ? a.after[row + state] : 0.0f;
      A_bar[c][i] = there && goes_on ? a.A_sums[row + state] : 0.0f;
    }
    bias[c] = a.delta_bias != nullptr ? a.delta_bias[at] : 0.0f;
    skip[c] = a.D != nullptr ? a.D[at] : 0.0f;
    // The lane of the first part goes on with the sums of the slice behind.
    const long long channel = place.batch * a.channels + at;
    const bool adds = goes_on && part == 0;
    D_bar[c] = adds && a.D_sums != nullptr ? a.D_sums[channel] : 0.0f;
    bias_bar[c] = adds && a.bias_sums != nullptr ? a.bias_sums[channel] : 0.0f;
  }

  // A lane copies the vector lane % 4 of rows lane / 4 and lane / 4 + 8.
  const int copied = lane / 4 * Layout::ROW + turned(lane / 4, lane % 4) * 16;
  auto copy_rows = [&](const void* tensor, int rows, long long by_batch,
                       long long by_channel, long long first_step) {
    const long long step = first_step + lane % 4 * VECTOR;
    const bool there = tensor != nullptr && step < a.end;
    const Storage* const from =
        static_cast<const Storage*>(there ? tensor : a.u) +
        (there ? place.batch * by_batch + (first + lane / 4) * by_channel + step : 0);
    const unsigned to = shared_address(own + rows * Layout::ROWS + copied);
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      copy_16_bytes(to + i * 8 * Layout::ROW, from + (there ? i * 8 * by_channel : 0),
                    there ? 16 : 0);
    }
  };
  auto element = [&](int rows, int c, int step) {
    return reinterpret_cast<Storage*>(own + rows * Layout::ROWS +
                                      (pair + 8 * c) * Layout::ROW +
                                      turned(pair, step / VECTOR) * 16) +
           step % VECTOR;
  };
  auto read = [&](int rows, int c, int step) {
    Packed<Storage, 1> value;
    value.load(element(rows, c, step));
    return value.at(0);
  };
  auto write = [&](int rows, int c, int step, float value) {
    const float values[1] = {value};
    packed<Storage, 1>(values).store(element(rows, c, step));
  };
  const Storage* key_row = nullptr;
  if (warp < 4 && lane % 16 < states) {
    const int key = lane % 16;
    key_row = lane < 16 ? static_cast<const Storage*>(a.B) + place.batch * a.B_batch +
                              place.group * a.B_group + key * a.B_state
                        : static_cast<const Storage*>(a.C) + place.batch * a.C_batch +
                              place.group * a.C_group + key * a.C_state;
  }
  Packed<Storage, VECTOR> fetched;
  auto fetch_keys = [&](long long first_step) {
    const long long step = first_step + warp * VECTOR;
    fetched.clear();
    if (key_row != nullptr && step < a.end && first_step >= a.begin) {
      fetched.load(key_row + step);
    }
  };
  auto store_keys = [&](int buffer) {
    if (warp >= 4) return;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      keys[buffer * Layout::KEYS + (warp * VECTOR + k) * 32 + lane] = fetched.at(k);
    }
  };

  float4 edge[2];
  auto fetch_edge = [&](long long first_step) {
    const long long edges = (a.steps + TILE - 1) / TILE;
    const long long row = (place.batch * edges + first_step / TILE) * a.channels;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      edge[c] = four_states(a.edges + (row + first + pair + 8 * c) * states, part * 4,
                            states);
    }
  };

  const long long in_group = a.channels / a.groups;
  const long long line =
      (place.row * ((in_group + WARPS * 16 - 1) / (WARPS * 16)) + place.block) * length;
  float* const key_sums =
      a.key_sums + line * 2 * states + (lane < 16 ? lane : states + lane - 16);

  const int tiles = int((length + TILE - 1) / TILE);
  long long first_step = a.begin + (long long)(tiles - 1) * TILE;
  if (exists) {
    copy_rows(a.u, U_ROWS, a.u_batch, a.u_channel, first_step);
    copy_rows(a.delta, DELTA_ROWS, a.delta_batch, a.delta_channel, first_step);
  }
  commit_copies();
  fetch_edge(first_step);
  fetch_keys(first_step);
  store_keys(0);
  __syncthreads();

  for (int tile = tiles - 1; tile >= 0; tile--, first_step -= TILE) {
    const int buffer = (tiles - 1 - tile) % 2;
    const int blocks = int(min((long long)TILE, a.end - first_step)) / BLOCK_STEPS;
    const float* const own_keys = keys + buffer * Layout::KEYS + part * 4;
    fetch_keys(first_step - TILE);
    if (exists) {
      if (gated) copy_rows(a.z, Z_ROWS, a.z_batch, a.z_channel, first_step);
      copy_rows(a.y_bar, Y_BAR_ROWS, a.y_bar_batch, a.y_bar_channel, first_step);
      commit_copies();
      float h[2][4];
      spread(edge[0], h[0]);
      spread(edge[1], h[1]);
      await_copies<1>();
      __syncwarp();
      // Four blocks at a time: what is read first does not wait for what is written.
#pragma unroll 1
      for (int four = 0; four < blocks; four += 4) {
        float x[4][2], u[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const int step = (four + i) * BLOCK_STEPS + part;
            x[i][c] = __fadd_rn(read(DELTA_ROWS, c, step), bias[c]);
            u[i][c] = read(U_ROWS, c, step);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const float softplus = always(Functions::softplus(x[i][c]));
            x[i][c] = curved ? softplus : x[i][c];
            u[i][c] = __fmul_rn(x[i][c], u[i][c]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          meeting[(four + i) * 32 + lane] =
              make_float4(x[i][0], u[i][0], x[i][1], u[i][1]);
        }
      }
      __syncwarp();

#pragma unroll 1
      for (int block = 0;; block++) {
        starts[block * 64 + lane] = make_float4(h[0][0], h[0][1], h[0][2], h[0][3]);
        starts[block * 64 + 32 + lane] = make_float4(h[1][0], h[1][1], h[1][2], h[1][3]);
        if (block == blocks - 1) break;
#pragma unroll
        for (int k = 0; k < BLOCK_STEPS; k++) {
          const int step = block * BLOCK_STEPS + k;
          const float4 at = meeting[step * 8 + pair];
          float B[4];
          spread(*reinterpret_cast<const float4*>(own_keys + step * 32), B);
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const float d = c ? at.z : at.x, written = c ? at.w : at.y;
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const float w = Functions::exp2_product(d, scaled[c][i]);
              h[c][i] = __fmaf_rn(w, h[c][i], __fmul_rn(written, B[i]));
            }
          }
        }
      }
      await_copies<0>();
      __syncwarp();

#pragma unroll 1
      for (int block = blocks - 1; block >= 0; block--) {
        const int own_step = block * BLOCK_STEPS + part;
        float pbar[2], gate_bar[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const float y_bar = read(Y_BAR_ROWS, c, own_step);
          const Gate z = gate<Functions>(read(Z_ROWS, c, own_step));
          gate_bar[c] = always(__fmul_rn(y_bar, z.slope));
          const float gated_bar = always(__fmul_rn(y_bar, z.value));
          pbar[c] = gated ? gated_bar : y_bar;
        }
        float w[BLOCK_STEPS][2][4], before[BLOCK_STEPS + 1][2][4];
        float output[2][BLOCK_STEPS];
        float bars[4][BLOCK_STEPS];  // of both channels sum g B, then sum l A log2(e)
        spread(starts[block * 64 + lane], before[0][0]);
        spread(starts[block * 64 + 32 + lane], before[0][1]);
#pragma unroll
        for (int k = 0; k < BLOCK_STEPS; k++) {
          const int step = block * BLOCK_STEPS + k;
          const float4 at = meeting[step * 8 + pair];
          float B[4], C[4];
          spread(*reinterpret_cast<const float4*>(own_keys + step * 32), B);
          spread(*reinterpret_cast<const float4*>(own_keys + step * 32 + 16), C);
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const float d = c ? at.z : at.x, written = c ? at.w : at.y;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
              w[k][c][i] = Functions::exp2_product(d, scaled[c][i]);
              const float state =
                  __fmaf_rn(w[k][c][i], before[k][c][i], __fmul_rn(written, B[i]));
              before[k + 1][c][i] = state;
              sum = i ? __fmaf_rn(C[i], state, sum) : __fmul_rn(C[i], state);
            }
            output[c][k] = sum;
          }
        }
        float own_output[2];
        own_sums(output, part, own_output);
        float of_channels[BLOCK_STEPS];
#pragma unroll
        for (int two = BLOCK_STEPS - 2; two >= 0; two -= 2) {
          float of_step[2][2];
#pragma unroll
          for (int k = two + 1; k >= two; k--) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
              of_step[k - two][c] = __shfl_sync(0xffffffffu, pbar[c], k * 8 + pair);
            }
          }
#pragma unroll
          for (int k = two + 1; k >= two; k--) {
            const int step = block * BLOCK_STEPS + k;
            const float4 at = meeting[step * 8 + pair];
            float B[4], C[4];
            float B_bar[4], C_bar[4];
            spread(*reinterpret_cast<const float4*>(own_keys + step * 32), B);
            spread(*reinterpret_cast<const float4*>(own_keys + step * 32 + 16), C);
#pragma unroll
            for (int c = 0; c < 2; c++) {
              const float d = c ? at.z : at.x, written = c ? at.w : at.y;
              const float p = of_step[k - two][c];
#pragma unroll
              for (int i = 0; i < 4; i++) {
                const float g = __fmaf_rn(p, C[i], carried[c][i]);
                float& of_written = bars[c][k];
                of_written = i ? __fmaf_rn(g, B[i], of_written) : __fmul_rn(g, B[i]);
                carried[c][i] = __fmul_rn(w[k][c][i], g);
                const float log_bar = __fmul_rn(carried[c][i], before[k][c][i]);
                float& of_log = bars[2 + c][k];
                of_log = i ? __fmaf_rn(log_bar, scaled[c][i], of_log)
                           : __fmul_rn(log_bar, scaled[c][i]);
                A_bar[c][i] = __fmaf_rn(log_bar, d, A_bar[c][i]);
                const float state = before[k + 1][c][i];
                B_bar[i] = c ? __fmaf_rn(g, written, B_bar[i]) : __fmul_rn(g, written);
                C_bar[i] = c ? __fmaf_rn(p, state, C_bar[i]) : __fmul_rn(p, state);
              }
            }
            float* const to =
                crossing + (k - two) * Layout::CROSSING + pair * 36 + part * 4;
            reinterpret_cast<float4*>(to)[0] =
                make_float4(B_bar[0], B_bar[1], B_bar[2], B_bar[3]);
            reinterpret_cast<float4*>(to)[4] =
                make_float4(C_bar[0], C_bar[1], C_bar[2], C_bar[3]);
          }
          __syncwarp();
#pragma unroll
          for (int k = two; k < two + 2; k++) {
            const float* const from = crossing + (k - two) * Layout::CROSSING + lane;
            float sum = from[0];
#pragma unroll
            for (int other = 1; other < 8; other++) {
              sum = __fadd_rn(sum, from[other * 36]);
            }
            of_channels[k] = sum;
          }
          __syncwarp();
        }
#pragma unroll
        for (int k = 0; k < BLOCK_STEPS; k++) {
          reinterpret_cast<float*>(starts + block * 64)[k * 32 + lane] = of_channels[k];
        }
        float own_bars[4], u[2], x[2];
        own_sums(bars, part, own_bars);
        const float4 meets = meeting[own_step * 8 + pair];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          u[c] = read(U_ROWS, c, own_step);
          x[c] = __fadd_rn(read(DELTA_ROWS, c, own_step), bias[c]);
        }
        float z_bar[2], u_bar[2], delta_bar[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          z_bar[c] = __fmul_rn(gate_bar[c], __fmaf_rn(skip[c], u[c], own_output[c]));
          u_bar[c] = __fmul_rn(own_bars[c], c ? meets.z : meets.x);
          u_bar[c] = __fmaf_rn(skip[c], pbar[c], u_bar[c]);
          delta_bar[c] =
              __fmaf_rn(own_bars[c], u[c], __fmul_rn(own_bars[2 + c], scancheck::LN_2));
          const float curved_bar =
              always(__fmul_rn(delta_bar[c], logistic<Functions>(x[c]).of_x));
          delta_bar[c] = curved ? curved_bar : delta_bar[c];
          D_bar[c] = __fmaf_rn(pbar[c], u[c], D_bar[c]);
          bias_bar[c] = __fadd_rn(bias_bar[c], delta_bar[c]);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
          write(Z_ROWS, c, own_step, z_bar[c]);
          write(U_ROWS, c, own_step, u_bar[c]);
          write(DELTA_ROWS, c, own_step, delta_bar[c]);
        }
      }
      __syncwarp();

      auto store_rows = [&](void* tensor, int rows) {
        const long long step = first_step + lane % 4 * VECTOR;
        if (tensor == nullptr || step >= a.end) return;
        Storage* const to = static_cast<Storage*>(tensor) +
                            (place.batch * a.channels + first + lane / 4) * a.steps + step;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
          Packed<Storage, VECTOR> values;
          values.load(reinterpret_cast<const Storage*>(own + rows * Layout::ROWS + copied +
                                                       i * 8 * Layout::ROW));
          values.store(to + i * 8 * a.steps);
        }
      };
      store_rows(a.u_bar, U_ROWS);
      store_rows(a.delta_bar, DELTA_ROWS);
      store_rows(a.z_bar, Z_ROWS);
      __syncwarp();
      if (tile > 0) {
        copy_rows(a.u, U_ROWS, a.u_batch, a.u_channel, first_step - TILE);
        copy_rows(a.delta, DELTA_ROWS, a.delta_batch, a.delta_channel, first_step - TILE);
        fetch_edge(first_step - TILE);
      }
      commit_copies();
    }
    store_keys(buffer ^ 1);
    __syncthreads();
    for (int step = warp; step < blocks * BLOCK_STEPS && lane % 16 < states;
         step += WARPS) {
      const char* const from = reinterpret_cast<const char*>(memory) + Layout::STARTS +
                               step / BLOCK_STEPS * 1024 +
                               (step % BLOCK_STEPS * 32 + lane) * 4;
      float sum = *reinterpret_cast<const float*>(from);
#pragma unroll
      for (int other = 1; other < WARPS; other++) {
        const float next =
            always(*reinterpret_cast<const float*>(from + other * Layout::WARP));
        sum = other < warps ? __fadd_rn(sum, next) : sum;
      }
      key_sums[(first_step - a.begin + step) * 2 * states] = sum;
    }
    __syncthreads();
  }

  if (!exists) return;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const long long channel = place.batch * a.channels + first + pair + 8 * c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int state = part * 4 + i;
      if (state >= states) continue;
      if (a.before != nullptr) a.before[channel * states + state] = carried[c][i];
      a.A_sums[channel * states + state] = A_bar[c][i];
    }
#pragma unroll
    for (int distance = 16; distance >= 8; distance /= 2) {
      D_bar[c] = __fadd_rn(D_bar[c], __shfl_xor_sync(0xffffffffu, D_bar[c], distance));
      bias_bar[c] =
          __fadd_rn(bias_bar[c], __shfl_xor_sync(0xffffffffu, bias_bar[c], distance));
    }
    if (part == 0) {
      if (a.D_sums != nullptr) a.D_sums[channel] = D_bar[c];
      if (a.bias_sums != nullptr) a.bias_sums[channel] = bias_bar[c];
    }
  }
}
