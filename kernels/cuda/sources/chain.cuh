// The carry from block to block of one launch, in the order of their tickets.
//
// workspace.py says how the memory is laid out and why it need not be cleared between
// launches. A value and its flag are one word of 8 bytes, so that relaxed loads and
// stores suffice: whoever sees the flag has the value. Blocks are numbered by tickets,
// not by blockIdx, so that whatever a block waits for is computed by a block that runs
// already.
#pragma once

typedef unsigned long long Word;

// The words of a value are two, taken in turns by the links of its chain: whoever writes
// the value of link k has seen that of link k - 1, and so knows that k - 2 was read.
constexpr int IN_TURNS = 2;

struct Turn {
  unsigned number;  // 0, 1, ... in the order in which blocks started
  unsigned flag;    // marks what the first link of this launch publishes; others add k
};

// The next number, for one thread of each block to take. A chain of this launch has at
// most `links` links.
__device__ __forceinline__ Turn take_turn(Word* ticket, unsigned blocks,
                                          unsigned links) {
  const Word taken = atomicAdd(ticket, Word(1));
  const Turn turn = {unsigned(taken), unsigned(taken >> 32) + 1u};
  // The last number is gone, so no other block of this launch comes here again.
  if (turn.number == blocks - 1u) atomicExch(ticket, (taken >> 32) + links << 32);
  return turn;
}

__device__ __forceinline__ void publish(Word* word, unsigned flag, float value) {
  const Word flagged = Word(flag) << 32 | Word(__float_as_uint(value));
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(flagged)
               : "memory");
}

__device__ __forceinline__ Word looked_at(const Word* word) {
  Word flagged;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
               : "=l"(flagged)
               : "l"(word)
               : "memory");
  return flagged;
}

__device__ __forceinline__ bool has_flag(Word flagged, unsigned flag) {
  return unsigned(flagged >> 32) == flag;
}

__device__ __forceinline__ float value_of(Word flagged) {
  return __uint_as_float(unsigned(flagged));
}

// The value that an earlier block published in the word; waits until it is there.
__device__ __forceinline__ float awaited(const Word* word, unsigned flag) {
  Word flagged;
  do {
    flagged = looked_at(word);
  } while (!has_flag(flagged, flag));
  return value_of(flagged);
}

// The values of two neighbouring words, looked at together.
__device__ __forceinline__ float2 awaited_two(const Word* words, unsigned flag) {
  Word first, second;
  do {
    first = looked_at(words);
    second = looked_at(words + 1);
  } while (!has_flag(first, flag) || !has_flag(second, flag));
  return make_float2(value_of(first), value_of(second));
}
