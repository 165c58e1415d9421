// The gated delta rule over many rows, a chunk of 16 tokens at a time, by products of matrix tiles.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/split_tile.h"
#include "gated_delta/state.h"

// Sizes of a threadgroup.
template <int KEY_DIM> struct chunk_layout {
  enum : int {
    TOKENS = 16,                                        // of a chunk
    VALUES = 32,                                        // value rows of the threadgroup
    SIMDGROUPS = 8,
    KEY_TILES = KEY_DIM / 16,
    LD = 2 * KEY_DIM + 8,                               // elements from token to token: high pieces, low pieces
    TILE = TOKENS * TOKENS
  };
};

// c += the products of the tokens of `left` (rows) with those of `right` (columns), over N key tiles.
template <int KEY_DIM, int N>
METAL_FUNC void add_token_products(thread split_c& c, const threadgroup bfloat* left, const threadgroup bfloat* right) {
  constexpr uint LD = chunk_layout<KEY_DIM>::LD;
  UNROLL for (int d = 0; d < N; d++) {
    split_a a;
    split_b b;
    split_load_a(a, left + d * 16, KEY_DIM, LD);
    split_load_bt(b, right + d * 16, KEY_DIM, LD);
    split_mma(c, a, b);
  }
}

// c += the state times the tokens (columns), over the key tiles FROM .. TO.
template <int KEY_DIM, int FROM, int TO>
METAL_FUNC void add_state_products(thread split_c& c, thread tile_c* s, const threadgroup bfloat* tokens) {
  constexpr uint LD = chunk_layout<KEY_DIM>::LD;
  UNROLL for (int d = FROM; d < TO; d++) {
    split_a a;
    split_b b;
    split_from_sums(a, s[d]);
    split_load_bt(b, tokens + d * 16, KEY_DIM, LD);
    split_mma(c, a, b);
  }
}

// Tiles as registers for vectors: two in each.
METAL_FUNC float4 vector_in(thread tile_c* tiles, int n) {
  return float4(tile_pair(tiles[n / 2], 0, n % 2), tile_pair(tiles[n / 2], 1, n % 2));
}
METAL_FUNC void set_vector_in(thread tile_c* tiles, int n, float4 v) {
  tile_set_pair(tiles[n / 2], 0, n % 2, v.xy);
  tile_set_pair(tiles[n / 2], 1, n % 2, v.zw);
}

// Eight tokens from number `first` on, into KEY_DIM / 32 tiles; from `rows` on the last one stands in. Eight lanes share
// a token, so that its norm costs few shuffles: each has every eighth vector of two tokens.
template <int WIDTH, int KEY_DIM>
METAL_FUNC void load_tokens(thread tile_c* staged, const device float* column, int first, int rows, uint lane) {
  UNROLL for (int r = 0; r < 2; r++) {
    const device float* token = column + size_t(min(first + r * 4 + int(lane / 8), rows - 1)) * WIDTH;
    UNROLL for (int i = 0; i < KEY_DIM / 32; i++) {
      set_vector_in(staged, r * (KEY_DIM / 32) + i, ((const device float4*)token)[i * 8 + lane % 8]);
    }
  }
}

// Norms them as scan.h does, times a factor of which `scale` is the inverse square, and lays them down in two pieces.
template <int KEY_DIM>
METAL_FUNC void lay_normed(threadgroup bfloat* to, thread tile_c* staged, float scale, uint lane) {
  constexpr uint LD = chunk_layout<KEY_DIM>::LD;
  float squares[2];
  UNROLL for (int r = 0; r < 2; r++) {
    float4 sum = float4(0.0f);
    UNROLL for (int i = 0; i < KEY_DIM / 32; i++) {
      const float4 x = vector_in(staged, r * (KEY_DIM / 32) + i);
      sum = fma(x, x, sum);
    }
    squares[r] = sum_of(sum);
  }
  UNROLL for (int m = 1; m < 8; m *= 2) {
    UNROLL for (int r = 0; r < 2; r++) squares[r] += simd_shuffle_xor(squares[r], ushort(m));
  }
  UNROLL for (int r = 0; r < 2; r++) {
    const float factor = rsqrt((squares[r] + L2_EPS) * scale);
    threadgroup bfloat* row = to + (r * 4 + lane / 8) * LD + lane % 8 * 4;
    UNROLL for (int i = 0; i < KEY_DIM / 32; i++) {
      const float4 normed = vector_in(staged, r * (KEY_DIM / 32) + i) * factor;
      *(threadgroup uint2*)(row + i * 32) = tile_words(normed);
      *(threadgroup uint2*)(row + KEY_DIM + i * 32) = tile_words(rest_of(normed));
    }
  }
}

// Results of two value rows, 8 apart, at tokens `first`, the next, and both 8 further: those that are active.
template <int STRIDE> METAL_FUNC void write_results(device float* to, thread split_c& results, int first, int rows) {
  UNROLL for (int j = 0; j < 2; j++) {
    const int t = first + 8 * j;
    UNROLL for (int i = 0; i < 2; i++) {
      const float2 y = split_pair(results, i, j);
      if (t < rows) to[size_t(t) * STRIDE + 8 * i] = y.x;
      if (t + 1 < rows) to[size_t(t + 1) * STRIDE + 8 * i] = y.y;
    }
  }
}

// The rule, operands and meaning of scan.h. Of a chunk, with S the state before it, G(i, j) the product of the decays
// of tokens i + 1 .. j and G(j) that of all up to j:
//   L(j, i)   = sigmoid(b(j)) G(i, j) k(i)k(j)  for i < j;   T = (1 + L)^-1
//   u(j)      = sum_{i <= j} T(j, i) sigmoid(b(i)) (v(i) - G(i) S k(i))
//   out(j)    = G(j) S q(j) + sum_{i <= j} G(i, j) k(i)q(j) u(i)
//   S        <- G(last) S + sum_i G(i, last) u(i) k(i)^T
// where products of matrices go through bfloat in two pieces (common/split_tile.h) and everything else is f32, the
// inverse by substitution. G(i, j) is a running product, never a quotient.
//
// qkv      f32 [T, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM], [q | k | v], each head-major
// a, b     f32 [T, VALUE_HEADS]
// a_log, dt_bias  f32 [VALUE_HEADS]
// state    f32 [VALUE_HEADS, VALUE_DIM, KEY_DIM], read and written
// out      f32 [T, VALUE_HEADS * VALUE_DIM]
// control  control block
//
// Threadgroup: 32 value rows of one head, grid (VALUE_HEADS * VALUE_DIM / 32); rows of the state never meet. What
// depends on keys and queries alone is worked out anew by each of the threadgroups of a head.
// Simdgroups 0 to 3 hold the state, 16 value rows each as sums of tiles, the transposed way round, so that sums become
// left operands without leaving the registers: 0 and 1 multiply it with the keys and work out u, 2 and 3 hold the same
// rows again, multiply them with the queries and write the results. Both update it, alike. The others prepare: of every
// chunk there are three parts with a barrier after each, of which the chain S k, u, S has the most to do:
//   0, 1        S k                 u                        S
//   2, 3        most of S q         the rest of it           out, S
//   4           half of next keys   half of next k k         half of next queries
//   5           half of next keys   half of next k k         L
//   6           most of k q         the rest of it           half of next queries
//   7           T                   products of next decays  decays of the next but one
// Results are written a chunk late, where those simdgroups have time.
//
// Threadgroup memory: 96 * KEY_DIM * 2 + 7424 bytes, 32000 for KEY_DIM = 128.
// Requires KEY_DIM % 32 == 0, KEY_DIM <= 128, VALUE_DIM % 32 == 0.
// Order of the sums: over a row of the state, tile by tile, those of the pieces apart; the same for every row. Chunks
// count from the first row of the step, so cutting a prompt into others changes results by rounding only. Equal to
// scan.h's within 1e-5 of the largest number of a result.
// Source of the idea: the chunked form of the delta rule (Yang et al., 2024), with the pieces of bfloat of mixed
// precision products.
template <int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void gated_delta_chunks(
    const device uint* control [[buffer(0)]],
    const device float* qkv [[buffer(1)]],
    const device float* a [[buffer(2)]],
    const device float* b [[buffer(3)]],
    const device float* a_log [[buffer(4)]],
    const device float* dt_bias [[buffer(5)]],
    device float* state [[buffer(6)]],
    device float* out [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef chunk_layout<KEY_DIM> layout;
  constexpr int TOKENS = layout::TOKENS, VALUES = layout::VALUES, KEY_TILES = layout::KEY_TILES;
  constexpr int TILE = layout::TILE, SLICES = VALUE_DIM / VALUES;
  constexpr int FIRST_TILES = (KEY_TILES * 5 + 7) / 8;  // of the products of queries, those of the first part
  constexpr uint LD = layout::LD;
  constexpr int WIDTH = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  threadgroup uint4 key_memory[2 * TOKENS * layout::LD / 8];
  threadgroup uint4 query_memory[TOKENS * layout::LD / 8];
  threadgroup float4 couplings[TILE / 4];               // [i, j]: k(i)k(j) of one half, then L(j, i), of i < j
  threadgroup float4 reach[TILE / 4];                   // [i, j]: G(i, j), 0 for j < i
  threadgroup uint4 solution_memory[TILE / 4];          // [j, i]: T(j, i), high pieces, then low ones
  threadgroup uint4 score_memory[TILE / 4];             // [i, j]: G(i, j) k(i)q(j), the same
  threadgroup float4 updates[VALUES * TOKENS / 4];      // [value, j]: u(j)
  threadgroup float4 gates[2 * TOKENS];                 // of j: G(j), sigmoid(b), G(j) sigmoid(b), G(j, last)
  threadgroup bfloat* keys = (threadgroup bfloat*)key_memory;
  threadgroup bfloat* queries = (threadgroup bfloat*)query_memory;
  threadgroup bfloat* solution = (threadgroup bfloat*)solution_memory;
  threadgroup bfloat* scores = (threadgroup bfloat*)score_memory;

  const bool holds_state = sg < 4, multiplies_keys = sg < 2, stages_keys = sg / 2 == 2, scores_queries = sg == 6;
  const bool stages_queries = sg == 4 || sg == 6;
  const int head = int(group) / SLICES, slice = int(group) % SLICES;
  const int key_column = head / (VALUE_HEADS / KEY_HEADS) * KEY_DIM;
  const int tile_value = int(sg % 2) * 16 + int(tile_row(lane));  // this lane's first value row, of the threadgroup's
  const int value = slice * VALUES + tile_value;
  const int row = int(tile_row(lane)), column = int(tile_column(lane));
  const int own_key = int(sg % 2) * (TOKENS / 2);       // first token of a chunk whose key this simdgroup norms
  const int own_query = sg == 4 ? 0 : TOKENS / 2;       // and whose query
  const int own_keys = int(sg % 2) * (KEY_DIM / 2);     // first key of the half that it multiplies
  const int token = int(lane) % TOKENS;
  LILY_TRIGGER();
  const float rate = a_log[head], bias = dt_bias[head];

  LILY_WAIT();
  const int rows = int(active_rows<false>(control));
  const int chunks = (rows + TOKENS - 1) / TOKENS;
  const device float* key_rows = qkv + KEY_HEADS * KEY_DIM + key_column;
  const device float* query_rows = qkv + key_column;
  const device float* value_rows = qkv + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + value;
  device float* out_rows = out + head * VALUE_DIM + value;
  device float* state_rows = state + size_t(head * VALUE_DIM + value) * KEY_DIM;

  tile_c s[KEY_TILES];                                  // elsewhere tokens to be staged: keys, then queries
  float2 v[2][2];                                       // as the pairs of a tile_c: value rows, tokens
  split_c results;                                      // those of the last chunk wait to be written
  thread tile_c* staged_queries = s + KEY_TILES / 2;
  float decay = 1.0f, strength = 0.0f, a_next = 0.0f, b_next = 0.0f;
  if (holds_state) {
    UNROLL for (int d = 0; d < KEY_TILES; d++) {
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
          const device float* from = state_rows + 8 * i * KEY_DIM + d * 16 + j * 8 + column;
          tile_set_pair(s[d], i, j, *(const device float2*)from);
        }
      }
    }
  } else {
    if (stages_keys) load_tokens<WIDTH, KEY_DIM>(s, key_rows, own_key, rows, lane);
    if (stages_queries) load_tokens<WIDTH, KEY_DIM>(staged_queries, query_rows, own_query, rows, lane);
    // Tokens beyond the last row have strength 0 and no decay.
    if (token < rows) {
      decay = decay_gate(a[size_t(token) * VALUE_HEADS + head], rate, bias);
      strength = sigmoid(b[size_t(token) * VALUE_HEADS + head]);
    }
    const int t = min(TOKENS + token, rows - 1);
    a_next = a[size_t(t) * VALUE_HEADS + head];
    b_next = b[size_t(t) * VALUE_HEADS + head];
  }

  // Chunk n; before the first one only what the other simdgroups do for the next.
  for (int n = -1; n < chunks; n++) {
    const int t0 = n * TOKENS, next = t0 + TOKENS;
    const bool now = n >= 0, more = n + 1 < chunks;
    threadgroup bfloat* k = keys + (n & 1) * (TOKENS * layout::LD);
    threadgroup bfloat* k_after = keys + (~n & 1) * (TOKENS * layout::LD);
    const threadgroup float4* gate = gates + (n & 1) * TOKENS;
    threadgroup float4* gate_after = gates + (~n & 1) * TOKENS;
    split_c sums;                                       // S k, S q, or products of tokens
    float2 reaches[2][2];
    tile_c u;
    split_zero(sums);
    tile_zero(u);

    if (holds_state) {
      if (now) {
        if (!multiplies_keys && n > 0) write_results<VALUE_HEADS * VALUE_DIM>(out_rows, results, t0 - TOKENS + column, rows);
        add_state_products<KEY_DIM, 0, FIRST_TILES>(sums, s, multiplies_keys ? k : queries);
        if (multiplies_keys) add_state_products<KEY_DIM, FIRST_TILES, KEY_TILES>(sums, s, k);
      }
    } else if (stages_keys) {
      if (more) {
        lay_normed<KEY_DIM>(k_after + own_key * LD, s, 1.0f, lane);
        load_tokens<WIDTH, KEY_DIM>(s, key_rows, next + TOKENS + own_key, rows, lane);
      }
    } else if (scores_queries) {
      if (now) {
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            reaches[i][j] = *((const threadgroup float2*)reach + ((row + 8 * i) * TOKENS + 8 * j + column) / 2);
          }
        }
        add_token_products<KEY_DIM, FIRST_TILES>(sums, k, queries);
      }
    } else if (now) {
      // Each lane solves for one column of T; the upper half of the lanes lays down the low pieces.
      float x[TOKENS];
      UNROLL for (int j = 0; j < TOKENS; j++) x[j] = j == token ? 1.0f : 0.0f;
      UNROLL for (int i = 0; i < TOKENS; i++) {
        UNROLL for (int w = 0; w < TOKENS / 4; w++) {
          if (w * 4 + 3 > i) {
            const float4 l = couplings[i * (TOKENS / 4) + w];
            if (w * 4 > i) x[w * 4] -= l.x * x[i];
            if (w * 4 + 1 > i) x[w * 4 + 1] -= l.y * x[i];
            if (w * 4 + 2 > i) x[w * 4 + 2] -= l.z * x[i];
            x[w * 4 + 3] -= l.w * x[i];
          }
        }
      }
      threadgroup bfloat* to = solution + int(lane) / TOKENS * TILE + token;
      UNROLL for (int j = 0; j < TOKENS; j += 2) {
        const float2 both = float2(x[j], x[j + 1]);
        const bfloat2 pieces = bfloat2(int(lane) < TOKENS ? both : rest_of(both));
        to[j * TOKENS] = pieces.x;
        to[(j + 1) * TOKENS] = pieces.y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (multiplies_keys) {
      if (now) {
        tile_c wanted;
        UNROLL for (int j = 0; j < 2; j++) {
          const float4 first = gate[8 * j + column], second = gate[8 * j + column + 1];
          UNROLL for (int i = 0; i < 2; i++) {
            const float2 sk = split_pair(sums, i, j);
            tile_set_pair(wanted, i, j, float2(first.y, second.y) * v[i][j] - float2(first.z, second.z) * sk);
          }
        }
        split_a left;
        split_b right;
        split_from_sums(left, wanted);
        split_load_bt(right, solution, TILE, TOKENS);
        split_zero(sums);
        split_mma(sums, left, right);
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) tile_set_pair(u, i, j, split_pair(sums, i, j));
        }
        tile_store(u, (threadgroup float*)updates + int(sg) * TILE, TOKENS);
      }
    } else if (holds_state) {
      if (now) {
        add_state_products<KEY_DIM, FIRST_TILES, KEY_TILES>(sums, s, queries);
        split_zero(results);
        UNROLL for (int j = 0; j < 2; j++) {
          const float2 remains = float2(gate[8 * j + column].x, gate[8 * j + column + 1].x);
          UNROLL for (int i = 0; i < 2; i++) tile_set_pair(results.high, i, j, remains * split_pair(sums, i, j));
        }
      }
    } else if (stages_keys) {
      if (more) {
        add_token_products<KEY_DIM, KEY_TILES / 2>(sums, k_after + own_keys, k_after + own_keys);
        if (sg == 4) {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
              const int at = ((row + 8 * i) * TOKENS + 8 * j + column) / 2;
              *((threadgroup float2*)couplings + at) = split_pair(sums, i, j);
            }
          }
        }
      }
    } else if (scores_queries) {
      if (now) {
        add_token_products<KEY_DIM, KEY_TILES - FIRST_TILES>(sums, k + FIRST_TILES * 16, queries + FIRST_TILES * 16);
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            const int at = (row + 8 * i) * TOKENS + 8 * j + column;
            const float2 score = split_pair(sums, i, j) * reaches[i][j];
            *(threadgroup uint*)(scores + at) = tile_words(score);
            *(threadgroup uint*)(scores + TILE + at) = tile_words(rest_of(score));
          }
        }
      }
    } else if (more) {
      // Lane i works out G(i, j) for all j, and G(i).
      float whole = 1.0f, part = 1.0f, parts[TOKENS];
      UNROLL for (int j = 0; j < TOKENS; j++) {
        const float d = simd_shuffle(decay, ushort(j));
        whole *= j <= token ? d : 1.0f;
        part *= j <= token ? 1.0f : d;
        parts[j] = j < token ? 0.0f : part;
      }
      if (int(lane) < TOKENS) {
        gate_after[token] = float4(whole, strength, whole * strength, part);
        UNROLL for (int w = 0; w < TOKENS / 4; w++) {
          reach[token * (TOKENS / 4) + w] = float4(parts[w * 4], parts[w * 4 + 1], parts[w * 4 + 2], parts[w * 4 + 3]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (holds_state) {
      if (multiplies_keys) {
        UNROLL for (int j = 0; j < 2; j++) {
          const int t = min(next + 8 * j + column, rows - 1), after = min(next + 8 * j + column + 1, rows - 1);
          UNROLL for (int i = 0; i < 2; i++) {
            v[i][j] = float2(value_rows[size_t(t) * WIDTH + 8 * i], value_rows[size_t(after) * WIDTH + 8 * i]);
          }
        }
      }
      if (now) {
        split_a left;
        if (!multiplies_keys) {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
              const int at = (tile_value + 8 * i) * TOKENS + 8 * j + column;
              tile_set_pair(u, i, j, *((const threadgroup float2*)updates + at / 2));
            }
          }
        }
        tile_c kept;
        UNROLL for (int j = 0; j < 2; j++) {
          const float2 remains = float2(gate[8 * j + column].w, gate[8 * j + column + 1].w);
          UNROLL for (int i = 0; i < 2; i++) tile_set_pair(kept, i, j, tile_pair(u, i, j) * remains);
        }
        split_from_sums(left, kept);
        const float all = gate[TOKENS - 1].x;
        UNROLL for (int d = 0; d < KEY_TILES; d++) {
          split_b right;
          split_load_b(right, k + d * 16, KEY_DIM, LD);
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) tile_set_pair(s[d], i, j, tile_pair(s[d], i, j) * all);
          }
          tile_mma(s[d], left.high, right.high);
          tile_mma(s[d], left.high, right.low);
          tile_mma(s[d], left.low, right.high);
        }
        if (!multiplies_keys) {
          split_b right;
          split_from_sums(left, u);
          split_load_b(right, scores, TILE, TOKENS);
          split_mma(results, left, right);
        }
      }
    } else if (more) {
      if (sg == 5) {
        UNROLL for (int j = 0; j < 2; j++) {
          const int of = 8 * j + column;
          const float2 strengths = float2(gate_after[of].y, gate_after[of + 1].y);
          UNROLL for (int i = 0; i < 2; i++) {
            const int at = ((row + 8 * i) * TOKENS + of) / 2;
            const float2 product = *((const threadgroup float2*)couplings + at) + split_pair(sums, i, j);
            *((threadgroup float2*)couplings + at) = strengths * *((const threadgroup float2*)reach + at) * product;
          }
        }
      } else if (stages_queries) {
        lay_normed<KEY_DIM>(queries + own_query * LD, staged_queries, float(KEY_DIM), lane);
        load_tokens<WIDTH, KEY_DIM>(staged_queries, query_rows, next + TOKENS + own_query, rows, lane);
      } else {
        const bool real = next + TOKENS + token < rows;
        decay = real ? decay_gate(a_next, rate, bias) : 1.0f;
        strength = real ? sigmoid(b_next) : 0.0f;
        const int t = min(next + 2 * TOKENS + token, rows - 1);
        a_next = a[size_t(t) * VALUE_HEADS + head];
        b_next = b[size_t(t) * VALUE_HEADS + head];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (holds_state && !multiplies_keys && chunks > 0) {
    write_results<VALUE_HEADS * VALUE_DIM>(out_rows, results, (chunks - 1) * TOKENS + column, rows);
  }
  if (multiplies_keys) {
    UNROLL for (int d = 0; d < KEY_TILES; d++) {
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
          *(device float2*)(state_rows + 8 * i * KEY_DIM + d * 16 + j * 8 + column) = tile_pair(s[d], i, j);
        }
      }
    }
  }
}
