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
// Threadgroup: one expert, grid (N_EXPERTS). Simdgroup: a run of neighbouring slots, of which it counts those of the
// expert and those of lower ones; the counts of all tell where the expert's slots start and where those of a run do.
// Then each simdgroup goes through its run again, from the cache mostly, and writes. A lane looks at four neighbouring
// slots at a time. Threadgroups share nothing, so the result depends on the input alone.
// Threadgroup memory: 8 bytes per simdgroup.
template <int N_EXPERTS, int TOP_K, int SIMDGROUPS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void group_by_expert(
    const device uint* experts [[buffer(0)]],
    device uint* offsets [[buffer(1)]],
    device uint* order [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint expert [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int IN_FLIGHT = 4;                          // loads of a lane
  threadgroup uint2 counts[SIMDGROUPS];                 // slots of lower experts, of this one
  LILY_WAIT();
  const uint slots = active_rows<ONE>(control) * TOP_K;
  // Runs begin at multiples of 4, so that loads are aligned.
  const uint run = ((slots + SIMDGROUPS - 1) / SIMDGROUPS + 3) / 4 * 4;
  const uint begin = min(sg * run, slots), end = min(begin + run, slots);

  uint lower = 0, own = 0;
  for (uint first = begin + lane * 4; first < end; first += IN_FLIGHT * 128) {
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      const uint4 e = load_up_to_4(experts, first + i * 128, end, N_EXPERTS);
      lower += (e.x < expert ? 1 : 0) + (e.y < expert ? 1 : 0) + (e.z < expert ? 1 : 0) + (e.w < expert ? 1 : 0);
      own += (e.x == expert ? 1 : 0) + (e.y == expert ? 1 : 0) + (e.z == expert ? 1 : 0) + (e.w == expert ? 1 : 0);
    }
  }
  lower = simd_sum(lower);
  own = simd_sum(own);
  if (lane == 0) counts[sg] = uint2(lower, own);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint start = 0, next = 0;                             // of the expert; of this run
  UNROLL for (int s = 0; s < SIMDGROUPS; s++) {
    start += counts[s].x;
    if (uint(s) < sg) next += counts[s].y;
  }
  next += start;
  if (sg == 0 && lane == 0) {
    offsets[expert] = start;
    if (expert == uint(N_EXPERTS - 1)) offsets[N_EXPERTS] = slots;
  }
  if (own == 0) return;                                 // a whole simdgroup

  for (uint first = begin; first < end; first += IN_FLIGHT * 128) {
    uint4 found[IN_FLIGHT];
    uint count[IN_FLIGHT];
    bool any[IN_FLIGHT];
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      const uint4 e = load_up_to_4(experts, first + i * 128 + lane * 4, end, N_EXPERTS);
      found[i] = e;
      count[i] = (e.x == expert ? 1 : 0) + (e.y == expert ? 1 : 0) + (e.z == expert ? 1 : 0) + (e.w == expert ? 1 : 0);
    }
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) any[i] = simd_any(count[i] != 0);
    UNROLL for (int i = 0; i < IN_FLIGHT; i++) {
      if (!any[i]) continue;
      uint last = count[i];                             // after the scan: of this lane and those below
      UNROLL for (ushort d = 1; d < 32; d *= 2) {
        const uint below = simd_shuffle_up(last, d);
        if (lane >= d) last += below;
      }
      const uint slot = first + i * 128 + lane * 4;
      uint at = next + last - count[i];
      if (found[i].x == expert) order[at++] = slot;
      if (found[i].y == expert) order[at++] = slot + 1;
      if (found[i].z == expert) order[at++] = slot + 2;
      if (found[i].w == expert) order[at++] = slot + 3;
      next += simd_shuffle(last, 31);
    }
  }
}
