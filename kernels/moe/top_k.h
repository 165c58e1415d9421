// The largest of a row of logits, by one simdgroup.
#pragma once

// An unsigned number that orders as the float does; 0 is below all of them.
METAL_FUNC uint order_key(float f) {
  const uint u = as_type<uint>(f + 0.0f);  // -0 is 0
  return (u & 0x80000000u) != 0 ? ~u : (u | 0x80000000u);
}
METAL_FUNC float key_value(uint key) { return as_type<float>((key & 0x80000000u) != 0 ? (key & 0x7fffffffu) : ~key); }

// Lane i < TOP_K gets the i-th largest of N <= 1024 logits (ties: the lower index) and its share of the softmax over
// those TOP_K <= 32; N >= TOP_K.
template <int N, int TOP_K>
METAL_FUNC void top_k(const device float* logits, uint lane, thread uint& chosen, thread float& weight) {
  enum : int { KEYS = (N + 31) / 32 };
  uint key[KEYS];  // logit 32 i + lane, 0 once it is taken
  UNROLL for (int i = 0; i < KEYS; i++) {
    const uint at = uint(i) * 32 + lane;
    key[i] = at < uint(N) ? order_key(logits[at]) : 0u;
  }
  uint mine = 0;
  chosen = 0;
  for (uint n = 0; n < uint(TOP_K); n++) {
    uint best = key[0];
    UNROLL for (int i = 1; i < KEYS; i++) best = max(best, key[i]);
    best = simd_max(best);
    uint at = 0xffffffffu;
    UNROLL for (int i = KEYS - 1; i >= 0; i--) at = key[i] == best ? uint(i) * 32 + lane : at;
    at = simd_min(at);
    UNROLL for (int i = 0; i < KEYS; i++) key[i] = uint(i) * 32 + lane == at ? 0u : key[i];
    if (lane == n) {
      chosen = at;
      mine = best;
    }
  }
  const float logit = key_value(mine);
  const float largest = simd_broadcast(logit, 0);
  const float e = lane < uint(TOP_K) ? exp(logit - largest) : 0.0f;
  weight = e / simd_sum(e);
}
