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
    KEY_TILES = KEY_DIM / 16,
    HALF = KEY_TILES / 2,
    // Elements from token to token: high pieces, low pieces, and 16 bytes that keep eight rows in different banks. They
    // hold what belongs to the token besides, SIDE vectors from its beginning.
    LD = 2 * KEY_DIM + 8,
    PITCH = LD / 8,                                     // in vectors of 16 bytes
    SIDE = KEY_DIM / 4,
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

// c += rows of the state, in pieces, times the tokens (columns), over the key tiles of a half.
template <int KEY_DIM>
METAL_FUNC void add_state_products(thread split_c& c, thread split_a* state, const threadgroup bfloat* tokens) {
  constexpr uint LD = chunk_layout<KEY_DIM>::LD;
  UNROLL for (int d = 0; d < KEY_DIM / 32; d++) {
    split_b b;
    split_load_bt(b, tokens + d * 16, KEY_DIM, LD);
    split_mma(c, state[d], b);
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

// Eight tokens from number `first` on, into KEY_DIM / 32 tiles; from `rows` on the last one stands in. Eight lanes
// share a token, so that its norm costs few shuffles: each has every eighth vector of two tokens.
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

// Results of two value rows, 8 apart, at tokens `first`, the next, and both 8 further: those that are active. Half of
// what the state gives is in memory, where `at` is this lane's first pair; `whole` is G of the tokens.
template <int STRIDE>
METAL_FUNC void write_results(device float* to, thread split_c& of_state, const threadgroup float2* rest, int at,
                              thread float2* whole, thread split_c& of_updates, int first, int rows) {
  UNROLL for (int j = 0; j < 2; j++) {
    const int t = first + 8 * j;
    UNROLL for (int i = 0; i < 2; i++) {
      const float2 sum = rest[at + i * 64 + j * 4] + split_pair(of_state, i, j);
      const float2 y = whole[j] * sum + split_pair(of_updates, i, j);
      if (t < rows) to[size_t(t) * STRIDE + 8 * i] = y.x;
      if (t + 1 < rows) to[size_t(t + 1) * STRIDE + 8 * i] = y.y;
    }
  }
}

// G(i, j) from the lower half of the couplings.
METAL_FUNC float reach(const threadgroup float* couplings, int i, int j) {
  const float product = couplings[max(i, j) * 16 + min(i, j)];
  return i < j ? product : i == j ? 1.0f : 0.0f;
}

// The gates of a token; beyond the last row strength 0 and no decay.
METAL_FUNC void lay_gates(threadgroup float4* to, float a, float b, float rate, float bias, bool real) {
  const float decay = decay_gate(a, rate, bias), strength = sigmoid(b);
  *to = float4(real ? decay : 1.0f, real ? strength : 0.0f, 0.0f, 0.0f);
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
// Simdgroups 0 to 3 hold the state as sums of tiles, 16 value rows by half of the keys each. Tokens are columns, so
// that sums become left operands without leaving the registers. Products over half of the keys are added up in
// threadgroup memory: those of the first half become u there, those of the second one results. The others prepare. A
// chunk has three parts, each of which ends at a barrier; a simdgroup issues in order, so its longest part counts:
//   0, 1 (first half)    S k                 u, half of S q             the rest of S q, S
//   2, 3 (second half)   S k                 results of before, S q     sums over u, S
//   4                    half of next keys   half of next k(i)k(j)      decays of the chunk after the next
//   5                    half of next keys   half of next k(i)k(j)      next L
//   6                    most of k(i)q(j)    the rest                   half of next queries
//   7                    T                   next G(i, j)               half of next queries
//
// Threadgroup memory: 192 * KEY_DIM + 7936 bytes, 32512 for KEY_DIM = 128.
// Requires KEY_DIM % 32 == 0, KEY_DIM <= 128, VALUE_DIM % 32 == 0.
// Order of the sums: over each half of a row of the state, tile by tile, those of the pieces apart, then over both; the
// same for every row. Chunks count from the first row of the step, so cutting a prompt into others changes results by
// rounding only. Equal to the rule in exact numbers within 1e-4 of the root mean square of a result; within 4e-4 where
// keys are so much alike that every token undoes most of the one before. A token that is not finite spoils all results of
// its chunk.
// Source of the idea: the chunked form of the delta rule (Yang et al., 2024).
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
  constexpr int FIRST_TILES = (KEY_TILES * 5 + 7) / 8;  // of the products of tokens, those of the first part
  constexpr int HALF = layout::HALF;                    // of them, those of half of the keys
  constexpr int PITCH = layout::PITCH;
  constexpr uint LD = layout::LD;
  constexpr int WIDTH = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  threadgroup uint4 key_memory[2 * TOKENS * layout::LD / 8];
  threadgroup uint4 query_memory[TOKENS * layout::LD / 8];
  // [i, j] with i < j: k(i)k(j) of one half, then L(j, i); [j, i]: G(i, j).
  threadgroup float4 coupling_memory[TILE / 4];
  threadgroup uint4 solution_memory[TILE / 4];          // [i, j]: T(j, i), high pieces, then low ones
  threadgroup uint4 score_memory[TILE / 4];             // [i, j]: G(i, j) k(i)q(j), the same
  threadgroup float4 update_memory[VALUES * TOKENS / 4];  // [value, j]: S k(j) of the second half, then u(j)
  threadgroup float4 result_memory[VALUES * TOKENS / 4];  // [value, j]: S q(j) of the first half
  threadgroup bfloat* keys = (threadgroup bfloat*)key_memory;
  threadgroup bfloat* queries = (threadgroup bfloat*)query_memory;
  threadgroup bfloat* solution = (threadgroup bfloat*)solution_memory;
  threadgroup bfloat* scores = (threadgroup bfloat*)score_memory;

  threadgroup float* couplings = (threadgroup float*)coupling_memory;
  threadgroup float2* updates = (threadgroup float2*)update_memory;
  threadgroup float2* rest = (threadgroup float2*)result_memory;
  threadgroup float4* decays = (threadgroup float4*)query_memory + layout::SIDE;  // of the next tokens: decay, strength

  const bool holds_state = sg < 4, leads = sg < 2, stages_keys = sg / 2 == 2, scores_queries = sg == 6;
  const int head = int(group) / SLICES, slice = int(group) % SLICES;
  const int key_column = head / (VALUE_HEADS / KEY_HEADS) * KEY_DIM;
  const int tile_value = int(sg % 2) * 16 + int(tile_row(lane));  // this lane's first value row, of the threadgroup's
  const int value = slice * VALUES + tile_value;
  const int row = int(tile_row(lane)), column = int(tile_column(lane));
  const int pair = (tile_value * TOKENS + column) / 2;  // this lane's first one among those of values and tokens
  const int own = int(sg % 2) * (TOKENS / 2);           // first token of a chunk that this simdgroup norms
  const int from = (holds_state ? int(sg / 2) : int(sg % 2)) * (KEY_DIM / 2);  // first key of its half
  const int token = int(lane) % TOKENS;
  LILY_TRIGGER();
  const float rate = a_log[head], bias = dt_bias[head];

  LILY_WAIT();
  const int rows = int(active_rows<false>(control));
  if (rows == 0) return;
  const int chunks = (rows + TOKENS - 1) / TOKENS;
  const device float* staged_rows = qkv + (stages_keys ? KEY_HEADS * KEY_DIM : 0) + key_column;
  const device float* value_rows = qkv + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + value;
  device float* out_rows = out + head * VALUE_DIM + value;
  device float* state_rows = state + size_t(head * VALUE_DIM + value) * KEY_DIM + from + column;

  tile_c s[HALF];                                       // elsewhere tokens to be staged
  split_a pieces[HALF];                                 // of the state before the chunk
  float2 v[2][2];                                       // as the pairs of a tile_c: value rows, tokens
  // S q of a half, and sums over u; in the second half those of the last chunk, not yet written, and its G(j).
  split_c of_state, of_updates;
  float2 whole[2];
  float a_next = 0.0f, b_next = 0.0f;
  if (holds_state) {
    UNROLL for (int d = 0; d < HALF; d++) {
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
          tile_set_pair(s[d], i, j, *(const device float2*)(state_rows + 8 * i * KEY_DIM + d * 16 + j * 8));
        }
      }
    }
  } else {
    load_tokens<WIDTH, KEY_DIM>(s, staged_rows, own, rows, lane);
    if (sg == 4) {
      const int t = min(token, rows - 1), after = min(TOKENS + token, rows - 1);
      const float a_now = a[size_t(t) * VALUE_HEADS + head], b_now = b[size_t(t) * VALUE_HEADS + head];
      lay_gates(decays + token * PITCH, a_now, b_now, rate, bias, token < rows);
      a_next = a[size_t(after) * VALUE_HEADS + head];
      b_next = b[size_t(after) * VALUE_HEADS + head];
    }
  }

  // Chunk n; before the first one only what the other simdgroups do for the next.
  for (int n = -1; n < chunks; n++) {
    const int t0 = n * TOKENS, next = t0 + TOKENS;
    const bool now = n >= 0, more = n + 1 < chunks;
    threadgroup bfloat* k = keys + (n & 1) * (TOKENS * layout::LD);
    threadgroup bfloat* k_after = keys + (~n & 1) * (TOKENS * layout::LD);
    // Of j, at j * PITCH: G(j), sigmoid(b), G(j) sigmoid(b), G(j, last).
    const threadgroup float4* gate = (const threadgroup float4*)k + layout::SIDE;
    threadgroup float4* gate_after = (threadgroup float4*)k_after + layout::SIDE;
    split_c sums;                                       // S k, or products of tokens
    float2 reaches[2][2];
    split_b q[HALF];
    tile_c u;
    float all = 1.0f;                                   // G(last)
    float2 left_over[2];                                // G(j, last), as pairs of tokens

    if (holds_state) {
      if (now) {
        UNROLL for (int d = 0; d < HALF; d++) split_from_sums(pieces[d], s[d]);
        split_zero(sums);
        add_state_products<KEY_DIM>(sums, pieces, k + from);
        if (!leads) {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) updates[pair + i * 64 + j * 4] = split_pair(sums, i, j);
          }
        }
      }
    } else if (stages_keys) {
      if (more) {
        lay_normed<KEY_DIM>(k_after + own * LD, s, 1.0f, lane);
        load_tokens<WIDTH, KEY_DIM>(s, staged_rows, next + TOKENS + own, rows, lane);
      }
    } else if (scores_queries) {
      if (now) {
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            const int of = row + 8 * i, to = 8 * j + column;
            reaches[i][j] = float2(reach(couplings, of, to), reach(couplings, of, to + 1));
          }
        }
        split_zero(sums);
        add_token_products<KEY_DIM, FIRST_TILES>(sums, k, queries);
      }
    } else if (now) {
      // Each lane solves for one column of T; the upper half of the lanes lays down the low pieces.
      float x[TOKENS];
      UNROLL for (int j = 0; j < TOKENS; j++) x[j] = j == token ? 1.0f : 0.0f;
      UNROLL for (int i = 0; i < TOKENS; i++) {
        UNROLL for (int w = 0; w < TOKENS / 4; w++) {
          if (w * 4 + 3 > i) {
            const float4 l = coupling_memory[i * (TOKENS / 4) + w];
            if (w * 4 > i) x[w * 4] -= l.x * x[i];
            if (w * 4 + 1 > i) x[w * 4 + 1] -= l.y * x[i];
            if (w * 4 + 2 > i) x[w * 4 + 2] -= l.z * x[i];
            x[w * 4 + 3] -= l.w * x[i];
          }
        }
      }
      uint words[TOKENS / 2];
      UNROLL for (int j = 0; j < TOKENS; j += 2) {
        const float2 both = float2(x[j], x[j + 1]);
        words[j / 2] = tile_words(int(lane) < TOKENS ? both : rest_of(both));
      }
      UNROLL for (int w = 0; w < TOKENS / 8; w++) {
        solution_memory[int(lane) * (TOKENS / 8) + w] =
            uint4(words[w * 4], words[w * 4 + 1], words[w * 4 + 2], words[w * 4 + 3]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (leads) {
      if (now) {
        // Those of the last part too, when their memory belongs to the next ones.
        UNROLL for (int d = 0; d < HALF; d++) split_load_bt(q[d], queries + from + d * 16, KEY_DIM, LD);
        tile_c wanted;
        UNROLL for (int j = 0; j < 2; j++) {
          const float4 first = gate[(8 * j + column) * PITCH], second = gate[(8 * j + column + 1) * PITCH];
          UNROLL for (int i = 0; i < 2; i++) {
            const float2 sk = split_pair(sums, i, j) + updates[pair + i * 64 + j * 4];
            tile_set_pair(wanted, i, j, float2(first.y, second.y) * v[i][j] - float2(first.z, second.z) * sk);
          }
          left_over[j] = float2(first.w, second.w);
        }
        split_a left;
        split_b right;
        all = gate[(TOKENS - 1) * PITCH].x;
        split_from_sums(left, wanted);
        split_load_b(right, solution, TILE, TOKENS);
        split_zero(sums);
        split_mma(sums, left, right);
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            const float2 found = split_pair(sums, i, j);
            tile_set_pair(u, i, j, found);
            updates[pair + i * 64 + j * 4] = found;
          }
        }
        split_zero(of_state);
        UNROLL for (int d = 0; d < HALF - HALF / 2; d++) split_mma(of_state, pieces[d], q[d]);
      }
      UNROLL for (int j = 0; j < 2; j++) {
        const int t = min(next + 8 * j + column, rows - 1), after = min(next + 8 * j + column + 1, rows - 1);
        UNROLL for (int i = 0; i < 2; i++) {
          v[i][j] = float2(value_rows[size_t(t) * WIDTH + 8 * i], value_rows[size_t(after) * WIDTH + 8 * i]);
        }
      }
    } else if (holds_state) {
      if (n > 0) {
        const int first = t0 - TOKENS + column;
        write_results<VALUE_HEADS * VALUE_DIM>(out_rows, of_state, rest, pair, whole, of_updates, first, rows);
      }
      if (now) {
        split_zero(of_state);
        add_state_products<KEY_DIM>(of_state, pieces, queries + from);
        UNROLL for (int j = 0; j < 2; j++) {
          const float4 first = gate[(8 * j + column) * PITCH], second = gate[(8 * j + column + 1) * PITCH];
          whole[j] = float2(first.x, second.x);
          left_over[j] = float2(first.w, second.w);
        }
        all = gate[(TOKENS - 1) * PITCH].x;
      }
    } else if (stages_keys) {
      if (more) {
        split_zero(sums);
        add_token_products<KEY_DIM, HALF>(sums, k_after + from, k_after + from);
        if (sg == 4) {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
              const int of = row + 8 * i, to = 8 * j + column;
              const float2 product = split_pair(sums, i, j);
              if (of < to) couplings[of * TOKENS + to] = product.x;
              if (of < to + 1) couplings[of * TOKENS + to + 1] = product.y;
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
      const float4 own_gates = decays[token * PITCH];
      float whole = 1.0f, part = 1.0f;
      UNROLL for (int j = 0; j < TOKENS; j++) {
        const float d = simd_shuffle(own_gates.x, ushort(j));
        whole *= j <= token ? d : 1.0f;
        part *= j <= token ? 1.0f : d;
        if (int(lane) < j) couplings[j * TOKENS + token] = part;
      }
      if (int(lane) < TOKENS) gate_after[token * PITCH] = float4(whole, own_gates.y, whole * own_gates.y, part);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (holds_state) {
      if (now) {
        if (leads) {
          UNROLL for (int d = HALF - HALF / 2; d < HALF; d++) split_mma(of_state, pieces[d], q[d]);
        } else {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) tile_set_pair(u, i, j, updates[pair + i * 64 + j * 4]);
          }
          split_a left;
          split_b right;
          split_from_sums(left, u);
          split_load_b(right, scores, TILE, TOKENS);
          split_zero(of_updates);
          split_mma(of_updates, left, right);
        }
        UNROLL for (int j = 0; j < 2; j++) {
          UNROLL for (int i = 0; i < 2; i++) tile_set_pair(u, i, j, tile_pair(u, i, j) * left_over[j]);
        }
        split_a left;
        split_from_sums(left, u);
        UNROLL for (int d = 0; d < HALF; d++) {
          split_b right;
          split_load_b(right, k + from + d * 16, KEY_DIM, LD);
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) tile_set_pair(s[d], i, j, tile_pair(s[d], i, j) * all);
          }
          tile_mma(s[d], left.high, right.high);
          tile_mma(s[d], left.high, right.low);
          tile_mma(s[d], left.low, right.high);
        }
        if (leads) {
          UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) rest[pair + i * 64 + j * 4] = split_pair(of_state, i, j);
          }
        }
      }
    } else if (more) {
      if (sg == 4) {
        lay_gates(decays + token * PITCH, a_next, b_next, rate, bias, next + TOKENS + token < rows);
        const int t = min(next + 2 * TOKENS + token, rows - 1);
        a_next = a[size_t(t) * VALUE_HEADS + head];
        b_next = b[size_t(t) * VALUE_HEADS + head];
      } else if (sg == 5) {
        UNROLL for (int i = 0; i < 2; i++) {
          UNROLL for (int j = 0; j < 2; j++) {
            const float2 half_product = split_pair(sums, i, j);
            UNROLL for (int e = 0; e < 2; e++) {
              const int of = row + 8 * i, to = 8 * j + column + e;
              const float product = couplings[of * TOKENS + to] + (e == 0 ? half_product.x : half_product.y);
              const float factor = gate_after[to * PITCH].y * reach(couplings, of, to);
              if (of < to) couplings[of * TOKENS + to] = factor * product;
            }
          }
        }
      } else {
        lay_normed<KEY_DIM>(queries + own * LD, s, float(KEY_DIM), lane);
        load_tokens<WIDTH, KEY_DIM>(s, staged_rows, next + TOKENS + own, rows, lane);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (holds_state && !leads && chunks > 0) {
    const int first = (chunks - 1) * TOKENS + column;
    write_results<VALUE_HEADS * VALUE_DIM>(out_rows, of_state, rest, pair, whole, of_updates, first, rows);
  }
  if (holds_state) {
    UNROLL for (int d = 0; d < HALF; d++) {
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
          *(device float2*)(state_rows + 8 * i * KEY_DIM + d * 16 + j * 8) = tile_pair(s[d], i, j);
        }
      }
    }
  }
}
