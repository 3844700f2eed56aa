// The carry from block to block of one launch, in the order of their tickets.
//
// workspace.py says how the memory is laid out and why it need not be cleared between
// launches. A value and its flag are one word of 8 bytes, so that relaxed loads and
// stores suffice: whoever sees the flag has the value. Blocks are numbered by tickets,
// not by blockIdx, so that whatever a block waits for is computed by a block that runs
// already.
#pragma once

typedef unsigned long long Word;

struct Turn {
  unsigned number;  // 0, 1, ... in the order in which blocks started
  unsigned flag;    // marks the words of this launch
};

// The next number, for one thread of each block to take.
__device__ __forceinline__ Turn take_turn(Word* ticket, unsigned blocks) {
  const Word taken = atomicAdd(ticket, Word(1));
  const Turn turn = {unsigned(taken), unsigned(taken >> 32) + 1u};
  // The last number is gone, so no other block of this launch comes here again.
  if (turn.number == blocks - 1u) atomicExch(ticket, Word(turn.flag) << 32);
  return turn;
}

__device__ __forceinline__ void publish(Word* word, unsigned flag, float value) {
  const Word flagged = Word(flag) << 32 | Word(__float_as_uint(value));
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(flagged)
               : "memory");
}

// The value that an earlier block published in the word; waits until it is there.
__device__ __forceinline__ float awaited(const Word* word, unsigned flag) {
  Word flagged;
  do {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                 : "=l"(flagged)
                 : "l"(word)
                 : "memory");
  } while (unsigned(flagged >> 32) != flag);
  return __uint_as_float(unsigned(flagged));
}
