// Softmax attention for many rows, through matrix tiles, with a bf16 cache.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/copy.h"
#include "common/tile.h"
#include "common/vector.h"

METAL_FUNC void store2(device float* p, float2 v) { *(device float2*)p = v; }
METAL_FUNC void store2(device bfloat* p, float2 v) { *(device bfloat2*)p = bfloat2(v); }

// Sizes of a threadgroup: WM x WN simdgroups take 16 * WM query rows and BLOCK keys at a time; each holds 16 rows by
// HEAD_DIM / WN elements of the result. BUFFERS = 1: keys and values take turns in one block of threadgroup memory;
// BUFFERS = 2: one each, and the next block is copied while this one is worked on.
template <int HEAD_DIM, int WM, int WN, int BLOCK, int BUFFERS> struct prefill_layout {
  enum : int {
    THREADS = WM * WN * 32,
    QUERIES = WM * 16,
    COLUMNS = HEAD_DIM / WN,
    LD = HEAD_DIM + 8,                                  // elements from row to row of a staged block
    SUMS_LD = BLOCK + 4,                                // floats from row to row of exchanged scores
    STAGED = BLOCK * LD * 2 / 16,                       // in 16 bytes
    EXCHANGED = WN == 1 ? 0 : WM * WN * 16 * SUMS_LD * 4 / 16,
    FIRST = STAGED > EXCHANGED ? STAGED : EXCHANGED,
    VECTORS = FIRST + (BUFFERS == 2 ? STAGED : 0)
  };
};

// Rows first .. first + BLOCK of a cache, into threadgroup memory; rows from `end` on are stood in for by the last one.
template <int HEAD_DIM, int BLOCK, int THREADS>
METAL_FUNC void stage_rows(threadgroup bfloat* to, const device bfloat* rows, uint first, uint end, uint tid) {
  constexpr uint IN_ROW = HEAD_DIM / 8, LD = HEAD_DIM + 8;
  constexpr uint COUNT = BLOCK * IN_ROW;
  constexpr int SHARE = (int(COUNT) + THREADS - 1) / THREADS;
  UNROLL for (int i = 0; i < SHARE; i++) {
    const uint at = i * uint(THREADS) + tid;
    if (COUNT % THREADS != 0 && at >= COUNT) break;
    const device bfloat* row = rows + size_t(min(first + at / IN_ROW, end - 1)) * HEAD_DIM;
    copy16((threadgroup uint4*)(to + at / IN_ROW * LD) + at % IN_ROW, (const device uint4*)row + at % IN_ROW);
  }
  copy_commit();
}

// out[t, h] = softmax(scale * q[t, h] K^T) V over the keys up to row t's position, times sigmoid(gate[t, h]) if GATED
//
// q        f32 [T, N_HEADS, HEAD_DIM], normed and rotated; rounded to bf16
// k_cache, v_cache  bf16 [N_KV_HEADS, CAPACITY, HEAD_DIM]; the rows' own keys are there
// q_gate   f32 [T, N_HEADS, 2 * HEAD_DIM]: the gate is the second half of a head; not read unless GATED
// out      O [T, N_HEADS, HEAD_DIM], O = float or bfloat
// control  control block
//
// HEADS query heads of one KV head make query rows together: number r is head r % HEADS of token row r / HEADS. With all
// heads of a KV head its keys and values are loaded once for them; with HEADS = 1, once for each.
// Threadgroup: 16 * WM of these rows, the last (which see most keys) first;
// grid (N_HEADS / HEADS, ceil(T * HEADS / (16 * WM))).
// Simdgroup (m, n): rows 16 m .., and elements n * HEAD_DIM / WN .. of the heads: those of its queries stay in registers
// for the whole loop, as do those of the result. It multiplies them with the same elements of BLOCK keys; where WN > 1
// the simdgroups of a row add their parts of the scores up through threadgroup memory and all go on with the sum.
// The result is multiplied by a new factor only when a row's largest score grew by more than a factor of 2^8, which
// float sums and bf16 weights bear: a rule for each row by itself.
//
// WN trades registers for the exchange: a lane holds HEAD_DIM / WN * 3 / 4 words of queries and results, 192 at WN = 1
// and HEAD_DIM 256 (more than Apple's GPUs have), 48 at WN = 4.
//
// Threadgroup memory: one or two blocks, or the scores: prefill_layout::VECTORS * 16 bytes.
// Requires HEAD_DIM % (16 * WN) == 0, BLOCK % 16 == 0, scale > 0.
// Order of the sums: blocks of keys from position 0 on, whatever the other rows. Weights are rounded to bf16.
// Source of the idea: FlashAttention-2; the delayed factor as in FlashAttention-4.
template <typename O, int N_HEADS, int N_KV_HEADS, int HEAD_DIM, int CAPACITY, int HEADS, int WM, int WN, int BLOCK,
          int BUFFERS, bool GATED>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void attention_prefill(
    const device uint* control [[buffer(0)]],
    const device float* q [[buffer(1)]],
    const device bfloat* k_cache [[buffer(2)]],
    const device bfloat* v_cache [[buffer(3)]],
    const device float* q_gate [[buffer(4)]],
    device O* out [[buffer(5)]],
    constant AttentionParams& p [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef prefill_layout<HEAD_DIM, WM, WN, BLOCK, BUFFERS> layout;
  constexpr int QUERIES = layout::QUERIES, COLUMNS = layout::COLUMNS;
  constexpr int TILES = COLUMNS / 16, KEY_TILES = BLOCK / 16;
  constexpr uint LD = layout::LD, SUMS_LD = layout::SUMS_LD;
  constexpr float LOW = -1.0e30f;
  threadgroup float4 memory[layout::VECTORS];
  threadgroup bfloat* staged = (threadgroup bfloat*)memory;
  threadgroup bfloat* staged_values = (threadgroup bfloat*)(memory + (BUFFERS == 2 ? layout::FIRST : 0));
  LILY_TRIGGER();
  LILY_WAIT();
  const uint position = control[0];
  const uint n_queries = control[1] * HEADS;
  const uint n_tiles = (n_queries + QUERIES - 1) / QUERIES;
  if (group.y >= n_tiles) return;
  const uint first = (n_tiles - 1 - group.y) * QUERIES;
  const uint first_head = group.x * HEADS, kv_head = first_head / (N_HEADS / N_KV_HEADS);
  const device bfloat* keys = k_cache + size_t(kv_head) * CAPACITY * HEAD_DIM;
  const device bfloat* values = v_cache + size_t(kv_head) * CAPACITY * HEAD_DIM;
  const uint m0 = sg / WN * 16, column0 = sg % WN * COLUMNS;

  // Queries: through the memory of a block, BLOCK of them at a time.
  tile_a<bfloat> queries[TILES];
  for (uint r0 = 0; r0 < uint(QUERIES); r0 += BLOCK) {
    for (uint i = tid; i < uint(BLOCK * HEAD_DIM / 4); i += layout::THREADS) {
      const uint r = i / (HEAD_DIM / 4), c = i % (HEAD_DIM / 4) * 4;
      const uint at = min(first + r0 + r, n_queries - 1);
      const size_t head = size_t(at / HEADS) * N_HEADS + first_head + at % HEADS;
      *(threadgroup uint2*)(staged + r * LD + c) = as_type<uint2>(bfloat4(load4(q + head * HEAD_DIM + c)));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (m0 >= r0 && m0 < r0 + BLOCK) {
      UNROLL for (int d = 0; d < TILES; d++) {
        tile_load_a(queries[d], (const threadgroup bfloat*)staged + (m0 - r0) * LD + column0 + d * 16, LD);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  uint at[2], sees[2];                                  // this lane's rows: number, last key
  float largest[2], sum[2];                             // of log2(e) * scale * score; of this lane's weights
  UNROLL for (int i = 0; i < 2; i++) {
    at[i] = first + m0 + tile_row(lane) + 8 * i;
    sees[i] = position + min(at[i], n_queries - 1) / HEADS;
    largest[i] = LOW;
    sum[i] = 0.0f;
  }
  const uint all_see = position + first / HEADS;        // the last key that every row of the threadgroup sees
  const uint n_keys = position + (min(first + QUERIES, n_queries) - 1) / HEADS + 1;
  const float scale = p.scale * 1.44269504f;
  tile_c result[TILES];
  UNROLL for (int d = 0; d < TILES; d++) tile_zero(result[d]);

  stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged, keys, 0, n_keys, tid);
  if (BUFFERS == 2) stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged_values, values, 0, n_keys, tid);
  for (uint k0 = 0; k0 < n_keys; k0 += BLOCK) {
    copy_wait<BUFFERS - 1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile_c scores[KEY_TILES];
    UNROLL for (int n = 0; n < KEY_TILES; n++) tile_zero(scores[n]);
    UNROLL for (int d = 0; d < TILES; d++) {
      UNROLL for (int n = 0; n < KEY_TILES; n++) {
        tile_b<bfloat> b;
        tile_load_bt(b, (const threadgroup bfloat*)staged + n * 16 * LD + column0 + d * 16, LD);
        tile_mma(scores[n], queries[d], b);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (WN > 1) {
      threadgroup float* parts = (threadgroup float*)memory;
      UNROLL for (int n = 0; n < KEY_TILES; n++) tile_store(scores[n], parts + sg * (16 * SUMS_LD) + n * 16, SUMS_LD);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const uint mine = tile_row(lane) * SUMS_LD + tile_column(lane);
      UNROLL for (int n = 0; n < KEY_TILES; n++) {
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            float2 total = float2(0.0f);
            UNROLL for (int w = 0; w < WN; w++) {
              const uint from = (sg / WN * WN + w) * (16 * SUMS_LD) + mine + i * 8 * SUMS_LD + n * 16 + j * 8;
              total += *(const threadgroup float2*)(parts + from);
            }
            tile_set_pair(scores[n], i, j, total);
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    // The block is free for the values, or for the next keys (after the last block nobody reads them).
    if (BUFFERS == 1) stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged_values, values, k0, n_keys, tid);
    else stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged, keys, k0 + BLOCK, n_keys, tid);

    // Scores to weights.
    float factor[2];
    UNROLL for (int i = 0; i < 2; i++) {
      float most = LOW;
      UNROLL for (int n = 0; n < KEY_TILES; n++) {
        UNROLL for (int j = 0; j < 2; j++) {
          float2 s = tile_pair(scores[n], i, j);
          if (k0 + BLOCK - 1 > all_see) {
            const uint key = k0 + n * 16 + j * 8 + tile_column(lane);
            s = float2(key <= sees[i] ? s.x : LOW, key + 1 <= sees[i] ? s.y : LOW);
            tile_set_pair(scores[n], i, j, s);
          }
          most = max(most, max(s.x, s.y));
        }
      }
      most = tile_max_of_row(most) * scale;
      factor[i] = 1.0f;
      if (most > largest[i] + 8.0f) {
        factor[i] = exp2(largest[i] - most);
        largest[i] = most;
      }
    }
    if (simd_any(factor[0] != 1.0f || factor[1] != 1.0f)) {
      UNROLL for (int i = 0; i < 2; i++) {
        sum[i] *= factor[i];
        UNROLL for (int d = 0; d < TILES; d++) {
          UNROLL for (int j = 0; j < 2; j++) tile_set_pair(result[d], i, j, tile_pair(result[d], i, j) * factor[i]);
        }
      }
    }
    tile_a<bfloat> weights[KEY_TILES];
    UNROLL for (int n = 0; n < KEY_TILES; n++) {
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
          const float2 s = tile_pair(scores[n], i, j);
          const float2 w = float2(exp2(fma(s.x, scale, -largest[i])), exp2(fma(s.y, scale, -largest[i])));
          sum[i] += w.x + w.y;
          tile_set_pair(scores[n], i, j, w);
        }
      }
      tile_from_sums(weights[n], scores[n]);
    }

    copy_wait<BUFFERS - 1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int n = 0; n < KEY_TILES; n++) {
      UNROLL for (int d = 0; d < TILES; d++) {
        tile_b<bfloat> b;
        tile_load_b(b, (const threadgroup bfloat*)staged_values + n * 16 * LD + column0 + d * 16, LD);
        tile_mma(result[d], weights[n], b);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (BUFFERS == 1) stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged, keys, k0 + BLOCK, n_keys, tid);
    else stage_rows<HEAD_DIM, BLOCK, layout::THREADS>(staged_values, values, k0 + BLOCK, n_keys, tid);
  }
  copy_wait<0>();

  UNROLL for (int i = 0; i < 2; i++) {
    const float inverse = 1.0f / tile_sum_of_row(sum[i]);
    const size_t head = size_t(at[i] / HEADS) * N_HEADS + first_head + at[i] % HEADS;
    if (at[i] < n_queries) {
      // Gates of several tiles are asked for at once: a load may not pass a store.
      constexpr int AT_ONCE = TILES < 4 ? TILES : 4;
      UNROLL for (int base = 0; base < TILES; base += AT_ONCE) {
        float2 gate[AT_ONCE][2];
        UNROLL for (int d = 0; d < AT_ONCE; d++) {
          UNROLL for (int j = 0; j < 2; j++) {
            const uint c = column0 + (base + d) * 16 + j * 8 + tile_column(lane);
            if (GATED && base + d < TILES) gate[d][j] = *(const device float2*)(q_gate + (head * 2 + 1) * HEAD_DIM + c);
          }
        }
        UNROLL for (int d = 0; d < AT_ONCE; d++) {
          UNROLL for (int j = 0; j < 2; j++) {
            if (base + d >= TILES) continue;
            const uint c = column0 + (base + d) * 16 + j * 8 + tile_column(lane);
            float2 v = tile_pair(result[base + d], i, j) * inverse;
            if (GATED) v = v * float2(sigmoid(gate[d][j].x), sigmoid(gate[d][j].y));
            store2(out + head * HEAD_DIM + c, v);
          }
        }
      }
    }
  }
}
