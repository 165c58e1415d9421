// Softmax attention of a few query heads over a run of keys, in one pass: the part that a simdgroup does on its own.
//
// A simdgroup takes 4 keys at a time for H query heads that share the KV head: every key and value is loaded once for
// all of them. Loads are 16 bytes (a uint4 of KV elements).
//   keys    8 lanes to a key: slot = lane / 8 is which of the four, part = lane % 8; load i of a lane holds the
//           16 bytes number i * 8 + part of the key
//   scores  summed over the 8 lanes of a key while the heads are halved among them, so that after three shuffles lane
//           `part` holds the score of head part / (8 / PADDED)
//   values  V_LANES lanes to a value, each owning the same 16-byte pieces of the H accumulators
// Queries lie in threadgroup memory in the order in which lanes ask for them (query_slot).
#pragma once

constant float LOWEST = -1.0e30f;                       // a score that counts as none

template <typename KV, int HEAD_DIM, int H> struct online_layout {
  enum : int {
    VECTOR = 16 / sizeof(KV),                           // elements of a 16-byte load
    QUARTERS = VECTOR / 4,                              // float4 of a load
    KEY_LOADS = HEAD_DIM / (8 * VECTOR),
    V_LANES = HEAD_DIM / VECTOR < 32 ? HEAD_DIM / VECTOR : 32,
    V_KEYS = 32 / V_LANES,                              // values side by side in one load
    V_PASSES = 4 / V_KEYS,                              // loads that bring the four values
    V_LOADS = HEAD_DIM / (V_LANES * VECTOR),            // pieces of a value per lane
    PADDED = H <= 1 ? 1 : H <= 2 ? 2 : H <= 4 ? 4 : 8,  // heads, as a power of two
    WEIGHTS = PADDED < 4 ? 4 : PADDED                   // floats of a key's softmax weights in threadgroup memory
  };
};

// Float4 number j of a 16-byte load.
template <typename KV> METAL_FUNC float4 quarter(uint4 raw, int j) {
  if (sizeof(KV) == 4) return as_type<float4>(raw);
  const uint low = j == 0 ? raw.x : raw.z, high = j == 0 ? raw.y : raw.w;
  return float4(as_type<float>(low << 16), as_type<float>(low & 0xffff0000u), as_type<float>(high << 16),
                as_type<float>(high & 0xffff0000u));
}

// Where float4 number c of a query lies within its head.
template <int QUARTERS> METAL_FUNC uint query_slot(uint c) {
  return (c / (8 * QUARTERS) * QUARTERS + c % QUARTERS) * 8 + c / QUARTERS % 8;
}

// One halving: of the first 2 * N sums this lane keeps those of its side and takes the other side's share of them.
template <int N, int PADDED> METAL_FUNC void halve(thread float (&sums)[PADDED], uint part, uint mask) {
  UNROLL for (int i = 0; i < N; i++) {
    const bool upper = (part & mask) != 0;
    const float keep = upper ? sums[i + N] : sums[i], give = upper ? sums[i] : sums[i + N];
    sums[i] = keep + simd_shuffle_xor(give, ushort(mask));
  }
}

template <int PADDED> METAL_FUNC float sum_of_key(thread float (&sums)[PADDED], uint part) {
  if (PADDED == 8) halve<PADDED == 8 ? 4 : 0, PADDED>(sums, part, 4);
  if (PADDED == 4) halve<PADDED == 4 ? 2 : 0, PADDED>(sums, part, 4);
  if (PADDED == 2) halve<PADDED == 2 ? 1 : 0, PADDED>(sums, part, 4);
  if (PADDED == 1) sums[0] += simd_shuffle_xor(sums[0], ushort(4));
  if (PADDED == 8) halve<PADDED == 8 ? 2 : 0, PADDED>(sums, part, 2);
  if (PADDED == 4) halve<PADDED == 4 ? 1 : 0, PADDED>(sums, part, 2);
  if (PADDED <= 2) sums[0] += simd_shuffle_xor(sums[0], ushort(2));
  if (PADDED == 8) halve<PADDED == 8 ? 1 : 0, PADDED>(sums, part, 1);
  if (PADDED <= 4) sums[0] += simd_shuffle_xor(sums[0], ushort(1));
  return sums[0];
}

// Largest and sum over the lanes that hold the same head for the four keys.
METAL_FUNC float max_of_keys(float v) {
  v = max(v, simd_shuffle_xor(v, ushort(8)));
  return max(v, simd_shuffle_xor(v, ushort(16)));
}
METAL_FUNC float sum_of_keys(float v) {
  v += simd_shuffle_xor(v, ushort(8));
  return v + simd_shuffle_xor(v, ushort(16));
}

// The running softmax of H heads.
template <typename KV, int HEAD_DIM, int H> struct online_softmax {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  float largest;                                        // score of this lane's head
  float sum;                                            // of this lane's key slots
  float4 out[H][layout::V_LOADS * layout::QUARTERS];    // sums of exp(score - largest) v
};

template <typename KV, int HEAD_DIM, int H>
METAL_FUNC void online_start(thread online_softmax<KV, HEAD_DIM, H>& o) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  o.largest = LOWEST;
  o.sum = 0.0f;
  UNROLL for (int h = 0; h < H; h++) {
    UNROLL for (int i = 0; i < layout::V_LOADS * layout::QUARTERS; i++) o.out[h][i] = float4(0.0f);
  }
}

// Asks for the pieces of the four keys from `first` on; keys from `end` on are stood in for by the last one.
template <typename KV, int HEAD_DIM, int LOADS>
METAL_FUNC void load_keys(thread uint4* key, const device KV* keys, uint first, uint end, uint lane) {
  const uint at = min(first + lane / 8, end - 1);
  const device uint4* from = (const device uint4*)(keys + size_t(at) * HEAD_DIM) + lane % 8;
  UNROLL for (int i = 0; i < LOADS; i++) key[i] = from[i * 8];
}

// Folds the keys first, first + stride, ... of [first, end), four at each, into the running softmax.
//   queries  H heads, scaled, in query_slot order
//   weights  4 * WEIGHTS floats of this simdgroup's own
template <typename KV, int HEAD_DIM, int H>
METAL_FUNC void online_keys(thread online_softmax<KV, HEAD_DIM, H>& o, const threadgroup float4* queries,
                            threadgroup float4* weights, const device KV* keys, const device KV* values, uint first,
                            uint end, uint stride, uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  constexpr int PADDED = layout::PADDED, WEIGHTS = layout::WEIGHTS, QUARTERS = layout::QUARTERS;
  constexpr int COPIES = 8 / PADDED;                    // lanes that hold the same score
  const uint slot = lane / 8, part = lane % 8;
  const uint v_slot = lane / layout::V_LANES, v_lane = lane % layout::V_LANES;
  threadgroup float* weight = (threadgroup float*)weights;
  if (first >= end) return;
  uint4 key[layout::KEY_LOADS];
  load_keys<KV, HEAD_DIM, layout::KEY_LOADS>(key, keys, first, end, lane);
  for (; first < end; first += stride) {
    uint4 value[layout::V_PASSES][layout::V_LOADS];
    UNROLL for (int i = 0; i < layout::V_PASSES; i++) {
      const uint at = min(first + i * layout::V_KEYS + v_slot, end - 1);
      const device uint4* from = (const device uint4*)(values + size_t(at) * HEAD_DIM) + v_lane;
      UNROLL for (int j = 0; j < layout::V_LOADS; j++) value[i][j] = from[j * layout::V_LANES];
    }

    float sums[PADDED];
    UNROLL for (int h = 0; h < PADDED; h++) sums[h] = 0.0f;
    UNROLL for (int i = 0; i < layout::KEY_LOADS; i++) {
      UNROLL for (int j = 0; j < QUARTERS; j++) {
        const float4 k = quarter<KV>(key[i], j);
        UNROLL for (int h = 0; h < H; h++) {
          const float4 q = queries[h * (HEAD_DIM / 4) + (i * QUARTERS + j) * 8 + part];
          sums[h] = fma(k.w, q.w, fma(k.z, q.z, fma(k.y, q.y, fma(k.x, q.x, sums[h]))));
        }
      }
    }
    if (first + stride < end) load_keys<KV, HEAD_DIM, layout::KEY_LOADS>(key, keys, first + stride, end, lane);

    const bool real = first + slot < end;
    const float score = sum_of_key<PADDED>(sums, part);
    const float largest = max(o.largest, max_of_keys(real ? score : LOWEST));
    if (simd_any(largest > o.largest)) {
      const float factor = fast::exp(o.largest - largest);
      o.sum *= factor;
      UNROLL for (int h = 0; h < H; h++) {
        const float of_head = simd_shuffle(factor, ushort(h * COPIES));
        UNROLL for (int i = 0; i < layout::V_LOADS * QUARTERS; i++) o.out[h][i] *= of_head;
      }
      o.largest = largest;
    }
    const float w = real ? fast::exp(score - largest) : 0.0f;
    o.sum += w;
    if (part % COPIES == 0) weight[slot * WEIGHTS + part / COPIES] = w;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int i = 0; i < layout::V_PASSES; i++) {
      const threadgroup float4* of_key = weights + (i * layout::V_KEYS + v_slot) * (WEIGHTS / 4);
      float heads[WEIGHTS];
      UNROLL for (int j = 0; j < WEIGHTS / 4; j++) {
        const float4 four = of_key[j];
        heads[4 * j] = four.x;
        heads[4 * j + 1] = four.y;
        heads[4 * j + 2] = four.z;
        heads[4 * j + 3] = four.w;
      }
      UNROLL for (int j = 0; j < layout::V_LOADS; j++) {
        UNROLL for (int n = 0; n < QUARTERS; n++) {
          const float4 v = quarter<KV>(value[i][j], n);
          UNROLL for (int h = 0; h < H; h++) o.out[h][j * QUARTERS + n] += v * heads[h];
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);      // the weights may be written again
  }
}
