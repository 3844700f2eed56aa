// Warps of one block that wait for one another without standing still together.
#pragma once

// A barrier of a block's warps in two halves (mbarrier): a warp arrives when its part of
// what all share is done, and passes before it uses the others' parts. In between it runs
// on, so that the warps need not keep step.
class Gate {
 public:
  // By one thread, before a barrier of the block.
  static __device__ __forceinline__ void open(unsigned gate, int warps) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gate), "r"(warps)
                 : "memory");
  }

  // By one lane of each warp, after the stores of all.
  static __device__ __forceinline__ void arrive(unsigned gate) {
    asm volatile(
        "{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(
            gate)
        : "memory");
  }

  // Waits for the arrivals of phase 0, 1, 2, ... of that parity.
  static __device__ __forceinline__ void pass(unsigned gate, int parity) {
    unsigned passed;
    do {
      asm volatile(
          "{\n\t.reg .pred passed;\n\t"
          "mbarrier.test_wait.parity.shared::cta.b64 passed, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, passed;\n\t}"
          : "=r"(passed)
          : "r"(gate), "r"(parity)
          : "memory");
    } while (!passed);
  }
};
