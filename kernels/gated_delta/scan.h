// The gated delta rule over a chunk of rows, token by token, with the state in registers.
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
// the state never meet. Simdgroup: 8 value rows, laid out as state.h says. STAGE tokens at a time are normed and laid
// into threadgroup memory, in two halves: while one half is worked on, the loads for the other are in flight.
//
// With S = G S', G the product of the decays since the stage began, a token costs three products per element:
//   u = G (S' k);  d = sigmoid(b) (v - u);  out = G (S' q) + d (k q);  S' <- S' + (d / G) k
// Both sums read S' as it was before the token, so neither waits for the other. S' <- G S' at the end of a stage, and
// before that where G becomes too small to divide by.
//
// Threadgroup memory: 2 * STAGE * (2 * KEY_DIM + 8 * SIMDGROUPS + 4) * 4 bytes.
// Requires KEY_DIM % (4 * LANES) == 0, STAGE % SIMDGROUPS == 0.
// Order of the sums: within a lane, then over the lanes of a row; the same for every row. Stages count from the first
// row of the chunk, so cutting a prompt into other chunks changes results by rounding only.
// Source of the idea: several value rows per simdgroup as in packed decode kernels; o = g (S q) + d (k q) as in uzu.
template <int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM, int LANES, int SIMDGROUPS, int STAGE, bool ONE>
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
  constexpr int TOKENS = STAGE / SIMDGROUPS;            // tokens that a simdgroup stages
  constexpr int SLICES = (VALUE_DIM + VALUES - 1) / VALUES;
  constexpr int WIDTH = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
  constexpr float SMALL = 1.0f / 1073741824.0f;         // 2^-30
  threadgroup float4 keys[2 * STAGE * KEY_VECTORS];
  threadgroup float4 queries[2 * STAGE * KEY_VECTORS];
  threadgroup float values[2 * STAGE * VALUES];
  threadgroup float4 gates[2 * STAGE];                  // decay, 1 / decay, strength, k q

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

  float4 q_next[TOKENS][PER_LANE], k_next[TOKENS][PER_LANE];
  float v_next[TOKENS][VALUES_PER_LANE], a_next[TOKENS], b_next[TOKENS];
  for (int t0 = -STAGE; t0 < rows; t0 += STAGE) {
    // Ask for the next stage.
    if (t0 + STAGE < rows) {
      UNROLL for (int i = 0; i < TOKENS; i++) {
        const int t = min(t0 + STAGE + int(sg) + i * SIMDGROUPS, rows - 1);
        const device float* token = qkv + size_t(t) * WIDTH;
        UNROLL for (int j = 0; j < PER_LANE; j++) {
          const int c = min(j * 32 + int(lane), KEY_VECTORS - 1);
          q_next[i][j] = ((const device float4*)(token + key_column))[c];
          k_next[i][j] = ((const device float4*)(token + KEY_HEADS * KEY_DIM + key_column))[c];
        }
        UNROLL for (int j = 0; j < VALUES_PER_LANE; j++) {
          v_next[i][j] = token[value_column + min(j * 32 + int(lane), min(VALUES, VALUE_DIM - slice * VALUES) - 1)];
        }
        a_next[i] = a[size_t(t) * VALUE_HEADS + head];
        b_next[i] = b[size_t(t) * VALUE_HEADS + head];
      }
    }

    // Work on this one.
    const int half_of = (t0 / STAGE) & 1;
    const int tokens = t0 < 0 ? 0 : min(STAGE, rows - t0);
    float whole = 1.0f, inverse = 1.0f;
    for (int t = 0; t < tokens; t++) {
      const int at = half_of * STAGE + t;
      const threadgroup float4* k4 = keys + at * KEY_VECTORS + part;
      const threadgroup float4* q4 = queries + at * KEY_VECTORS + part;
      const float4 gate = gates[at];
      whole *= gate.x;
      inverse *= gate.y;
      if (whole < SMALL) {
        UNROLL for (int r = 0; r < ROWS; r++) {
          UNROLL for (int i = 0; i < VECTORS; i++) s[r][i] *= whole;
        }
        whole = 1.0f;
        inverse = 1.0f;
      }
      float4 k[VECTORS], sk[ROWS], sq[ROWS];
      UNROLL for (int r = 0; r < ROWS; r++) {
        sk[r] = float4(0.0f);
        sq[r] = float4(0.0f);
      }
      UNROLL for (int i = 0; i < VECTORS; i++) {
        k[i] = k4[i * LANES];
        const float4 q = q4[i * LANES];
        UNROLL for (int r = 0; r < ROWS; r++) {
          sk[r] += s[r][i] * k[i];
          sq[r] += s[r][i] * q;
        }
      }
      UNROLL for (int r = 0; r < ROWS; r++) {
        const float u = whole * row_sum<LANES>(sum_of(sk[r]));
        const float d = gate.z * (values[at * VALUES + row[r]] - u);
        const float o = whole * row_sum<LANES>(sum_of(sq[r])) + d * gate.w;
        const float step = d * inverse;
        UNROLL for (int i = 0; i < VECTORS; i++) s[r][i] += step * k[i];
        if (part == 0 && slice * VALUES + row[r] < VALUE_DIM) {
          out[(size_t(t0 + t) * VALUE_HEADS + head) * VALUE_DIM + slice * VALUES + row[r]] = o;
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int i = 0; i < VECTORS; i++) s[r][i] *= whole;
    }

    // Norm what has arrived and lay it into the other half, which everybody left before the last barrier.
    if (t0 + STAGE < rows) {
      UNROLL for (int i = 0; i < TOKENS; i++) {
        const int at = (half_of ^ 1) * STAGE + int(sg) + i * SIMDGROUPS;
        float qq = 0.0f, kk = 0.0f, kq = 0.0f;
        UNROLL for (int j = 0; j < PER_LANE; j++) {
          if (j * 32 + int(lane) >= KEY_VECTORS) continue;
          qq += dot(q_next[i][j], q_next[i][j]);
          kk += dot(k_next[i][j], k_next[i][j]);
          kq += dot(k_next[i][j], q_next[i][j]);
        }
        const float q_scale = 1.0f / precise::sqrt((simd_sum(qq) + L2_EPS) * float(KEY_DIM));
        const float k_scale = 1.0f / precise::sqrt(simd_sum(kk) + L2_EPS);
        kq = simd_sum(kq);
        UNROLL for (int j = 0; j < PER_LANE; j++) {
          const int c = j * 32 + int(lane);
          if (c >= KEY_VECTORS) continue;
          queries[at * KEY_VECTORS + c] = q_next[i][j] * q_scale;
          keys[at * KEY_VECTORS + c] = k_next[i][j] * k_scale;
        }
        UNROLL for (int j = 0; j < VALUES_PER_LANE; j++) {
          if (j * 32 + int(lane) < VALUES) values[at * VALUES + j * 32 + int(lane)] = v_next[i][j];
        }
        const float decay = decay_gate(a_next[i], rate, bias);
        if (lane == 0) gates[at] = float4(decay, 1.0f / decay, sigmoid(b_next[i]), kq * q_scale * k_scale);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  UNROLL for (int r = 0; r < ROWS; r++) {
    if (slice * VALUES + row[r] >= VALUE_DIM) continue;
    UNROLL for (int i = 0; i < VECTORS; i++) state4[row[r] * KEY_VECTORS + i * LANES + part] = s[r][i];
  }
}
