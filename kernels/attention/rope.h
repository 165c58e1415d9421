// RMSNorm and rotary embedding of a head, and the append to the KV cache.
#pragma once
#include "common/control.h"
#include "common/vector.h"

// Cosine and sine of position * inv_freq. The product is kept in two floats and a whole number of turns is taken off
// before the sine sees it, so that the angle is as good at position 262144 as at position 1. Exact arithmetic is
// assumed: the compiler may not reassociate.
METAL_FUNC float2 turn(uint position, float inv_freq) {
  constexpr float TURN = 6.283185482f, TURN_REST = -1.748455531e-7f;
  const float p = float(position);
  const float angle = p * inv_freq;
  const float rest = fma(p, inv_freq, -angle);
  const float turns = floor(angle * 0.1591549431f + 0.5f);
  const float r = fma(-turns, TURN_REST, fma(-turns, TURN, angle)) + rest;
  return float2(precise::cos(r), precise::sin(r));
}

// head = x / sqrt(mean(x^2) + eps) * weight, then pair (i, i + n_pairs) of head turns by position * inv_freq[i].
// One simdgroup; on return all its lanes may read head.
template <int HEAD_DIM>
METAL_FUNC void norm_and_rotate(threadgroup float* head, const device float* x, const device float* weight,
                                uint position, constant RopeParams& p, uint lane) {
  constexpr int VECTORS = HEAD_DIM / 4;
  constexpr int PER_LANE = (VECTORS + 31) / 32;
  float4 values[PER_LANE];
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    const uint at = i * 32 + lane;
    values[i] = at < uint(VECTORS) ? ((const device float4*)x)[at] : float4(0.0f);
    sum += dot(values[i], values[i]);
  }
  const float scale = 1.0f / precise::sqrt(simd_sum(sum) / float(HEAD_DIM) + p.eps);
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    const uint at = i * 32 + lane;
    if (at < uint(VECTORS)) {
      ((threadgroup float4*)head)[at] = values[i] * scale * ((const device float4*)weight)[at];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < p.n_pairs; i += 32) {
    const float2 t = turn(position, p.inv_freq[i]) * p.rope_scale;
    const float first = head[i], second = head[i + p.n_pairs];
    head[i] = first * t.x - second * t.y;
    head[i + p.n_pairs] = second * t.x + first * t.y;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// q = rotated norm of each query head; the caches receive the rotated norm of each key head, and each value head
//
// q_gate   f32 [T, N_HEADS, 2 * HEAD_DIM]: query, then gate
// k, v     f32 [T, N_KV_HEADS, HEAD_DIM]
// q_norm, k_norm  f32 [HEAD_DIM]
// q        f32 [T, N_HEADS, HEAD_DIM]
// k_cache, v_cache  KV [N_KV_HEADS, CAPACITY, HEAD_DIM], KV = float or bfloat
// control  control block
//
// Simdgroup: one query, key or value head of one row; SIMDGROUPS of them in a threadgroup,
// grid (ceil(T * (N_HEADS + 2 * N_KV_HEADS) / SIMDGROUPS)). Lane: every 32nd group of four elements, every 32nd pair.
// Threadgroup memory: SIMDGROUPS * HEAD_DIM * 4 bytes. Requires HEAD_DIM % 4 == 0.
// Order of the sum: within a lane, then over the simdgroup.
template <typename KV, int N_HEADS, int N_KV_HEADS, int HEAD_DIM, int CAPACITY, int SIMDGROUPS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void rope_append(
    const device uint* control [[buffer(0)]],
    const device float* q_gate [[buffer(1)]],
    const device float* k [[buffer(2)]],
    const device float* v [[buffer(3)]],
    const device float* q_norm [[buffer(4)]],
    const device float* k_norm [[buffer(5)]],
    device float* q [[buffer(6)]],
    device KV* k_cache [[buffer(7)]],
    device KV* v_cache [[buffer(8)]],
    constant RopeParams& p [[buffer(9)]],
    uint group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint HEADS = N_HEADS + 2 * N_KV_HEADS;
  threadgroup float4 heads[SIMDGROUPS * HEAD_DIM / 4];
  LILY_TRIGGER();
  LILY_WAIT();
  const uint unit = group * SIMDGROUPS + sg;
  const uint row = unit / HEADS, which = unit % HEADS;
  if (row >= active_rows<ONE>(control)) return;
  const uint position = control[0] + row;
  const threadgroup float4* head = heads + sg * (HEAD_DIM / 4);
  threadgroup float* scratch = (threadgroup float*)(heads + sg * (HEAD_DIM / 4));
  if (which < uint(N_HEADS)) {
    const size_t at = size_t(row) * N_HEADS + which;
    norm_and_rotate<HEAD_DIM>(scratch, q_gate + at * (2 * HEAD_DIM), q_norm, position, p, lane);
    for (uint c = lane; c < uint(HEAD_DIM / 4); c += 32) store4(q + at * HEAD_DIM + 4 * c, head[c]);
  } else if (which < uint(N_HEADS + N_KV_HEADS)) {
    const uint kv = which - N_HEADS;
    const device float* from = k + (size_t(row) * N_KV_HEADS + kv) * HEAD_DIM;
    device KV* to = k_cache + (size_t(kv) * CAPACITY + position) * HEAD_DIM;
    norm_and_rotate<HEAD_DIM>(scratch, from, k_norm, position, p, lane);
    for (uint c = lane; c < uint(HEAD_DIM / 4); c += 32) store4(to + 4 * c, head[c]);
  } else {
    const uint kv = which - (N_HEADS + N_KV_HEADS);
    const device float* from = v + (size_t(row) * N_KV_HEADS + kv) * HEAD_DIM;
    device KV* to = v_cache + (size_t(kv) * CAPACITY + position) * HEAD_DIM;
    for (uint c = lane; c < uint(HEAD_DIM / 4); c += 32) store4(to + 4 * c, load4(from + 4 * c));
  }
}
