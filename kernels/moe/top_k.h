// The largest of a row of logits, by one simdgroup, for kernels that route on the way.
#pragma once
#include "moe/route.h"

// As route_row, with fewer instructions: lane i < TOP_K gets the i-th largest of N_EXPERTS logits (ties: the lower
// index) and its share of the softmax over those TOP_K, which is the softmax over all, renormalised. A logit that is
// not finite makes all weights NaN; experts are always valid and distinct.
template <int N_EXPERTS, int TOP_K>
METAL_FUNC void top_k(const device float* logits, uint lane, thread uint& expert, thread float& weight) {
  static_assert(N_EXPERTS <= 1024 && TOP_K <= 32 && TOP_K <= N_EXPERTS, "32 keys per lane, one slot per lane");
  enum : int { KEYS = (N_EXPERTS + 31) / 32 };
  // Of expert 32 index + lane: at least 1, or 0 where there is none. Each lane sorts its own once; after that only the
  // first of every lane is in the race.
  uint key[KEYS], index[KEYS];
  bool infinite = false;
  UNROLL for (int i = 0; i < KEYS; i++) {
    const uint at = uint(i) * 32 + lane;
    const float logit = at < uint(N_EXPERTS) ? logits[at] : 0.0f;
    infinite |= (as_type<uint>(logit) & 0x7f800000u) == 0x7f800000u;
    key[i] = at < uint(N_EXPERTS) ? max(order_key(logit), 1u) : 0u;
    index[i] = at;
  }
  // Neighbours in turn: equal keys keep their order.
  UNROLL for (int round = 0; round < KEYS; round++) {
    UNROLL for (int i = round % 2; i + 1 < KEYS; i += 2) {
      const bool swap = key[i] < key[i + 1];
      const uint larger = swap ? key[i + 1] : key[i], smaller = swap ? key[i] : key[i + 1];
      const uint first = swap ? index[i + 1] : index[i], second = swap ? index[i] : index[i + 1];
      key[i] = larger;
      key[i + 1] = smaller;
      index[i] = first;
      index[i + 1] = second;
    }
  }
  uint mine = 0;
  expert = 0;
  for (uint n = 0; n < uint(TOP_K); n++) {
    const uint best = simd_max(key[0]);
    const uint at = simd_min(key[0] == best ? index[0] : 0xffffffffu);
    const bool taken = index[0] == at;
    UNROLL for (int i = 0; i + 1 < KEYS; i++) {
      key[i] = taken ? key[i + 1] : key[i];
      index[i] = taken ? index[i + 1] : index[i];
    }
    if (taken) key[KEYS - 1] = 0;
    if (lane == n) {
      expert = at;
      mine = best;
    }
  }
  const float logit = order_key_value(mine);
  const float largest = simd_broadcast(logit, 0);
  const float e = lane < uint(TOP_K) ? exp(logit - largest) : 0.0f;
  weight = simd_any(infinite) ? as_type<float>(0x7fc00000u) : e / simd_sum(e);
}
