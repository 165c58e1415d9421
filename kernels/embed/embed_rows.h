// Rows of the embedding table.
#pragma once
#include "common/control.h"
#include "common/packet.h"

// How many neighbouring values of a table's row of DIM a thread takes.
template <typename F, int DIM> struct embed_values {
  enum : int {
    WIDE = 128 / F::BITS,
    PACKED = F::BITS == 4 || F::BITS == 8 ? 8 : F::BITS == 2 ? 16 : 32,
    COUNT = F::QUANTISED ? PACKED : DIM % WIDE == 0 ? WIDE : 1
  };
};

// v = scale * v + bias of group `group` of a row.
template <int V, typename S>
METAL_FUNC void scale_values(thread float* v, const device scale_bias<S>* row, uint group) {
  const scale_bias<S> g = row[group];
  UNROLL for (int i = 0; i < V; i++) v[i] = scale_of(g) * v[i] + bias_of(g);
}
template <int V> METAL_FUNC void scale_values(thread float*, const device no_side*, uint) {}

// embed: out[t] = table[tokens[t]].
//
// operands     table   packed matrix [VOCAB, DIM] of format F
//              tokens  uint[rows], each below VOCAB
//              out     float[rows, DIM]
//              control uint[2]: first position, active rows
// ownership    grid x: THREADS * V values of a row, V per thread; grid y: a row
// threadgroup  nothing
// needs        DIM a multiple of 32 and of the group for a quantised table
// sums         none: scale * q + bias, rounded at most twice
// source       -
template <typename F, int VOCAB, int DIM, int THREADS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void embed(
    const device uint* table [[buffer(0)]], const device uint* tokens [[buffer(1)]], device float* out [[buffer(2)]],
    const device uint* control [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]]) {
  constexpr uint V = embed_values<F, DIM>::COUNT;
  LILY_TRIGGER();
  LILY_WAIT();
  const uint i = (group.x * THREADS + index) * V;
  if (i >= uint(DIM) || group.y >= active_rows<ONE>(control)) return;
  const matrix_rows<F> row = rows_at<F, DIM>(table, VOCAB, tokens[group.y]);
  packet<F, V> p;
  load_packet(p, row.words, i);
  float v[V];
  unpack(v, p);
  if (F::QUANTISED) scale_values<V>(v, row.sides, i / F::GROUP);
  UNROLL for (uint j = 0; j < V; j++) out[size_t(group.y) * DIM + i + j] = v[j];
}
