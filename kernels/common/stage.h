// Activations in threadgroup memory, ready for packet_dot.
//
// A row of K activations is staged in tiles of tile_values<K>. Blocks of 32 values are 36 floats apart, so
// that 16-byte reads of neighbouring lanes meet no bank twice.
#pragma once
#include "common/packet.h"

// Who a thread is.
struct thread_place {
  uint index;      // in the threadgroup
  uint simdgroup;  // of the threadgroup
  uint lane;       // of the simdgroup
};
METAL_FUNC thread_place place_of(uint index, uint simdgroup, uint lane) {
  thread_place at;
  at.index = index;
  at.simdgroup = simdgroup;
  at.lane = lane;
  return at;
}

// Sizes for a row of K: the values of a tile, and the floats and sums that hold one.
template <int K> struct tile_of {
  enum : int { VALUES = K <= 5120 ? K : 4096, FLOATS = (VALUES + 31) / 32 * 36, SUMS = (VALUES + 15) / 16 };
};

// A staged tile.
struct staged_x {
  threadgroup float* values;    // tile_of<K>::FLOATS
  threadgroup float2* sums;     // tile_of<K>::SUMS: sum and excess of the values of each packet
  threadgroup float* squares;   // one per simdgroup: sum of the squares of what it has staged
};
METAL_FUNC staged_x staged_at(threadgroup float* values, threadgroup float2* sums, threadgroup float* squares) {
  staged_x at;
  at.values = values;
  at.sums = sums;
  at.squares = squares;
  return at;
}

// 8 activations.
METAL_FUNC void load8(thread float4& a, thread float4& b, const device float* p) {
  a = ((const device float4*)p)[0];
  b = ((const device float4*)p)[1];
}
METAL_FUNC void load8(thread float4& a, thread float4& b, const device bfloat* p) {
  const uint4 v = *(const device uint4*)p;
  a = float4(low_value(v.x, bfloat()), high_value(v.x, bfloat()), low_value(v.y, bfloat()), high_value(v.y, bfloat()));
  b = float4(low_value(v.z, bfloat()), high_value(v.z, bfloat()), low_value(v.w, bfloat()), high_value(v.w, bfloat()));
}

// What one thread of THREADS takes of a tile: chunks t, t + THREADS, ... of 8 values. Of the activations, or of the
// weight of a norm, which can so be asked for before LILY_WAIT. Empty where rows of K are not aligned.
template <int K, int THREADS> struct tile_chunks {
  enum : int {
    ALIGNED = K % 8 == 0,
    COUNT = ALIGNED ? (tile_of<K>::VALUES / 8 + THREADS - 1) / THREADS : 1,
    EVEN = K == tile_of<K>::VALUES && K % (8 * THREADS) == 0
  };
  float4 low[COUNT];
  float4 high[COUNT];
};

template <int K, int THREADS>
METAL_FUNC bool has_chunk(uint c, uint first) {
  return tile_chunks<K, THREADS>::EVEN || (c < uint(tile_of<K>::VALUES / 8) && first + 8 * c < uint(K));
}

// The chunks of the tile that starts at value `first` of a row.
template <int K, int THREADS, typename T>
METAL_FUNC void load_chunks(thread tile_chunks<K, THREADS>& to, const device T* row, uint first, uint t) {
  typedef tile_chunks<K, THREADS> chunks;
  if (chunks::ALIGNED) {
    UNROLL for (int j = 0; j < chunks::COUNT; j++) {
      const uint c = j * THREADS + t;
      to.low[j] = float4(0.0f);
      to.high[j] = float4(0.0f);
      if (has_chunk<K, THREADS>(c, first)) load8(to.low[j], to.high[j], row + first + 8 * c);
    }
  }
}

// Stages chunks of activations for rows of format F; with NORM they are multiplied by those of `norm` first.
// Returns the sum of the squares of this thread's activations, for the norm. Whole simdgroups take part alike.
template <typename F, int K, int THREADS, bool NORM>
METAL_FUNC float stage_chunks(staged_x to, const thread tile_chunks<K, THREADS>& x,
                              const thread tile_chunks<K, THREADS>& norm, uint first, uint t) {
  enum : int { V = lane_values<F, K>::COUNT, SHARED = V >= 8 ? V / 8 : 1 };  // chunks of one packet
  float squares = 0.0f;
  UNROLL for (int j = 0; j < tile_chunks<K, THREADS>::COUNT; j++) {
    const uint c = j * THREADS + t;
    float4 a = x.low[j], b = x.high[j];
    if (NORM) {
      squares += dot(a, a) + dot(b, b);
      a *= norm.low[j];
      b *= norm.high[j];
    }
    float sum = sum4(a) + sum4(b), excess = prepare8<F>(a, b, c);
    if (F::QUANTISED) {  // neighbouring threads hold the values of one packet
      sum += simd_shuffle_xor(sum, 1);
      excess += simd_shuffle_xor(excess, 1);
      if (V == 32) {
        sum += simd_shuffle_xor(sum, 2);
        excess += simd_shuffle_xor(excess, 2);
      }
    }
    if (has_chunk<K, THREADS>(c, first)) {
      threadgroup float4* d = (threadgroup float4*)(to.values + c / 4 * 36 + c % 4 * 8);
      d[0] = a;
      d[1] = b;
      if (F::QUANTISED && c % SHARED == 0) to.sums[c / SHARED] = float2(sum, excess);
    }
  }
  return squares;
}

// The same value by value, for rows of plain numbers that are not aligned.
template <int K, int THREADS, bool NORM, typename T>
METAL_FUNC float stage_values(staged_x to, const device T* x, const device float* norm, uint first, uint t) {
  float squares = 0.0f;
  for (uint i = t; i < uint(tile_of<K>::VALUES) && first + i < uint(K); i += THREADS) {
    float v = float(x[first + i]);
    if (NORM) {
      squares += v * v;
      v *= norm[first + i];
    }
    to.values[i / 32 * 36 + i % 32] = v;
  }
  return squares;
}

// Leaves a simdgroup's sum of squares for inverse_rms; before the barrier that ends the staging.
template <bool NORM> METAL_FUNC void publish_squares(staged_x to, float squares, thread_place at) {
  if (NORM) {
    const float sum = simd_sum(squares);
    if (at.lane == 0) to.squares[at.simdgroup] = sum;
  }
}
// 1 / sqrt(mean(x^2) + eps) of the row that has been staged.
template <int K, int SIMDGROUPS> METAL_FUNC float inverse_rms(staged_x from, float eps) {
  float sum = 0.0f;
  UNROLL for (int i = 0; i < SIMDGROUPS; i++) sum += from.squares[i];
  return rsqrt(sum * (1.0f / K) + eps);
}

// Stages the tile that starts at value `first`, by the whole threadgroup, and passes the barrier that makes it
// readable. `norm_chunks` are those of this tile. `squares` is this thread's sum so far and grows.
template <typename F, int K, int SIMDGROUPS, bool NORM, typename T>
METAL_FUNC void stage_tile(staged_x to, const device T* x, const device float* norm,
                           const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, uint first, thread float& squares,
                           thread_place at) {
  if (tile_chunks<K, SIMDGROUPS * 32>::ALIGNED) {
    tile_chunks<K, SIMDGROUPS * 32> chunks;
    load_chunks(chunks, x, first, at.index);
    squares += stage_chunks<F, K, SIMDGROUPS * 32, NORM>(to, chunks, norm_chunks, first, at.index);
  } else {
    squares += stage_values<K, SIMDGROUPS * 32, NORM>(to, x, norm, first, at.index);
  }
  publish_squares<NORM>(to, squares, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The activations of the packet that starts at value `index` of the tile.
template <typename F, int V> METAL_FUNC void read_staged(thread lane_x<V>& to, staged_x from, uint index) {
  const threadgroup float* p = from.values + index / 32 * 36 + index % 32;
  if (V % 4 == 0) {
    UNROLL for (int i = 0; i < V / 4; i++) {
      const float4 v = ((const threadgroup float4*)p)[i];
      to.x[4 * i] = v.x;
      to.x[4 * i + 1] = v.y;
      to.x[4 * i + 2] = v.z;
      to.x[4 * i + 3] = v.w;
    }
  } else {
    to.x[0] = p[0];
  }
  if (F::QUANTISED) {
    const float2 s = from.sums[index / V];
    to.sum = s.x;
    to.excess = s.y;
  }
}

// The same straight from device memory, for a row that one simdgroup alone reads.
template <typename F, int V, typename T> METAL_FUNC void read_direct(thread lane_x<V>& to, const device T* p) {
  if (V % 8 == 0) {
    float sum = 0.0f, excess = 0.0f;
    UNROLL for (int c = 0; c < V / 8; c++) {
      float4 a, b;
      load8(a, b, p + 8 * c);
      sum += sum4(a) + sum4(b);
      excess += prepare8<F>(a, b, c);
      to.x[8 * c] = a.x;
      to.x[8 * c + 1] = a.y;
      to.x[8 * c + 2] = a.z;
      to.x[8 * c + 3] = a.w;
      to.x[8 * c + 4] = b.x;
      to.x[8 * c + 5] = b.y;
      to.x[8 * c + 6] = b.z;
      to.x[8 * c + 7] = b.w;
    }
    to.sum = sum;
    to.excess = excess;
  } else {
    UNROLL for (int i = 0; i < V; i++) to.x[i] = float(p[i]);
  }
}
