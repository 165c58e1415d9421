// Everything between the projections of a Gated DeltaNet layer, for one token.
#pragma once
#include "common/activation.h"
#include "common/cluster.h"
#include "gated_delta/state.h"

// conv + SiLU of [q | k | v], then per value head the gated delta rule of scan.h, then
// out = o / sqrt(mean(o^2) + eps) * norm * act(z), act = SiLU or sigmoid
//
// control     control block; its position is read
// qkv         f32 [2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM], [q | k | v], each head-major
// z           f32 [VALUE_HEADS * VALUE_DIM]
// a, b        f32 [VALUE_HEADS]
// conv_weight f32 [channels, TAPS]
// conv_state  f32 [TAPS, channels], a ring: the row of position p lies in slot p mod TAPS
// a_log, dt_bias  f32 [VALUE_HEADS]
// norm        f32 [VALUE_DIM]
// state       f32 [VALUE_HEADS, VALUE_DIM, KEY_DIM], read and written
// out         f32 [VALUE_HEADS * VALUE_DIM]
//
// Cluster (common/cluster.h): one value head. Threadgroup: VALUE_DIM / CLUSTER value rows of it, grid (VALUE_HEADS *
// CLUSTER). Simdgroup: 8 value rows, laid out as state.h says. Threads take the channels of the convolution in turn, q
// and k in every threadgroup of the head. The slot of this position is not read: the current row comes from qkv. It is
// written by the threadgroup of the value rows, for q and k by the first of the first value head of the key head.
// The position, the ring, the state and the weights are older than this token and are asked for before LILY_WAIT.
//
// Threadgroup memory: (2 * KEY_DIM + 2 * VALUE_DIM / CLUSTER + CLUSTER) * 4 bytes.
// Requires VALUE_DIM % (32 * CLUSTER) == 0, VALUE_DIM <= 256, KEY_DIM % (4 * LANES) == 0.
// Order of the sums: within a lane, then over the lanes of a row (scan.h); of the norm: within a lane, then simd_sum,
// then over the cluster.
// Source of the idea: o = g (S q) + d (k q), which makes the two sums independent, as in uzu.
template <int KEY_HEADS, int VALUE_HEADS, int KEY_DIM, int VALUE_DIM, int TAPS, int LANES, bool SIGMOID,
          int CLUSTER>
[[kernel, max_total_threads_per_threadgroup(VALUE_DIM * 4 / CLUSTER)]] void delta_mix(
    const device uint* control [[buffer(0)]],
    const device float* qkv [[buffer(1)]],
    const device float* z [[buffer(2)]],
    const device float* a [[buffer(3)]],
    const device float* b [[buffer(4)]],
    const device float* conv_weight [[buffer(5)]],
    device float* conv_state [[buffer(6)]],
    const device float* a_log [[buffer(7)]],
    const device float* dt_bias [[buffer(8)]],
    const device float* norm [[buffer(9)]],
    device float* state [[buffer(10)]],
    device float* out [[buffer(11)]],
    constant NormParams& p [[buffer(12)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef state_layout<KEY_DIM, LANES> layout;
  constexpr int GROUPS = layout::GROUPS, ROWS = layout::ROWS, VECTORS = layout::VECTORS;
  constexpr int VALUES = VALUE_DIM / CLUSTER;           // value rows of the threadgroup
  constexpr int THREADS = VALUES * 4;
  constexpr int KEY_VECTORS = KEY_DIM / 4;
  constexpr int KEYS = KEY_HEADS * KEY_DIM;
  constexpr int CHANNELS = 2 * KEYS + VALUE_HEADS * VALUE_DIM;
  constexpr int OWN = 2 * KEY_DIM + VALUES;             // channels of this threadgroup: q, k, v
  constexpr int PER_THREAD = (OWN + THREADS - 1) / THREADS;
  constexpr int HEADS_PER_KEY = VALUE_HEADS / KEY_HEADS;
  threadgroup float4 queries[KEY_VECTORS];
  threadgroup float4 keys[KEY_VECTORS];
  threadgroup float values[VALUES];
  threadgroup float outputs[VALUES];
  threadgroup float squares[CLUSTER];
  const uint head = group / CLUSTER, rank = group % CLUSTER;
  const uint key_head = head / HEADS_PER_KEY;
  const uint first = head * VALUE_DIM + rank * VALUES;  // of its value rows
  const int part = int(lane) / GROUPS;
  LILY_TRIGGER();
  cluster_begin<CLUSTER>();

  const uint position = control[0];
  const uint slot = position % TAPS;
  int row[ROWS];
  float4 s[ROWS][VECTORS];
  device float4* state4 = (device float4*)state + first * KEY_VECTORS;
  UNROLL for (int r = 0; r < ROWS; r++) {
    row[r] = int(sg) * 8 + r * GROUPS + int(lane) % GROUPS;
    UNROLL for (int i = 0; i < VECTORS; i++) s[r][i] = state4[row[r] * KEY_VECTORS + i * LANES + part];
  }
  uint channel[PER_THREAD];
  float sum[PER_THREAD], newest[PER_THREAD];
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint c = min(tid + i * THREADS, uint(OWN - 1));
    channel[i] = c < uint(KEY_DIM)       ? key_head * KEY_DIM + c
                 : c < uint(2 * KEY_DIM) ? KEYS + key_head * KEY_DIM + (c - KEY_DIM)
                                         : 2 * KEYS + first + (c - 2 * KEY_DIM);
    const device float* tap = conv_weight + channel[i] * TAPS;
    sum[i] = 0.0f;
    UNROLL for (int j = 0; j < TAPS - 1; j++) {
      sum[i] = fma(tap[j], conv_state[(slot + uint(j + 1)) % TAPS * CHANNELS + channel[i]], sum[i]);
    }
    newest[i] = tap[TAPS - 1];
  }
  const float rate = a_log[head], bias = dt_bias[head];
  const float weight = tid < uint(VALUES) ? norm[rank * VALUES + tid] : 0.0f;

  LILY_WAIT();
  float x[PER_THREAD];
  UNROLL for (int i = 0; i < PER_THREAD; i++) x[i] = qkv[channel[i]];
  const float gate = tid < uint(VALUES) ? z[first + tid] : 0.0f;
  const float a_of = a[head], b_of = b[head];
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint c = tid + i * THREADS;
    if (c >= uint(OWN)) continue;
    const float y = silu(fma(newest[i], x[i], sum[i]));
    if (c < uint(KEY_DIM)) ((threadgroup float*)queries)[c] = y;
    else if (c < uint(2 * KEY_DIM)) ((threadgroup float*)keys)[c - KEY_DIM] = y;
    else values[c - 2 * KEY_DIM] = y;
    if (c >= uint(2 * KEY_DIM) || group % (HEADS_PER_KEY * CLUSTER) == 0) conv_state[slot * CHANNELS + channel[i]] = x[i];
  }
  const float decay = decay_gate(a_of, rate, bias), strength = sigmoid(b_of);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float4 k[VECTORS], sk[ROWS], sq[ROWS];
  float4 qq = float4(0.0f), kk = float4(0.0f), kq = float4(0.0f);
  UNROLL for (int r = 0; r < ROWS; r++) {
    sk[r] = float4(0.0f);
    sq[r] = float4(0.0f);
  }
  UNROLL for (int i = 0; i < VECTORS; i++) {
    k[i] = keys[i * LANES + part];
    const float4 q = queries[i * LANES + part];
    qq += q * q;
    kk += k[i] * k[i];
    kq += k[i] * q;
    UNROLL for (int r = 0; r < ROWS; r++) {
      sk[r] += s[r][i] * k[i];
      sq[r] += s[r][i] * q;
    }
  }
  const float q_scale = 1.0f / precise::sqrt((row_sum<LANES>(sum_of(qq)) + L2_EPS) * float(KEY_DIM));
  const float k_scale = 1.0f / precise::sqrt(row_sum<LANES>(sum_of(kk)) + L2_EPS);
  const float kq_scaled = row_sum<LANES>(sum_of(kq)) * q_scale * k_scale;
  UNROLL for (int r = 0; r < ROWS; r++) {
    const float u = decay * k_scale * row_sum<LANES>(sum_of(sk[r]));
    const float d = strength * (values[row[r]] - u);
    const float o = decay * q_scale * row_sum<LANES>(sum_of(sq[r])) + d * kq_scaled;
    const float step = d * k_scale;
    UNROLL for (int i = 0; i < VECTORS; i++) {
      state4[row[r] * KEY_VECTORS + i * LANES + part] = s[r][i] * decay + step * k[i];
    }
    if (part == 0) outputs[row[r]] = o;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float square = 0.0f;                                  // summed by every simdgroup
  UNROLL for (int i = 0; i < VALUES / 32; i++) {
    const float o = outputs[i * 32 + lane];
    square += o * o;
  }
  square = cluster_sum<CLUSTER>(simd_sum(square), squares, rank, tid);
  if (tid < uint(VALUES)) {
    const float scale = 1.0f / precise::sqrt(square / float(VALUE_DIM) + p.eps);
    const float act = SIGMOID ? sigmoid(gate) : silu(gate);
    out[first + tid] = outputs[tid] * scale * weight * act;
  }
}
