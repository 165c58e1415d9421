// Slots sorted by expert.
#pragma once
#include "common/control.h"

// Four words from `at` on of an array of n; words beyond it are `none`. p + at is aligned to 16 bytes.
METAL_FUNC uint4 load_up_to_4(const device uint* p, uint at, uint n, uint none) {
  if (at + 4 <= n) return *(const device uint4*)(p + at);
  uint4 v = uint4(none);
  if (at < n) v.x = p[at];
  if (at + 1 < n) v.y = p[at + 1];
  if (at + 2 < n) v.z = p[at + 2];
  return v;
}

// Stable sort of slot indices by expert
//
// experts  u32 [T, TOP_K]
// offsets  u32 [N_EXPERTS + 1]: start of each expert's slots in order, then the number of active slots
// order    u32 [T * TOP_K]: slot indices row * TOP_K + j, by expert, ascending within one; only active ones
// control  control block
//
// Simdgroup: one expert; SIMDGROUPS of them in a threadgroup, grid (ceil(N_EXPERTS / SIMDGROUPS)). It reads all slots
// twice, from the cache mostly: first it counts those of lower experts, which is where its own slots start, then it
// writes its own. A lane looks at four neighbouring slots at a time. Simdgroups neither wait for each other nor share
// memory, so the result depends on nothing but the input. Threadgroup memory: none.
template <int N_EXPERTS, int TOP_K, int SIMDGROUPS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void group_by_expert(
    const device uint* experts [[buffer(0)]],
    device uint* offsets [[buffer(1)]],
    device uint* order [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int IN_FLIGHT = 4;                          // loads of a lane
  LILY_WAIT();
  const uint expert = group * SIMDGROUPS + sg;
  if (expert >= uint(N_EXPERTS)) return;
  const uint slots = active_rows<ONE>(control) * TOP_K;

  uint lower = 0;
  for (uint first = lane * 4; first < slots; first += IN_FLIGHT * 128) {
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      const uint4 e = load_up_to_4(experts, first + i * 128, slots, N_EXPERTS);
      lower += (e.x < expert ? 1 : 0) + (e.y < expert ? 1 : 0) + (e.z < expert ? 1 : 0) + (e.w < expert ? 1 : 0);
    }
  }
  uint next = simd_sum(lower);
  if (lane == 0) {
    offsets[expert] = next;
    if (expert == uint(N_EXPERTS - 1)) offsets[N_EXPERTS] = slots;
  }

  for (uint first = 0; first < slots; first += IN_FLIGHT * 128) {
    uint4 found[IN_FLIGHT];
    uint count[IN_FLIGHT];
    bool any[IN_FLIGHT];
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      const uint4 e = load_up_to_4(experts, first + i * 128 + lane * 4, slots, N_EXPERTS);
      found[i] = e;
      count[i] = (e.x == expert ? 1 : 0) + (e.y == expert ? 1 : 0) + (e.z == expert ? 1 : 0) + (e.w == expert ? 1 : 0);
    }
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) any[i] = simd_any(count[i] != 0);
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      if (!any[i]) continue;
      uint end = count[i];                              // after the scan: of this lane and those below
      UNROLL for (ushort d = 1; d < 32; d *= 2) {
        const uint below = simd_shuffle_up(end, d);
        if (lane >= d) end += below;
      }
      const uint slot = first + i * 128 + lane * 4;
      uint at = next + end - count[i];
      if (found[i].x == expert) order[at++] = slot;
      if (found[i].y == expert) order[at++] = slot + 1;
      if (found[i].z == expert) order[at++] = slot + 2;
      if (found[i].w == expert) order[at++] = slot + 3;
      next += simd_shuffle(end, 31);
    }
  }
}
