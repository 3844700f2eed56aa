// The recurrence of selective_scan_rows over the steps of one sub-block.
#pragma once

#include "selective_scan_recurrence.cuh"

// The steps of one sub-block: h, and y of the steps that the lane has. Those from `count`
// on do not exist; where it is narrow all do.
template <class Recurrence, bool IS_NARROW, int VECTOR>
__device__ __forceinline__ void walk(typename Recurrence::State (&h)[8],
                                     const float (&scaled)[8], const float* meeting,
                                     const float* key_steps, int half, int count,
                                     float (&outputs)[VECTOR]) {
  constexpr int SUB_BLOCK = 2 * VECTOR;
#pragma unroll
  for (int step = 0; step < SUB_BLOCK; step += 2) {
    const float4 two = reinterpret_cast<const float4*>(meeting)[step / 2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float* const at = key_steps + (step + k) * 32;
      const float4 b[2] = {reinterpret_cast<const float4*>(at)[0],
                           reinterpret_cast<const float4*>(at)[1]};
      const float4 c[2] = {reinterpret_cast<const float4*>(at + 16)[0],
                           reinterpret_cast<const float4*>(at + 16)[1]};
      const float size = k ? two.z : two.x, input = k ? two.w : two.y;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float4 b4 = b[i / 4], c4 = c[i / 4];
        const float B = i % 4 == 0 ? b4.x : i % 4 == 1 ? b4.y : i % 4 == 2 ? b4.z : b4.w;
        const float C = i % 4 == 0 ? c4.x : i % 4 == 1 ? c4.y : i % 4 == 2 ? c4.z : c4.w;
        if (IS_NARROW || step + k < count) {
          Recurrence::template advance<IS_NARROW>(h[i], size, scaled[i],
                                                  __fmul_rn(input, B));
        }
        sum = i ? __fmaf_rn(C, h[i].value, sum) : __fmul_rn(C, h[i].value);
      }
      const int at_step = (step + k) % VECTOR;
      if (step + k < VECTOR) {
        outputs[at_step] = sum;
      } else {
        const float sent = half ? outputs[at_step] : sum;
        const float kept = half ? sum : outputs[at_step];
        outputs[at_step] =
            __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, sent, 1));
      }
    }
  }
}
