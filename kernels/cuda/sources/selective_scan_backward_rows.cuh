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
// Rows and keys in shared memory: _staging; single steps: _gates; states and adjoint:
// _block; exchanges between lanes: _sums.
//
// Groups are multiples of 16 channels.
#pragma once

#include "selective_scan_backward_rows_block.cuh"
#include "selective_scan_backward_rows_gates.cuh"
#include "selective_scan_backward_rows_staging.cuh"
#include "selective_scan_backward_rows_sums.cuh"

template <class Storage, class Functions, int WARPS, int RESIDENT>
__global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    selective_scan_backward_rows(const __grid_constant__ BackwardArguments a) {
  using Layout = BackwardLayout<Storage, WARPS>;
  constexpr int TILE = Layout::TILE;
  extern __shared__ float4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int pair = lane % 8, part = lane / 8;
  char* const own = reinterpret_cast<char*>(memory) + warp * Layout::WARP;
  float4* const starts = reinterpret_cast<float4*>(own + Layout::STARTS);
  float4* const meeting = reinterpret_cast<float4*>(own + Layout::MEETING);
  const Crossing crossing{reinterpret_cast<float*>(own + Layout::CROSS)};
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
  BackwardChannels sums;
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
    sums.bias[c] = a.delta_bias != nullptr ? a.delta_bias[at] : 0.0f;
    sums.skip[c] = a.D != nullptr ? a.D[at] : 0.0f;
    // The lane of the first part goes on with the sums of the slice behind.
    const long long channel = place.batch * a.channels + at;
    const bool adds = goes_on && part == 0;
    sums.D_bar[c] = adds && a.D_sums != nullptr ? a.D_sums[channel] : 0.0f;
    sums.bias_bar[c] = adds && a.bias_sums != nullptr ? a.bias_sums[channel] : 0.0f;
  }

  const BackwardRows<Storage, WARPS> rows(a, place.batch, first, own, lane);
  const Storage* key_row = nullptr;
  if (warp < 4 && lane % 16 < states) {
    const int key = lane % 16;
    key_row = lane < 16 ? static_cast<const Storage*>(a.B) + place.batch * a.B_batch +
                              place.group * a.B_group + key * a.B_state
                        : static_cast<const Storage*>(a.C) + place.batch * a.C_batch +
                              place.group * a.C_group + key * a.C_state;
  }
  BackwardKeys<Storage, WARPS> key_fetch;

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
    rows.copy(a.u, U_ROWS, a.u_batch, a.u_channel, first_step);
    rows.copy(a.delta, DELTA_ROWS, a.delta_batch, a.delta_channel, first_step);
  }
  commit_copies();
  fetch_edge(first_step);
  key_fetch.load(a, key_row, warp, first_step);
  key_fetch.store(keys, 0, warp, lane);
  __syncthreads();

  for (int tile = tiles - 1; tile >= 0; tile--, first_step -= TILE) {
    const int buffer = (tiles - 1 - tile) % 2;
    const int blocks = int(min((long long)TILE, a.end - first_step)) / BLOCK_STEPS;
    const BackwardSteps steps{meeting, keys + buffer * Layout::KEYS + part * 4, pair};
    key_fetch.load(a, key_row, warp, first_step - TILE);
    if (exists) {
      if (gated) rows.copy(a.z, Z_ROWS, a.z_batch, a.z_channel, first_step);
      rows.copy(a.y_bar, Y_BAR_ROWS, a.y_bar_batch, a.y_bar_channel, first_step);
      commit_copies();
      float h[2][4];
      spread(edge[0], h[0]);
      spread(edge[1], h[1]);
      await_copies<1>();
      __syncwarp();
      make_steps<Functions>(rows, sums, curved, blocks, part, meeting);
      __syncwarp();

      make_starts<Functions>(h, scaled, steps, blocks, lane, starts);
      await_copies<0>();
      __syncwarp();

#pragma unroll 1
      for (int block = blocks - 1; block >= 0; block--) {
        const int own_step = block * BLOCK_STEPS + part;
        float pbar[2], gate_bar[2];
        make_gates<Functions>(rows, own_step, gated, pbar, gate_bar);
        BackwardBlock in_registers;
        float output[2][BLOCK_STEPS], bars[4][BLOCK_STEPS];
        in_registers.go_forward<Functions>(starts, block, lane, scaled, steps, output);
        float own_output[2];
        own_sums(output, part, own_output);
        float of_channels[BLOCK_STEPS];
        in_registers.go_back(block, steps, pbar, scaled, crossing, part, lane, carried,
                             A_bar, bars, of_channels);
#pragma unroll
        for (int k = 0; k < BLOCK_STEPS; k++) {
          reinterpret_cast<float*>(starts + block * 64)[k * 32 + lane] = of_channels[k];
        }
        float own_bars[4];
        own_sums(bars, part, own_bars);
        const float4 at = steps.meets(own_step);
        const float d[2] = {at.x, at.z};
        make_gradients<Functions>(rows, own_step, curved, pbar, gate_bar, own_output,
                                  own_bars, d, sums);
      }
      __syncwarp();

      rows.store(a.u_bar, U_ROWS, first_step);
      rows.store(a.delta_bar, DELTA_ROWS, first_step);
      rows.store(a.z_bar, Z_ROWS, first_step);
      __syncwarp();
      if (tile > 0) {
        rows.copy(a.u, U_ROWS, a.u_batch, a.u_channel, first_step - TILE);
        rows.copy(a.delta, DELTA_ROWS, a.delta_batch, a.delta_channel, first_step - TILE);
        fetch_edge(first_step - TILE);
      }
      commit_copies();
    }
    key_fetch.store(keys, buffer ^ 1, warp, lane);
    __syncthreads();
    for (int step = warp; step < blocks * BLOCK_STEPS && lane % 16 < states;
         step += WARPS) {
      key_sums[(first_step - a.begin + step) * 2 * states] = warps_sum<Layout, WARPS>(
          reinterpret_cast<const char*>(memory), step, lane, warps);
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
      float &D_bar = sums.D_bar[c], &bias_bar = sums.bias_bar[c];
      D_bar = __fadd_rn(D_bar, __shfl_xor_sync(0xffffffffu, D_bar, distance));
      bias_bar = __fadd_rn(bias_bar, __shfl_xor_sync(0xffffffffu, bias_bar, distance));
    }
    if (part == 0) {
      if (a.D_sums != nullptr) a.D_sums[channel] = sums.D_bar[c];
      if (a.bias_sums != nullptr) a.bias_sums[channel] = sums.bias_bar[c];
    }
  }
}
