// The gated delta rule over a chunk of rows, a block of tokens at a time, with the state in registers.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "gated_delta/state.h"

// Per value head h with key head h / (VALUE_HEADS / KEY_HEADS), for each token:
//   q <- q / sqrt(|q|^2 + 1e-6) / sqrt(KEY_DIM);  k <- k / sqrt(|k|^2 + 1e-6)
//   S <- e^g S;  d = sigmoid(b) (v - S k);  S <- S + d k^T;  out = S q
//
// qkv      f32 [T, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM], [q | k | v], each head-major
// a, b     f32 [T, VALUE_HEADS]
// a_log, dt_bias  f32 [VALUE_HEADS]
// state    f32 [VALUE_HEADS, VALUE_DIM, KEY_DIM], read and written
// out      f32 [T, VALUE_HEADS * VALUE_DIM]
// control  control block
//
// Threadgroup: SIMDGROUPS * 8 value rows of one head, grid (VALUE_HEADS * ceil(VALUE_DIM / (SIMDGROUPS * 8))); rows of
// the state never meet. Simdgroup: 8 value rows, laid out as state.h says. A stage is one block of BLOCK tokens per
// simdgroup, which norms it and lays it into threadgroup memory; the loads of the next stage are in flight meanwhile.
//
// Within a block, with S the state before it, G(i, j) the product of the decays of tokens i + 1 .. j and G(j) that of
// all up to j, the rule above becomes
//   d(j)   = sigmoid(b) (v(j) - G(j) S k(j) - sum_{i < j} G(i, j) k(i)k(j) d(i))
//   out(j) = G(j) S q(j) + sum_{i <= j} G(i, j) k(i)q(j) d(i)
//   S     <- G(last) S + sum_i G(i, last) d(i) k(i)^T
// so the sums over S of all tokens of the block are independent, and only BLOCK numbers per row wait for each other.
// The products of keys and queries among themselves belong to the staging. BLOCK = 1 is the rule token by token.
//
// Threadgroup memory: SIMDGROUPS * BLOCK * (2 * KEY_DIM + 8 * SIMDGROUPS + 2 * BLOCK + 4) * 4 bytes.
// Requires KEY_DIM % (4 * LANES) == 0.
// Order of the sums: within a lane, then over the lanes of a row; the same for every row. Blocks count from the first
// row of the chunk, so cutting a prompt into other chunks changes results by rounding only.
// Source of the idea: the chunked form of the delta rule (Yang et al., 2024), with blocks short enough for registers;
// several value rows per simdgroup as in packed decode kernels.
template <int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM, int LANES, int SIMDGROUPS, int BLOCK, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void gated_delta(
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
  typedef state_layout<KEY_DIM, LANES> layout;
  constexpr int GROUPS = layout::GROUPS, ROWS = layout::ROWS, VECTORS = layout::VECTORS;
  constexpr int KEY_VECTORS = KEY_DIM / 4;
  constexpr int PER_LANE = (KEY_VECTORS + 31) / 32;     // float4 of a query or key per lane while staging
  constexpr int VALUES = SIMDGROUPS * 8;                // value rows of the threadgroup
  constexpr int VALUES_PER_LANE = (VALUES + 31) / 32;
  constexpr int STAGE = SIMDGROUPS * BLOCK;             // tokens
  constexpr int SLICES = (VALUE_DIM + VALUES - 1) / VALUES;
  constexpr int WIDTH = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  threadgroup float4 keys[STAGE * KEY_VECTORS];
  threadgroup float4 queries[STAGE * KEY_VECTORS];
  threadgroup float values[STAGE * VALUES];
  threadgroup float key_keys[STAGE * BLOCK];            // [j, i]: sigmoid(b(j)) G(i, j) k(i)k(j), i < j
  threadgroup float key_queries[STAGE * BLOCK];         // [j, i]: G(i, j) k(i)q(j), i <= j
  threadgroup float4 gates[STAGE];                      // of j: G(j), sigmoid(b), G(j) sigmoid(b), G(j, last)

  const int head = int(group) / SLICES, slice = int(group) % SLICES;
  const int part = int(lane) / GROUPS;
  const int key_column = head / (VALUE_HEADS / KEY_HEADS) * KEY_DIM;
  const int value_column = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + slice * VALUES;
  int row[ROWS];                                        // of the threadgroup's value rows
  UNROLL for (int r = 0; r < ROWS; r++) row[r] = int(sg) * 8 + r * GROUPS + int(lane) % GROUPS;
  LILY_TRIGGER();
  const float rate = a_log[head], bias = dt_bias[head];

  LILY_WAIT();
  const int rows = int(active_rows<ONE>(control));
  device float4* state4 = (device float4*)state + (head * VALUE_DIM + slice * VALUES) * KEY_VECTORS;
  float4 s[ROWS][VECTORS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    const int of = min(row[r], VALUE_DIM - 1 - slice * VALUES);
    UNROLL for (int i = 0; i < VECTORS; i++) s[r][i] = state4[of * KEY_VECTORS + i * LANES + part];
  }

  float4 q_next[BLOCK][PER_LANE], k_next[BLOCK][PER_LANE];
  float v_next[BLOCK][VALUES_PER_LANE], a_next = 0.0f, b_next = 0.0f;
  for (int t0 = -STAGE; t0 < rows; t0 += STAGE) {
    // Ask for this simdgroup's block of the next stage.
    const int own = t0 + STAGE + int(sg) * BLOCK;
    const bool more = t0 + STAGE < rows;
    if (more) {
      UNROLL for (int j = 0; j < BLOCK; j++) {
        const int t = min(own + j, rows - 1);
        const device float* token = qkv + size_t(t) * WIDTH;
        UNROLL for (int i = 0; i < PER_LANE; i++) {
          const int c = min(i * 32 + int(lane), KEY_VECTORS - 1);
          q_next[j][i] = ((const device float4*)(token + key_column))[c];
          k_next[j][i] = ((const device float4*)(token + KEY_HEADS * KEY_DIM + key_column))[c];
        }
        UNROLL for (int i = 0; i < VALUES_PER_LANE; i++) {
          v_next[j][i] = token[value_column + min(i * 32 + int(lane), min(VALUES, VALUE_DIM - slice * VALUES) - 1)];
        }
      }
      const int t = min(own + int(lane) % BLOCK, rows - 1);
      a_next = a[size_t(t) * VALUE_HEADS + head];
      b_next = b[size_t(t) * VALUE_HEADS + head];
    }

    // Work on this stage. Tokens beyond the last row have strength 0 and no decay.
    const int tokens = t0 < 0 ? 0 : min(STAGE, rows - t0);
    for (int first = 0; first < tokens; first += BLOCK) {
      const threadgroup float4* k4 = keys + first * KEY_VECTORS + part;
      const threadgroup float4* q4 = queries + first * KEY_VECTORS + part;
      float sk[ROWS * BLOCK], sq[ROWS * BLOCK];         // [r, j]
      UNROLL for (int n = 0; n < ROWS * BLOCK; n++) sk[n] = sq[n] = 0.0f;
      UNROLL for (int i = 0; i < VECTORS; i++) {
        UNROLL for (int j = 0; j < BLOCK; j++) {
          const float4 k = k4[j * KEY_VECTORS + i * LANES];
          const float4 q = q4[j * KEY_VECTORS + i * LANES];
          UNROLL for (int r = 0; r < ROWS; r++) {
            sk[r * BLOCK + j] = dot_onto(sk[r * BLOCK + j], s[r][i], k);
            sq[r * BLOCK + j] = dot_onto(sq[r * BLOCK + j], s[r][i], q);
          }
        }
      }
      sums_over<GROUPS, ROWS * BLOCK>(sk);
      sums_over<GROUPS, ROWS * BLOCK>(sq);
      float d[ROWS][BLOCK];
      UNROLL for (int j = 0; j < BLOCK; j++) {
        const int at = first + j;
        const float4 gate = gates[at];
        UNROLL for (int r = 0; r < ROWS; r++) {
          const int n = r * BLOCK + j;
          d[r][j] = gate.y * values[at * VALUES + row[r]] - gate.z * sk[n];
          sq[n] *= gate.x;
          UNROLL for (int i = 0; i < j; i++) d[r][j] -= key_keys[at * BLOCK + i] * d[r][i];
          UNROLL for (int i = 0; i <= j; i++) sq[n] += key_queries[at * BLOCK + i] * d[r][i];
        }
      }
      if (part == 0) {
        UNROLL for (int j = 0; j < BLOCK; j++) {
          device float* to = out + (size_t(t0 + first + j) * VALUE_HEADS + head) * VALUE_DIM + slice * VALUES;
          UNROLL for (int r = 0; r < ROWS; r++) {
            if (first + j < tokens && slice * VALUES + row[r] < VALUE_DIM) to[row[r]] = sq[r * BLOCK + j];
          }
        }
      }
      UNROLL for (int j = 0; j < BLOCK; j++) {
        const float left = gates[first + j].w;
        UNROLL for (int r = 0; r < ROWS; r++) d[r][j] *= left;
      }
      const float decay = gates[first + BLOCK - 1].x;
      UNROLL for (int i = 0; i < VECTORS; i++) {
        UNROLL for (int r = 0; r < ROWS; r++) s[r][i] *= decay;
        UNROLL for (int j = 0; j < BLOCK; j++) {
          const float4 k = k4[j * KEY_VECTORS + i * LANES];
          UNROLL for (int r = 0; r < ROWS; r++) s[r][i] += d[r][j] * k;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!more) break;                                   // of all threads

    // Norm what has arrived and lay it where everybody has read.
    constexpr int PAIRS = BLOCK * (BLOCK + 1) / 2;      // i <= j, at j (j + 1) / 2 + i
    float sums[2 * PAIRS + BLOCK];                      // k(i)k(j), k(i)q(j), q(j)q(j)
    UNROLL for (int n = 0; n < 2 * PAIRS + BLOCK; n++) sums[n] = 0.0f;
    UNROLL for (int c = 0; c < PER_LANE; c++) {
      UNROLL for (int j = 0; j < BLOCK; j++) {
        if (c * 32 + int(lane) >= KEY_VECTORS) q_next[j][c] = k_next[j][c] = float4(0.0f);
        UNROLL for (int i = 0; i <= j; i++) {
          const int n = j * (j + 1) / 2 + i;
          sums[n] = dot_onto(sums[n], k_next[i][c], k_next[j][c]);
          sums[PAIRS + n] = dot_onto(sums[PAIRS + n], k_next[i][c], q_next[j][c]);
        }
        sums[2 * PAIRS + j] = dot_onto(sums[2 * PAIRS + j], q_next[j][c], q_next[j][c]);
      }
    }
    sums_over<1, 2 * PAIRS + BLOCK>(sums);
    // Each lane works out the gates of one token of the block, for all.
    const bool real = own + int(lane) % BLOCK < rows;
    const float own_decay = real ? decay_gate(a_next, rate, bias) : 1.0f;
    const float own_strength = real ? sigmoid(b_next) : 0.0f;
    float q_scale[BLOCK], k_scale[BLOCK], decay[BLOCK], strength[BLOCK];
    UNROLL for (int j = 0; j < BLOCK; j++) {
      q_scale[j] = 1.0f / precise::sqrt((sums[2 * PAIRS + j] + L2_EPS) * float(KEY_DIM));
      k_scale[j] = 1.0f / precise::sqrt(sums[j * (j + 1) / 2 + j] + L2_EPS);
      decay[j] = simd_shuffle(own_decay, ushort(j));
      strength[j] = simd_shuffle(own_strength, ushort(j));
      const int at = int(sg) * BLOCK + j;
      UNROLL for (int i = 0; i < PER_LANE; i++) {
        const int c = i * 32 + int(lane);
        if (c >= KEY_VECTORS) continue;
        queries[at * KEY_VECTORS + c] = q_next[j][i] * q_scale[j];
        keys[at * KEY_VECTORS + c] = k_next[j][i] * k_scale[j];
      }
      UNROLL for (int i = 0; i < VALUES_PER_LANE; i++) {
        if (i * 32 + int(lane) < VALUES) values[at * VALUES + i * 32 + int(lane)] = v_next[j][i];
      }
    }
    if (lane == 0) {
      float whole = 1.0f, reach[BLOCK];                 // reach: G(i, j) of the token j at hand
      UNROLL for (int j = 0; j < BLOCK; j++) {
        const int at = int(sg) * BLOCK + j;
        whole *= decay[j];
        UNROLL for (int i = 0; i < j; i++) reach[i] *= decay[j];
        reach[j] = 1.0f;
        UNROLL for (int i = 0; i <= j; i++) {
          const int n = j * (j + 1) / 2 + i;
          const float scale = reach[i] * k_scale[i];
          if (i < j) key_keys[at * BLOCK + i] = strength[j] * scale * k_scale[j] * sums[n];
          key_queries[at * BLOCK + i] = scale * q_scale[j] * sums[PAIRS + n];
        }
        gates[at] = float4(whole, strength[j], whole * strength[j], 0.0f);
      }
      UNROLL for (int j = 0; j < BLOCK; j++) gates[int(sg) * BLOCK + j].w = reach[j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  UNROLL for (int r = 0; r < ROWS; r++) {
    if (slice * VALUES + row[r] >= VALUE_DIM) continue;
    UNROLL for (int i = 0; i < VECTORS; i++) state4[row[r] * KEY_VECTORS + i * LANES + part] = s[r][i];
  }
}
