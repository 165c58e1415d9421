// The step of routed.h with the work cut across the experts: every threadgroup takes a few rows of each.
#pragma once
#include "common/activation.h"
#include "common/row_block.h"
#include "moe/top_k.h"
#include "params.h"

// The matrices of a step: of the routed experts, and of the shared one.
template <typename F> struct slot_matrices {
  const device uint* gate;
  const device uint* up;
  const device uint* shared_gate;
  const device uint* shared_up;
};

// Rows from `row` on of the gate or up matrix of a slot, whose expert is known; slot TOP_K is the shared expert.
template <int EXPERTS, int TOP_K, int N, int K, typename F>
METAL_FUNC matrix_rows<F> rows_of_slot(thread const slot_matrices<F>& from, bool up, uint slot, uint expert, uint row) {
  if (slot == uint(TOP_K)) return rows_at<F, K>(up ? from.shared_up : from.shared_gate, N, row);
  return rows_at<F, K>(up ? from.up : from.gate, size_t(EXPERTS) * N, size_t(expert) * N + row);
}

// How the simdgroups of a threadgroup share ROWS rows of every slot. Here each takes slots in turn. A back end's own form
// (LILY_NATIVE_ROWS) makes a tile of the gate and up rows of two slots and deals K out among SPLITS simdgroups.
template <typename F, int K, int SLOTS, int ROWS, int SIMDGROUPS> struct slots_kind {
  enum : int { PAIRS = (SLOTS + 1) / 2, SPLITS = SIMDGROUPS >= PAIRS ? SIMDGROUPS / PAIRS : 1 };
#ifdef LILY_NATIVE_ROWS
  enum : int {
    WORDS = K / 128 * int(DIGIT_WORDS_) + int(ZERO_WORDS_),
    OWN = ROWS == 4 && SLOTS % 2 == 1 && PAIRS * SPLITS == SIMDGROUPS && K % (128 * SPLITS) == 0 && K % 256 == 0 &&
          tile_of<K>::VALUES == K && WORDS + 16 * SIMDGROUPS <= tile_of<K>::FLOATS &&
          (is_same_v<F, affine<4, 64, bfloat>> || is_same_v<F, affine<4, 128, bfloat>>)
  };
#else
  enum : int { OWN = 0 };
#endif
};

// What a simdgroup has asked for.
template <typename F, int K, int SLOTS, int ROWS, int SIMDGROUPS,
          int OWN = slots_kind<F, K, SLOTS, ROWS, SIMDGROUPS>::OWN>
struct slots_block {
  row_batch<F, K, 2 * ROWS> batch;
};

// Before LILY_WAIT: asks for the rows of the shared expert, where they are a simdgroup's first.
template <int EXPERTS, int TOP_K, int N, typename F, int K, int ROWS, int SIMDGROUPS>
METAL_FUNC void ask_known(thread slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 0>& block,
                          thread const slot_matrices<F>& from, uint first, thread_place at) {}

// Stages x from what load_chunks has brought, and passes the barrier that makes it and `picked` readable.
template <bool NORM, typename F, int K, int SLOTS, int ROWS, int SIMDGROUPS>
METAL_FUNC void stage_slots(const thread slots_block<F, K, SLOTS, ROWS, SIMDGROUPS, 0>& block, staged_x tile,
                            const thread tile_chunks<K, SIMDGROUPS * 32>& chunks,
                            const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, thread float& squares,
                            thread_place at) {
  squares += stage_chunks<F, K, SIMDGROUPS * 32, NORM>(tile, chunks, norm_chunks, 0, at.index);
  publish_squares<NORM>(tile, squares, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// out[slot][row] = silu(gate) * up for the ROWS rows of every slot from `first` on; picked: experts by slot.
template <int EXPERTS, int TOP_K, int N, bool NORM, typename F, int K, int ROWS, int SIMDGROUPS>
METAL_FUNC void multiply_slots(thread slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 0>& block, device float* out,
                               device float* shared_out, thread const slot_matrices<F>& from,
                               const threadgroup uint* picked, uint first, const device float* x,
                               const device float* norm, float eps, staged_x tile, float squares, thread_place at) {
  for (uint slot = at.simdgroup; slot <= uint(TOP_K); slot += SIMDGROUPS) {
    const uint expert = slot < uint(TOP_K) ? picked[slot] : 0;
    matrix_rows<F> rows[2];
    rows[0] = rows_of_slot<EXPERTS, TOP_K, N, K>(from, false, slot, expert, first);
    rows[1] = rows_of_slot<EXPERTS, TOP_K, N, K>(from, true, slot, expert, first);
    load_batch<F, K, 2 * ROWS, 2>(block.batch, rows, 0, at.lane);
    float products[2 * ROWS];
    multiply_staged<F, K, 2 * ROWS, 2, SIMDGROUPS, NORM>(products, block.batch, rows, x, norm, eps, tile, squares, at);
    device float* to = (slot < uint(TOP_K) ? out + slot * N : shared_out) + first;
    if (at.lane == 0) {
      UNROLL for (int r = 0; r < ROWS; r++) to[r] = silu(products[r]) * products[ROWS + r];
    }
  }
}

#ifdef LILY_NATIVE_ROWS
template <typename F, int K, int SLOTS, int ROWS, int SIMDGROUPS> struct slots_block<F, K, SLOTS, ROWS, SIMDGROUPS, 1> {
  typedef slots_kind<F, K, SLOTS, ROWS, SIMDGROUPS> kind;
  enum : int { SPLITS = kind::SPLITS, CHUNKS = K / 128 / kind::SPLITS };
  digit_weights_<CHUNKS> weights;
};

// Rows g of a tile: the four gate rows, then the four up rows, of a slot; rows g + 8 those of the next.
template <int EXPERTS, int TOP_K, int N, typename F, int K, int ROWS, int SIMDGROUPS>
METAL_FUNC void ask_pair(thread slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1>& block,
                         thread const slot_matrices<F>& from, uint slot0, uint expert0, uint slot1, uint expert1,
                         uint first, thread_place at) {
  typedef slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1> own;
  const uint g = at.lane / 4, row = first + g % ROWS;
  const bool up = g >= uint(ROWS);
  ask_two_rows<K>(block.weights, rows_of_slot<EXPERTS, TOP_K, N, K>(from, up, slot0, expert0, row),
                  rows_of_slot<EXPERTS, TOP_K, N, K>(from, up, slot1, expert1, row),
                  at.simdgroup % own::SPLITS * own::CHUNKS);
}

template <int EXPERTS, int TOP_K, int N, typename F, int K, int ROWS, int SIMDGROUPS>
METAL_FUNC void ask_known(thread slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1>& block,
                          thread const slot_matrices<F>& from, uint first, thread_place at) {
  typedef slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1> own;
  // The shared expert has the last tile for itself; the other half of it repeats these rows.
  if (at.simdgroup / own::SPLITS == uint(own::kind::PAIRS - 1)) {
    ask_pair<EXPERTS, TOP_K, N>(block, from, TOP_K, 0, TOP_K, 0, first, at);
  }
}

template <bool NORM, typename F, int K, int SLOTS, int ROWS, int SIMDGROUPS>
METAL_FUNC void stage_slots(const thread slots_block<F, K, SLOTS, ROWS, SIMDGROUPS, 1>& block, staged_x tile,
                            const thread tile_chunks<K, SIMDGROUPS * 32>& chunks,
                            const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, thread float& squares,
                            thread_place at) {
  stage_digits<NORM, K, SIMDGROUPS>(tile, chunks, norm_chunks, squares, at);
}

template <int EXPERTS, int TOP_K, int N, bool NORM, typename F, int K, int ROWS, int SIMDGROUPS>
METAL_FUNC void multiply_slots(thread slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1>& block, device float* out,
                               device float* shared_out, thread const slot_matrices<F>& from,
                               const threadgroup uint* picked, uint first, const device float* x,
                               const device float* norm, float eps, staged_x tile, float squares, thread_place at) {
  typedef slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS, 1> own;
  constexpr uint SPLITS = own::SPLITS;
  const uint pair = at.simdgroup / SPLITS;
  if (pair < uint(own::kind::PAIRS - 1)) {
    ask_pair<EXPERTS, TOP_K, N>(block, from, 2 * pair, picked[2 * pair], 2 * pair + 1, picked[2 * pair + 1], first, at);
  }
  const threadgroup uint* digits = (const threadgroup uint*)tile.values;
  float y[2] = {0.0f, 0.0f};
  multiply_digits_(y, block.weights, digits, digits + K / 128 * int(DIGIT_WORDS_), tile.sums,
                   at.simdgroup % SPLITS * own::CHUNKS);
  sum_quad_(y);
  threadgroup float* shares = tile.values + own::kind::WORDS;
  if (at.lane % 4 == 0) {
    shares[at.simdgroup * 16 + at.lane / 4] = y[0];
    shares[at.simdgroup * 16 + at.lane / 4 + 8] = y[1];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint slot = at.index / ROWS, row = at.index % ROWS;
  if (slot > uint(TOP_K)) return;
  const float scale = NORM ? inverse_rms<K, SIMDGROUPS>(tile, eps) : 1.0f;
  const threadgroup float* of = shares + slot / 2 * (SPLITS * 16) + slot % 2 * 8 + row;
  float gate = 0.0f, up = 0.0f;
  UNROLL for (int s = 0; s < int(SPLITS); s++) {
    gate += of[s * 16];
    up += of[s * 16 + ROWS];
  }
  (slot < uint(TOP_K) ? out + slot * N : shared_out)[first + row] = silu(gate * scale) * (up * scale);
}
#endif

// routed_gated_slots: as routed_gated_matvec, for matrices that all have one format.
//
// operands     as routed_gated_matvec, with SHARED_N = N
// ownership    a threadgroup takes rows first .. first + ROWS of both matrices of every slot, the shared expert being
//              the last slot; how its simdgroups share them, slots_kind says. One simdgroup finds the experts of all slots
//              while others stage h. Threadgroup 0 writes experts and weights and publishes them.
// threadgroup  as stacked_matvec, and 4 bytes per slot
// needs        TOP_K <= 32, TOP_K <= EXPERTS <= 1024; N % ROWS == 0; K % 8 == 0; else as matvec
// sums         as matvec, for each product
// source       lily's own: even shares for all multiprocessors, and one search for the experts in each
template <typename F, int EXPERTS, int TOP_K, int N, int K, int ROWS, int SIMDGROUPS, bool NORM,
          int REGISTERS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void routed_gated_slots(
    const device float* x [[buffer(0)]], const device float* norm [[buffer(1)]],
    const device float* logits [[buffer(2)]], const device float* shared_gate [[buffer(3)]],
    const device uint* gate [[buffer(4)]],
    const device uint* up [[buffer(5)]], const device uint* shared_gate_proj [[buffer(6)]],
    const device uint* shared_up_proj [[buffer(7)]], device uint* experts [[buffer(8)]],
    device float* weights [[buffer(9)]], device float* out [[buffer(10)]], device float* shared_out [[buffer(11)]],
    constant NormParams& params [[buffer(12)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  threadgroup float squares[SIMDGROUPS];
  threadgroup uint picked[TOP_K];
  if (group != 0) LILY_TRIGGER();
  const staged_x tile = staged_at(values, sums, squares);
  const thread_place at = place_of(index, simdgroup, lane);
  const uint first = group * ROWS;
  slot_matrices<F> from;
  from.gate = gate;
  from.up = up;
  from.shared_gate = shared_gate_proj;
  from.shared_up = shared_up_proj;
  slots_block<F, K, TOP_K + 1, ROWS, SIMDGROUPS> block;
  ask_known<EXPERTS, TOP_K, N>(block, from, first, at);
  tile_chunks<K, SIMDGROUPS * 32> norm_chunks, chunks;
  if (NORM) load_chunks(norm_chunks, norm, 0, index);
  LILY_WAIT();
  load_chunks(chunks, x, 0, index);
  if (simdgroup == uint(SIMDGROUPS - 1)) {  // the others stage meanwhile; it has the least to stage
    uint expert;
    float weight;
    top_k<EXPERTS, TOP_K>(logits, lane, expert, weight);
    if (lane < uint(TOP_K)) picked[lane] = expert;
    if (group == 0) {
      if (lane < uint(TOP_K)) {
        experts[lane] = expert;
        weights[lane] = weight;
      }
      if (lane == 0) weights[TOP_K] = sigmoid(shared_gate[0]);
      LILY_PUBLISH();
      LILY_TRIGGER();
    }
  }
  float squares_here = 0.0f;
  stage_slots<NORM>(block, tile, chunks, norm_chunks, squares_here, at);
  multiply_slots<EXPERTS, TOP_K, N, NORM>(block, out, shared_out, from, picked, first, x, norm, params.eps, tile,
                                          squares_here, at);
}
