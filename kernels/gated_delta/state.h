// The recurrent state of a value head in the registers of simdgroups.
//
// A simdgroup holds 8 value rows of KEY_DIM floats. LANES lanes share one row (4 lanes: one row each; 8: two; 16:
// four), so a sum over a row costs few shuffles and reads few keys:
//   group = lane % (32 / LANES)  which rows: r * (32 / LANES) + group for r < ROWS
//   part  = lane / (32 / LANES)  which columns: float4 number i * LANES + part
// Neighbouring lanes have different rows and the same columns, so that one read of a key serves all of them.
#pragma once

template <int KEY_DIM, int LANES> struct state_layout {
  enum : int {
    SIMDGROUP_ROWS = 8,
    GROUPS = 32 / LANES,                                // rows held side by side
    ROWS = SIMDGROUP_ROWS / GROUPS,                     // rows of one lane
    VECTORS = KEY_DIM / 4 / LANES                       // float4 of one row in one lane
  };
};

// Sum over the LANES lanes that share a row; every one of them receives it.
template <int LANES> METAL_FUNC float row_sum(float v) {
  UNROLL for (int m = 32 / LANES; m < 32; m *= 2) v += simd_shuffle_xor(v, ushort(m));
  return v;
}

// Sums of N values over the lanes that differ in bits FROM and above, all at once: a shuffle takes long, but the next
// need not wait for it. Every lane receives them.
template <int FROM, int N> METAL_FUNC void sums_over(thread float* v) {
  UNROLL for (int m = FROM; m < 32; m *= 2) {
    UNROLL for (int n = 0; n < N; n++) v[n] += simd_shuffle_xor(v[n], ushort(m));
  }
}

// sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w, in this order.
METAL_FUNC float dot_onto(float sum, float4 a, float4 b) {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

METAL_FUNC float sum_of(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// The two gates of a token: decay e^g with g = -exp(a_log) * softplus(a + dt_bias), and strength sigmoid(b).
METAL_FUNC float decay_gate(float a, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0f ? x : log(1.0f + exp(x));
  return exp(-exp(a_log) * softplus);
}

constant float L2_EPS = 1e-6f;                          // on the sum of squares of a query or key
