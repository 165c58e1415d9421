// Which experts a row goes to.
#pragma once
#include "common/control.h"
#include "common/order.h"

// One simdgroup routes one row: lane j < TOP_K is given the expert of slot j (most probable first, equal ones by
// index) and its weight. Weights are the softmax over all N_EXPERTS logits, renormalised over the chosen ones; a logit
// that is not finite makes them NaN, chosen or not. Experts are always valid and distinct.
template <int N_EXPERTS, int TOP_K>
METAL_FUNC void route_row(const device float* logits, uint lane, thread uint& expert, thread float& weight) {
  static_assert(N_EXPERTS <= 1024 && TOP_K <= 32 && TOP_K <= N_EXPERTS, "a word of flags and a slot per lane");
  constexpr int PER_LANE = (N_EXPERTS + 31) / 32;
  uint keys[PER_LANE];
  uint taken = 0;                                       // bit i: keys[i] is out of the race
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    const uint e = i * 32 + lane;
    keys[i] = e < uint(N_EXPERTS) ? order_key(logits[e]) : 0;
    if (e >= uint(N_EXPERTS)) taken |= 1u << i;
  }
  expert = 0;
  uint chosen_key = 0, largest_key = 0;
  for (int slot = 0; slot < TOP_K; slot++) {
    uint best = 0, best_expert = 0xffffffffu;
    UNROLL for (int i = 0; i < PER_LANE; i++) {
      const bool free = ((taken >> i) & 1u) == 0;
      if (free && (best_expert == 0xffffffffu || keys[i] > best)) {
        best = keys[i];
        best_expert = i * 32 + lane;
      }
    }
    const uint key = simd_max(best);
    const uint winner = simd_min(best == key ? best_expert : 0xffffffffu);
    if (winner % 32 == lane) taken |= 1u << (winner / 32);
    if (slot == 0) largest_key = key;
    if (lane == uint(slot)) {
      expert = winner;
      chosen_key = key;
    }
  }
  const float largest = order_key_value(largest_key);
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    if (i * 32 + lane < uint(N_EXPERTS)) sum += exp(order_key_value(keys[i]) - largest);
  }
  sum = simd_sum(sum);
  const float probability = lane < uint(TOP_K) ? exp(order_key_value(chosen_key) - largest) / sum : 0.0f;
  weight = probability / simd_sum(probability);
}

// experts, weights = the TOP_K most probable experts of each row and their renormalised softmax
//
// logits   f32 [T, N_EXPERTS]
// experts  u32 [T, TOP_K], most probable first, equal ones by index
// weights  f32 [T, TOP_K], sum 1
// control  control block
//
// Simdgroup: one row; SIMDGROUPS of them in a threadgroup, grid (ceil(T / SIMDGROUPS)). Lane: every 32nd logit.
// Threadgroup memory: none. Requires N_EXPERTS <= 1024, TOP_K <= 32.
// Order of the sums: within a lane, then over the simdgroup.
template <int N_EXPERTS, int TOP_K, int SIMDGROUPS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void route(
    const device float* logits [[buffer(0)]],
    device uint* experts [[buffer(1)]],
    device float* weights [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  LILY_WAIT();
  const uint row = group * SIMDGROUPS + sg;
  if (row >= active_rows<ONE>(control)) return;
  uint expert;
  float weight;
  route_row<N_EXPERTS, TOP_K>(logits + size_t(row) * N_EXPERTS, lane, expert, weight);
  if (lane < uint(TOP_K)) {
    experts[size_t(row) * TOP_K + lane] = expert;
    weights[size_t(row) * TOP_K + lane] = weight;
  }
}
