// What selective_scan_backward_rows makes of single steps, each by one lane of a pair's
// four: step sizes before the states are walked, gates and gradients after it.
#pragma once

#include "selective_scan_backward_rows_staging.cuh"
#include "selective_scan_backward_rows_sums.cuh"

// Of the lane's two channels.
struct BackwardChannels {
  float bias[2], skip[2], D_bar[2], bias_bar[2];
};

// d and d u of the tile's steps, of which a lane makes every fourth, to `meeting`.
template <class Functions, class Rows>
__device__ __forceinline__ void make_steps(const Rows& rows, const BackwardChannels& own,
                                           bool curved, int blocks, int part,
                                           float4* meeting) {
  // Four blocks at a time: what is read first does not wait for what is written.
#pragma unroll 1
  for (int four = 0; four < blocks; four += 4) {
    float x[4][2], u[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int step = (four + i) * BLOCK_STEPS + part;
        x[i][c] = __fadd_rn(rows.read(DELTA_ROWS, c, step), own.bias[c]);
        u[i][c] = rows.read(U_ROWS, c, step);
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
      meeting[(four + i) * 32 + rows.lane] =
          make_float4(x[i][0], u[i][0], x[i][1], u[i][1]);
    }
  }
}

// pbar, and what z's gradient is of the output.
template <class Functions, class Rows>
__device__ __forceinline__ void make_gates(const Rows& rows, int step, bool gated,
                                           float (&pbar)[2], float (&gate_bar)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float y_bar = rows.read(Y_BAR_ROWS, c, step);
    const Gate z = gate<Functions>(rows.read(Z_ROWS, c, step));
    gate_bar[c] = always(__fmul_rn(y_bar, z.slope));
    const float gated_bar = always(__fmul_rn(y_bar, z.value));
    pbar[c] = gated ? gated_bar : y_bar;
  }
}

// The gradients of u, delta and z in their places, and the sums over steps. `bars` has
// sum g B of both channels, then sum l A log2(e); `d` the step sizes.
template <class Functions, class Rows>
__device__ __forceinline__ void make_gradients(const Rows& rows, int step, bool curved,
                                               const float (&pbar)[2],
                                               const float (&gate_bar)[2],
                                               const float (&output)[2],
                                               const float (&bars)[4],
                                               const float (&d)[2],
                                               BackwardChannels& own) {
  float u[2], x[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    u[c] = rows.read(U_ROWS, c, step);
    x[c] = __fadd_rn(rows.read(DELTA_ROWS, c, step), own.bias[c]);
  }
  float z_bar[2], u_bar[2], delta_bar[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    z_bar[c] = __fmul_rn(gate_bar[c], __fmaf_rn(own.skip[c], u[c], output[c]));
    u_bar[c] = __fmaf_rn(own.skip[c], pbar[c], __fmul_rn(bars[c], d[c]));
    delta_bar[c] = __fmaf_rn(bars[c], u[c], __fmul_rn(bars[2 + c], scancheck::LN_2));
    const float curved_bar =
        always(__fmul_rn(delta_bar[c], logistic<Functions>(x[c]).of_x));
    delta_bar[c] = curved ? curved_bar : delta_bar[c];
    own.D_bar[c] = __fmaf_rn(pbar[c], u[c], own.D_bar[c]);
    own.bias_bar[c] = __fadd_rn(own.bias_bar[c], delta_bar[c]);
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    rows.write(Z_ROWS, c, step, z_bar[c]);
    rows.write(U_ROWS, c, step, u_bar[c]);
    rows.write(DELTA_ROWS, c, step, delta_bar[c]);
  }
}
