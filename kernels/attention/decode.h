// Softmax attention for few rows: the unfused step, and the fused one over splits of the keys.
#pragma once
#include "attention/online.h"
#include "attention/rope.h"
#include "common/activation.h"
#include "common/control.h"
#include "common/vector.h"

// How the simdgroups of a threadgroup share its work: HEADS query heads of one KV head in sets of H, and the keys
// among the simdgroups of a set.
template <int HEAD_DIM, int HEADS, int H, int SIMDGROUPS> struct decode_layout {
  enum : int {
    SETS = HEADS / H,
    KEY_SIMDGROUPS = SIMDGROUPS / SETS,
    AT_ONCE = H % 2 == 0 && HEADS * HEAD_DIM <= 2048 ? 2 : 1  // heads of a set that are merged at a time
  };
};

// Merges the simdgroups that share a set of heads; on return every simdgroup's largest is that of the set and its sums
// are scaled to it, and stats[sg * 8 + h] holds the largest score of head h and this simdgroup's sum.
template <typename KV, int HEAD_DIM, int H, int SETS, int KEY_SIMDGROUPS>
METAL_FUNC void scale_to_largest(thread online_softmax<KV, HEAD_DIM, H>& o, threadgroup float2* stats, uint sg,
                                 uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  constexpr int COPIES = layout::COPIES;
  const float sum = sum_of_keys<KV, HEAD_DIM, H>(o.sum);
  const uint head = head_of<KV, HEAD_DIM, H>(lane);
  const bool tells = lane < uint(COPIES * layout::PADDED) && lane % COPIES == 0;
  if (tells) stats[sg * 8 + head] = float2(o.largest, sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float largest = LOWEST;
  UNROLL for (int s = 0; s < KEY_SIMDGROUPS; s++) {
    largest = max(largest, stats[(s * SETS + sg % SETS) * 8 + head].x);
  }
  const float factor = fast::exp(o.largest - largest);
  UNROLL for (int h = 0; h < H; h++) {
    const float of_head = simd_shuffle(factor, ushort(h * COPIES));
    UNROLL for (int i = 0; i < layout::PIECES; i++) {
      float4 v = o.out[h][i] * of_head;
      UNROLL for (int m = layout::WIDTH; m < 32; m *= 2) {
        v += float4(simd_shuffle_xor(v.x, ushort(m)), simd_shuffle_xor(v.y, ushort(m)),
                    simd_shuffle_xor(v.z, ushort(m)), simd_shuffle_xor(v.w, ushort(m)));
      }
      o.out[h][i] = v;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);      // all have read the stats
  if (tells) stats[sg * 8 + head] = float2(largest, sum * factor);
}

// Lays heads base .. base + AT_ONCE of every simdgroup into pieces[sg][AT_ONCE][HEAD_DIM / 4].
template <typename KV, int HEAD_DIM, int H, int AT_ONCE>
METAL_FUNC void lay_out(thread online_softmax<KV, HEAD_DIM, H>& o, threadgroup float4* pieces, int base, uint sg,
                        uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  if (lane >= uint(layout::WIDTH)) return;
  UNROLL for (int h = 0; h < H; h++) {
    if (h < base || h >= base + AT_ONCE) continue;
    threadgroup float4* to = pieces + (sg * AT_ONCE + (h - base)) * (HEAD_DIM / 4);
    UNROLL for (int i = 0; i < layout::PIECES; i++) to[piece_at<KV, HEAD_DIM, H>(i, lane)] = o.out[h][i];
  }
}

// Sum over the simdgroups of a set, in order.
template <int SETS, int KEY_SIMDGROUPS> METAL_FUNC float sum_of_stats(const threadgroup float2* stats, uint set,
                                                                     uint head) {
  float sum = 0.0f;
  UNROLL for (int s = 0; s < KEY_SIMDGROUPS; s++) sum += stats[(s * SETS + set) * 8 + head].y;
  return sum;
}

// Sum over the simdgroups of a set, in order, of piece i of the [SETS][AT_ONCE][HEAD_DIM / 4] that lay_out has laid out
// once for each of them.
template <int PIECES, int KEY_SIMDGROUPS> METAL_FUNC float4 sum_of_pieces(const threadgroup float4* pieces, uint i) {
  float4 sum = float4(0.0f);
  UNROLL for (int s = 0; s < KEY_SIMDGROUPS; s++) sum += pieces[s * PIECES + i];
  return sum;
}

// out[t, h] = softmax(scale * q[t, h] K^T) V over the keys up to row t's position, times sigmoid(gate[t, h]) if GATED
//
// q        f32 [T, N_HEADS, HEAD_DIM], normed and rotated
// k_cache, v_cache  KV [N_KV_HEADS, CAPACITY, HEAD_DIM], KV = float or bfloat; the row's own key is there
// q_gate   f32 [T, N_HEADS, 2 * HEAD_DIM]: the gate is the second half of a head; not read unless GATED
// out      T [T, N_HEADS, HEAD_DIM], T = float or bfloat
// control  control block
//
// Threadgroup: HEADS query heads of one KV head in one row, grid (N_HEADS / HEADS, T). Simdgroup: H of these heads;
// simdgroups of the same heads take a few keys each in turn (online.h). HEADS = all heads of a KV head: its keys and
// values are loaded once for every H of them. HEADS = 1: once for each.
// Threadgroup memory: (HEADS + SIMDGROUPS * AT_ONCE) * HEAD_DIM * 4 + SIMDGROUPS * 320 bytes at most.
// Requires HEAD_DIM 64, 128 or 256; HEADS % H == 0; SIMDGROUPS % (HEADS / H) == 0; H <= 8.
// Order of the sums: keys in turn within a simdgroup, then simdgroups; the same whatever the other rows.
// Source of the idea: online softmax over key blocks (flash decoding); one load for the heads of a KV head as in the
// GQA form of MLX's two-pass kernel.
template <typename KV, typename T, int N_HEADS, int N_KV_HEADS, int HEAD_DIM, int CAPACITY, int HEADS, int H,
          int SIMDGROUPS, bool GATED, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void attention_rows(
    const device uint* control [[buffer(0)]],
    const device float* q [[buffer(1)]],
    const device KV* k_cache [[buffer(2)]],
    const device KV* v_cache [[buffer(3)]],
    const device float* q_gate [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant AttentionParams& p [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  typedef decode_layout<HEAD_DIM, HEADS, H, SIMDGROUPS> shares;
  constexpr int SETS = shares::SETS, KEY_SIMDGROUPS = shares::KEY_SIMDGROUPS, AT_ONCE = shares::AT_ONCE;
  constexpr int VECTORS = HEAD_DIM / 4;
  threadgroup float4 queries[HEADS * VECTORS];
  threadgroup float4 pieces[SIMDGROUPS * AT_ONCE * VECTORS];
  threadgroup float4 weights[SIMDGROUPS * layout::KEYS * layout::WEIGHTS / 4];
  threadgroup float2 stats[SIMDGROUPS * 8];
  LILY_TRIGGER();
  LILY_WAIT();
  const uint row = group.y;
  if (row >= active_rows<ONE>(control)) return;
  const uint end = control[0] + row + 1;
  const uint first_head = group.x * HEADS;
  const size_t cache = size_t(first_head / (N_HEADS / N_KV_HEADS)) * CAPACITY * HEAD_DIM;
  const size_t out_row = (size_t(row) * N_HEADS + first_head) * HEAD_DIM;
  for (uint i = tid; i < uint(HEADS * VECTORS); i += SIMDGROUPS * 32) {
    queries[i] = load4(q + out_row + 4 * i) * p.scale;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  online_softmax<KV, HEAD_DIM, H> o;
  const uint first_key = sg / SETS * layout::KEYS;
  load_keys(o, k_cache + cache, first_key, end, lane);
  online_start(o, queries + sg % SETS * (H * VECTORS), lane);
  online_keys(o, weights + sg * (layout::KEYS * layout::WEIGHTS / 4), k_cache + cache, v_cache + cache, first_key, end,
              uint(KEY_SIMDGROUPS * layout::KEYS), lane);
  scale_to_largest<KV, HEAD_DIM, H, SETS, KEY_SIMDGROUPS>(o, stats, sg, lane);
  for (int base = 0; base < H; base += AT_ONCE) {
    lay_out<KV, HEAD_DIM, H, AT_ONCE>(o, pieces, base, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < uint(SETS * AT_ONCE * VECTORS); i += SIMDGROUPS * 32) {
      const uint of_set = i / (AT_ONCE * VECTORS), h = uint(base) + i / VECTORS % AT_ONCE, c = i % VECTORS;
      float4 v = sum_of_pieces<SETS * AT_ONCE * VECTORS, KEY_SIMDGROUPS>(pieces, i);
      v = v * (1.0f / sum_of_stats<SETS, KEY_SIMDGROUPS>(stats, of_set, h));
      const size_t at = out_row + (of_set * H + h) * HEAD_DIM + 4 * c;
      if (GATED) {
        const size_t head = size_t(row) * N_HEADS + first_head + of_set * H + h;
        v = v * sigmoid(load4(q_gate + (head * 2 + 1) * HEAD_DIM + 4 * c));
      }
      store4(out + at, v);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Norm and rotation of one token's queries and key, the append of its key and value to the caches, and the sums of
// softmax attention over split i of the positions: [i * run, min((i + 1) * run, position + 1)) with
// run = ceil((position + 1) / N_SPLITS)
//
// q_gate   f32 [N_HEADS, 2 * HEAD_DIM]: query, then gate
// k, v     f32 [N_KV_HEADS, HEAD_DIM]
// q_norm, k_norm  f32 [HEAD_DIM]
// k_cache, v_cache  KV [N_KV_HEADS, CAPACITY, HEAD_DIM], KV = float or bfloat; the row of this position is written
// partial  f32 [N_SPLITS, N_HEADS, HEAD_DIM]: sums of exp(score - largest) v
// stats    f32 [N_SPLITS, N_HEADS, 2]: largest score (negative infinity for a split without positions), sum of
//          exp(score - largest)
// control  control block
//
// Threadgroup: one split for HEADS query heads of one KV head, grid (N_HEADS / HEADS, N_SPLITS). Simdgroups as in
// attention_rows. The threadgroup whose split holds the position takes that key and value from its own threadgroup
// memory, rounded as the cache rounds them; the first one of the KV head also appends them. No one reads the row that
// is written. The position and the rows before it are older than this token: the first keys are asked for before
// LILY_WAIT.
// Threadgroup memory: as attention_rows, and 2 * HEAD_DIM * 4 bytes. Requires: as attention_rows.
// Order of the sums: this position first, then as in attention_rows.
template <typename KV, int N_HEADS, int N_KV_HEADS, int HEAD_DIM, int CAPACITY, int N_SPLITS, int HEADS, int H,
          int SIMDGROUPS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void attention_split(
    const device uint* control [[buffer(0)]],
    const device float* q_gate [[buffer(1)]],
    const device float* k [[buffer(2)]],
    const device float* v [[buffer(3)]],
    const device float* q_norm [[buffer(4)]],
    const device float* k_norm [[buffer(5)]],
    device KV* k_cache [[buffer(6)]],
    device KV* v_cache [[buffer(7)]],
    device float* partial [[buffer(8)]],
    device float2* stats [[buffer(9)]],
    constant RopeParams& p [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  typedef decode_layout<HEAD_DIM, HEADS, H, SIMDGROUPS> shares;
  constexpr int SETS = shares::SETS, KEY_SIMDGROUPS = shares::KEY_SIMDGROUPS, AT_ONCE = shares::AT_ONCE;
  constexpr int VECTORS = HEAD_DIM / 4, PER_LANE = (VECTORS + 31) / 32;
  threadgroup float4 queries[HEADS * VECTORS];
  threadgroup float4 pieces[SIMDGROUPS * AT_ONCE * VECTORS];
  threadgroup float4 weights[SIMDGROUPS * layout::KEYS * layout::WEIGHTS / 4];
  threadgroup float2 group_stats[SIMDGROUPS * 8];
  threadgroup float4 own_key[VECTORS];
  threadgroup float4 own_value[VECTORS];
  LILY_TRIGGER();
  const uint position = control[0];
  const uint run = (position + N_SPLITS) / N_SPLITS;
  const uint begin = group.y * run, end = min(begin + run, position + 1);
  const uint first_head = group.x * HEADS;
  const uint kv_head = first_head / (N_HEADS / N_KV_HEADS);
  const size_t out_row = size_t(group.y) * N_HEADS + first_head;
  device KV* key_cache = k_cache + size_t(kv_head) * CAPACITY * HEAD_DIM;
  device KV* value_cache = v_cache + size_t(kv_head) * CAPACITY * HEAD_DIM;
  const uint first_key = begin + sg / SETS * layout::KEYS, last_key = min(end, position);
  online_softmax<KV, HEAD_DIM, H> o;
  if (first_key < last_key) load_keys(o, (const device KV*)key_cache, first_key, last_key, lane);

  LILY_WAIT();
  if (begin > position) {                               // nothing to attend to
    for (uint i = tid; i < uint(HEADS * VECTORS); i += SIMDGROUPS * 32) {
      store4(partial + out_row * HEAD_DIM + 4 * i, float4(0.0f));
    }
    if (tid < uint(HEADS)) stats[out_row + tid] = float2(as_type<float>(0xff800000u), 0.0f);
    return;
  }

  const bool holds = end == position + 1;
  threadgroup float4* scratch = pieces + sg * VECTORS;
  for (uint h = sg; h < uint(HEADS); h += SIMDGROUPS) {
    norm_and_rotate<HEAD_DIM>((threadgroup float*)scratch, q_gate + (first_head + h) * (2 * HEAD_DIM), q_norm, position,
                              p, lane);
    UNROLL for (int i = 0; i < PER_LANE; i++) {
      const uint c = i * 32 + lane;
      if (c < uint(VECTORS)) queries[h * VECTORS + c] = scratch[c] * p.scale;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (holds) {
    const bool appends = first_head % (N_HEADS / N_KV_HEADS) == 0;
    if (sg == uint(SIMDGROUPS - 1)) {
      norm_and_rotate<HEAD_DIM>((threadgroup float*)scratch, k + kv_head * HEAD_DIM, k_norm, position, p, lane);
      UNROLL for (int i = 0; i < PER_LANE; i++) {
        const uint c = i * 32 + lane;
        if (c >= uint(VECTORS)) continue;
        const float4 x = scratch[c];
        own_key[c] = float4(float(KV(x.x)), float(KV(x.y)), float(KV(x.z)), float(KV(x.w)));
        if (appends) store4(key_cache + size_t(position) * HEAD_DIM + 4 * c, x);
      }
    } else if (sg == 0) {
      UNROLL for (int i = 0; i < PER_LANE; i++) {
        const uint c = i * 32 + lane;
        if (c >= uint(VECTORS)) continue;
        const float4 x = load4(v + kv_head * HEAD_DIM + 4 * c);
        own_value[c] = float4(float(KV(x.x)), float(KV(x.y)), float(KV(x.z)), float(KV(x.w)));
        if (appends) store4(value_cache + size_t(position) * HEAD_DIM + 4 * c, x);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  online_start(o, queries + sg % SETS * (H * VECTORS), lane);
  if (holds && sg / SETS == 0) {                        // this position's key, with weight exp(0)
    const bool counts = lane < uint(layout::WIDTH);
    UNROLL for (int h = 0; h < H; h++) {
      float score = 0.0f;
      UNROLL for (int i = 0; i < layout::PIECES; i++) {
        const uint c = piece_at<KV, HEAD_DIM, H>(i, lane);
        score += counts ? dot(o.query[h][i], own_key[c]) : 0.0f;
        o.out[h][i] = counts ? own_value[c] : float4(0.0f);
      }
      score = simd_sum(score);
      if (head_of<KV, HEAD_DIM, H>(lane) == uint(h)) o.largest = score;
    }
    o.sum = lane < uint(layout::COPIES * layout::PADDED) ? 1.0f : 0.0f;
  }
  online_keys(o, weights + sg * (layout::KEYS * layout::WEIGHTS / 4), (const device KV*)key_cache,
              (const device KV*)value_cache, first_key, last_key, uint(KEY_SIMDGROUPS * layout::KEYS), lane);
  scale_to_largest<KV, HEAD_DIM, H, SETS, KEY_SIMDGROUPS>(o, group_stats, sg, lane);
  for (int base = 0; base < H; base += AT_ONCE) {
    lay_out<KV, HEAD_DIM, H, AT_ONCE>(o, pieces, base, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < uint(SETS * AT_ONCE * VECTORS); i += SIMDGROUPS * 32) {
      const uint of_set = i / (AT_ONCE * VECTORS), h = uint(base) + i / VECTORS % AT_ONCE, c = i % VECTORS;
      const size_t head = out_row + of_set * H + h;
      store4(partial + head * HEAD_DIM + 4 * c, sum_of_pieces<SETS * AT_ONCE * VECTORS, KEY_SIMDGROUPS>(pieces, i));
      if (c == 0) {
        stats[head] = float2(group_stats[of_set * 8 + h].x, sum_of_stats<SETS, KEY_SIMDGROUPS>(group_stats, of_set, h));
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
