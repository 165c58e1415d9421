// Slots sorted by expert.
#pragma once
#include "common/control.h"

// Whether equal experts stand in lower and in higher lanes of the simdgroup: how many lower ones, and any higher one.
// Lanes without a slot carry an expert that no other lane has.
METAL_FUNC void rank_in_simdgroup(uint expert, uint lane, thread uint& lower, thread bool& last) {
  lower = 0;
  uint higher = 0;
  UNROLL for (ushort i = 0; i < 32; i++) {
    const bool same = simd_shuffle(expert, i) == expert;
    if (same && i < lane) lower++;
    if (same && i > lane) higher++;
  }
  last = higher == 0;
}

// Counting sort of slot indices by expert, ascending within an expert
//
// experts  u32 [T, TOP_K]
// offsets  u32 [N_EXPERTS + 1]: start of each expert's slots in order, then the number of active slots
// order    u32 [T * TOP_K]: slot indices row * TOP_K + j; only the active ones are written
// control  control block
//
// One threadgroup of SIMDGROUPS simdgroups. Each simdgroup owns one contiguous segment of the slots and one row of the
// table of counts, and goes through its segment 32 slots at a time; the rank among equal experts inside such a batch
// comes from shuffles. So no two simdgroups write one counter, and the result does not depend on their timing.
// Threadgroup memory: 4 * SIMDGROUPS * N_EXPERTS bytes.
// Source of the idea: the stable radix sort pass with per-warp histograms.
template <int N_EXPERTS, int TOP_K, int SIMDGROUPS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void group_by_expert(
    const device uint* experts [[buffer(0)]],
    device uint* offsets [[buffer(1)]],
    device uint* order [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint THREADS = SIMDGROUPS * 32;
  threadgroup uint counts[SIMDGROUPS * N_EXPERTS];
  threadgroup uint* own = counts + sg * N_EXPERTS;

  LILY_WAIT();
  const uint slots = active_rows<ONE>(control) * TOP_K;
  const uint batches = (slots + THREADS - 1) / THREADS; // per simdgroup
  const uint first = sg * batches * 32;
  for (uint i = tid; i < uint(SIMDGROUPS * N_EXPERTS); i += THREADS) counts[i] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint b = 0; b < batches; b++) {
    const uint slot = first + b * 32 + lane;
    const uint expert = slot < slots ? experts[slot] : N_EXPERTS + lane;
    uint lower;
    bool last;
    rank_in_simdgroup(expert, lane, lower, last);
    if (slot < slots && last) own[expert] += lower + 1;
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // The first simdgroup turns counts into starts: over the segments of an expert, then over the experts.
  if (sg == 0) {
    uint start = 0;
    for (uint e0 = 0; e0 < uint(N_EXPERTS); e0 += 32) {
      const uint e = e0 + lane;
      uint total = 0;
      if (e < uint(N_EXPERTS)) {
        for (uint s = 0; s < uint(SIMDGROUPS); s++) total += counts[s * N_EXPERTS + e];
      }
      uint inclusive = total;
      UNROLL for (ushort d = 1; d < 32; d *= 2) {
        const uint below = simd_shuffle_up(inclusive, d);
        if (lane >= d) inclusive += below;
      }
      if (e < uint(N_EXPERTS)) {
        uint at = start + inclusive - total;
        offsets[e] = at;
        for (uint s = 0; s < uint(SIMDGROUPS); s++) {
          const uint count = counts[s * N_EXPERTS + e];
          counts[s * N_EXPERTS + e] = at;
          at += count;
        }
      }
      start += simd_shuffle(inclusive, 31);
    }
    if (lane == 0) offsets[N_EXPERTS] = slots;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint b = 0; b < batches; b++) {
    const uint slot = first + b * 32 + lane;
    const uint expert = slot < slots ? experts[slot] : N_EXPERTS + lane;
    uint lower;
    bool last;
    rank_in_simdgroup(expert, lane, lower, last);
    const uint at = slot < slots ? own[expert] + lower : 0;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (slot < slots) {
      order[at] = slot;
      if (last) own[expert] = at + 1;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
