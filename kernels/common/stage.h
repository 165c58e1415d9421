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

// Stages the tile that starts at value `first` for rows of format F; thread t of THREADS takes part, whole
// simdgroups alike. With NORM every activation is multiplied by its weight of the norm first. Returns the
// sum of the squares of the activations that this thread has staged, for the norm.
template <typename F, int K, int THREADS, bool NORM, typename T>
METAL_FUNC float stage(staged_x to, const device T* x, const device float* norm, uint first, uint t) {
  enum : int { TILE = tile_of<K>::VALUES, V = lane_values<F, K>::COUNT };
  float squares = 0.0f;
  if (K % 8 == 0) {
    for (uint base = 0; base < uint(TILE / 8); base += THREADS) {
      const uint c = base + t;
      const bool mine = c < uint(TILE / 8) && first + 8 * c < uint(K);
      float4 a = float4(0.0f), b = float4(0.0f);
      if (mine) {
        load8(a, b, x + first + 8 * c);
        if (NORM) {
          float4 na, nb;
          load8(na, nb, norm + first + 8 * c);
          squares += dot(a, a) + dot(b, b);
          a *= na;
          b *= nb;
        }
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
      if (mine) {
        threadgroup float4* d = (threadgroup float4*)(to.values + c / 4 * 36 + c % 4 * 8);
        d[0] = a;
        d[1] = b;
        if (F::QUANTISED && c % (V / 8) == 0) to.sums[c / (V / 8)] = float2(sum, excess);
      }
    }
  } else {
    for (uint i = t; i < uint(TILE) && first + i < uint(K); i += THREADS) {
      float v = float(x[first + i]);
      if (NORM) {
        squares += v * v;
        v *= norm[first + i];
      }
      to.values[i / 32 * 36 + i % 32] = v;
    }
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
