// The most probable token, and the step to the next position.
#pragma once
#include "common/order.h"

// A logit as an order key, and its id.
struct candidate {
  uint key;
  uint id;
};

enum : uint { INFINITE = 0xff800000u, NEGATIVE_INFINITE = 0x007fffffu };  // order keys

// A NaN counts as infinite, so that it reaches the host.
METAL_FUNC uint candidate_key(float logit) { return not_a_number(logit) ? uint(INFINITE) : order_key(logit); }

// The larger of two; of equal ones the lower id.
METAL_FUNC void keep_larger(thread candidate& best, uint key, uint id) {
  if (key > best.key || (key == best.key && id < best.id)) {
    best.key = key;
    best.id = id;
  }
}

// The same over a simdgroup: every lane holds the result.
METAL_FUNC void keep_largest_of_simdgroup(thread candidate& best) {
  const uint key = simd_max(best.key);
  best.id = simd_min(best.key == key ? best.id : 0xffffffffu);
  best.key = key;
}

// The same over a threadgroup of 8 simdgroups: the lanes of simdgroup 0 hold the result. memory: 16 words.
METAL_FUNC void keep_largest_of_threadgroup(thread candidate& best, threadgroup uint* memory, uint sg, uint lane) {
  keep_largest_of_simdgroup(best);
  if (lane == 0) {
    memory[sg] = best.key;
    memory[8 + sg] = best.id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  best.key = lane < 8 ? memory[lane] : 0;
  best.id = lane < 8 ? memory[8 + lane] : 0xffffffffu;
  keep_largest_of_simdgroup(best);
}

// values[i], ids[i] = the largest logit of run i and its id (ties: lower id; a NaN counts as infinity)
//
// logits  f32 [VOCAB]
// values  f32 [PARTS]; negative infinity for an empty run
// ids     u32 [PARTS]; for an empty run where it would begin, or VOCAB
//
// Threadgroup: one run of ceil(VOCAB / PARTS) ids, 256 threads, grid (PARTS). Thread: every 256th id.
// Threadgroup memory: 64 bytes.
template <int VOCAB, int PARTS>
[[kernel, max_total_threads_per_threadgroup(256)]] void argmax_parts(
    const device float* logits [[buffer(0)]],
    device float* values [[buffer(1)]],
    device uint* ids [[buffer(2)]],
    uint part [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint RUN = (VOCAB + PARTS - 1) / PARTS;
  threadgroup uint memory[16];
  const uint begin = min(part * RUN, uint(VOCAB)), end = min(begin + RUN, uint(VOCAB));

  LILY_WAIT();
  candidate best;
  best.key = NEGATIVE_INFINITE;
  best.id = begin;
  for (uint i = begin + tid; i < end; i += 256) keep_larger(best, candidate_key(logits[i]), i);
  keep_largest_of_threadgroup(best, memory, sg, lane);
  if (tid == 0) {
    values[part] = order_key_value(best.key);
    ids[part] = best.id;
  }
}

// tokens[0] = ring[position % RING] = id of the largest value (ties: lower id); position += 1
// Where that value is infinite the ring gets 0xffffffff instead, which tells the host.
//
// control  control block, read and written
// values   f32 [PARTS]
// ids      u32 [PARTS]
// tokens   u32 [1]
// ring     u32 [RING]
//
// One threadgroup of 256 threads, grid (1). Thread: every 256th part. Threadgroup memory: 64 bytes.
template <int PARTS, int RING>
[[kernel, max_total_threads_per_threadgroup(256)]] void advance(
    device uint* control [[buffer(0)]],
    const device float* values [[buffer(1)]],
    const device uint* ids [[buffer(2)]],
    device uint* tokens [[buffer(3)]],
    device uint* ring [[buffer(4)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint memory[16];

  LILY_WAIT();
  candidate best;
  best.key = 0;
  best.id = 0xffffffffu;
  for (uint i = tid; i < uint(PARTS); i += 256) keep_larger(best, candidate_key(values[i]), ids[i]);
  keep_largest_of_threadgroup(best, memory, sg, lane);
  if (tid == 0) {
    const uint position = control[0];
    tokens[0] = best.id;
    ring[position % RING] = best.key == INFINITE ? 0xffffffffu : best.id;
    control[0] = position + 1;
  }
}
