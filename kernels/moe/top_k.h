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
  uint key[KEYS];  // of expert 32 i + lane: at least 1, or 0 once it is taken and where there is none
  bool infinite = false;
  UNROLL for (int i = 0; i < KEYS; i++) {
    const uint at = uint(i) * 32 + lane;
    const float logit = at < uint(N_EXPERTS) ? logits[at] : 0.0f;
    infinite |= (as_type<uint>(logit) & 0x7f800000u) == 0x7f800000u;
    key[i] = at < uint(N_EXPERTS) ? max(order_key(logit), 1u) : 0u;
  }
  uint mine = 0;
  expert = 0;
  for (uint n = 0; n < uint(TOP_K); n++) {
    uint best = key[0];
    UNROLL for (int i = 1; i < KEYS; i++) best = max(best, key[i]);
    best = simd_max(best);
    uint at = 0xffffffffu;
    UNROLL for (int i = KEYS - 1; i >= 0; i--) at = key[i] == best ? uint(i) * 32 + lane : at;
    at = simd_min(at);
    UNROLL for (int i = 0; i < KEYS; i++) key[i] = uint(i) * 32 + lane == at ? 0u : key[i];
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
