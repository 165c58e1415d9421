// Packets: the values of one matrix row that a lane loads at once, and their dot product with activations.
//
// q * x needs q as a number. Shifting each field of a word down costs as much as the product, so fields of
// 2, 4 and 8 bits are masked where they stand and converted there: float(v & 0xf0) = 16 q. The activations
// are multiplied by the inverse power of two once (prepare), exactly, and serve every row.
#pragma once
#include "common/format.h"

// V consecutive values of one row, as stored.
template <typename F, int V> struct packet {
  enum : int { WORDS = (V * F::BITS + 31) / 32 };
  uint words[WORDS];
};

// N words in loads of up to 16 bytes; p is aligned to the largest power of two that divides 4 N, up to 16.
template <int N> METAL_FUNC void load_words(thread uint* to, const device uint* p) {
  if (N % 4 == 0) {
    UNROLL for (int i = 0; i < N / 4; i++) {
      const uint4 v = ((const device uint4*)p)[i];
      to[4 * i] = v.x;
      to[4 * i + 1] = v.y;
      to[4 * i + 2] = v.z;
      to[4 * i + 3] = v.w;
    }
  } else if (N % 2 == 0) {
    UNROLL for (int i = 0; i < N / 2; i++) {
      const uint2 v = ((const device uint2*)p)[i];
      to[2 * i] = v.x;
      to[2 * i + 1] = v.y;
    }
  } else {
    UNROLL for (int i = 0; i < N; i++) to[i] = p[i];
  }
}

// The V quantised values from `index` on of a row; V * BITS and index * BITS are multiples of 32.
template <int BITS, int GROUP, typename S, int V>
METAL_FUNC void load_packet(thread packet<affine<BITS, GROUP, S>, V>& to, const device uint* row, uint index) {
  load_words<packet<affine<BITS, GROUP, S>, V>::WORDS>(to.words, row + index * BITS / 32);
}
METAL_FUNC uint bits_of(bfloat v) { return uint(as_type<ushort>(v)); }
METAL_FUNC uint bits_of(half v) { return uint(as_type<ushort>(v)); }
METAL_FUNC uint bits_of(float v) { return as_type<uint>(v); }
// The V plain values from `index` on of a row; a single one, or 16 bytes at a multiple of 16 bytes.
template <typename T, int V>
METAL_FUNC void load_packet(thread packet<dense<T>, V>& to, const device T* row, uint index) {
  if (V == 1) to.words[0] = bits_of(row[index]);
  else load_words<packet<dense<T>, V>::WORDS>(to.words, (const device uint*)(row + index));
}

// Field i of a bit stream of BITS-bit fields; i is a constant once loops are unrolled.
template <int BITS> METAL_FUNC uint field(const thread uint* words, int i) {
  const int word = i * BITS / 32, shift = i * BITS % 32;
  uint v = words[word] >> shift;
  if (shift + BITS > 32) v |= words[word + 1] << (32 - shift);
  return v & ((1u << BITS) - 1u);
}

METAL_FUNC float low_value(uint v, bfloat) { return as_type<float>(v << 16); }
METAL_FUNC float high_value(uint v, bfloat) { return as_type<float>(v & 0xffff0000u); }
METAL_FUNC float low_value(uint v, half) { return float(as_type<half>(ushort(v & 0xffffu))); }
METAL_FUNC float high_value(uint v, half) { return float(as_type<half>(ushort(v >> 16))); }

// The numbers of a packet: q for quantised values, the values themselves for plain ones.
template <int BITS, int GROUP, typename S, int V>
METAL_FUNC void unpack(thread float* to, const thread packet<affine<BITS, GROUP, S>, V>& p) {
  UNROLL for (int i = 0; i < V; i++) to[i] = float(field<BITS>(p.words, i));
}
template <typename T, int V> METAL_FUNC void unpack(thread float* to, const thread packet<dense<T>, V>& p) {
  if (V == 1) {
    to[0] = low_value(p.words[0], T());
  } else {
    UNROLL for (int i = 0; i < V / 2; i++) {
      to[2 * i] = low_value(p.words[i], T());
      to[2 * i + 1] = high_value(p.words[i], T());
    }
  }
}
template <int V> METAL_FUNC void unpack(thread float* to, const thread packet<dense<float>, V>& p) {
  UNROLL for (int i = 0; i < V; i++) to[i] = as_type<float>(p.words[i]);
}

// ---- products -----------------------------------------------------------------------------------------------

METAL_FUNC float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// Primitive: prep8 makes 8 activations ready for dot8, which adds 8 nibbles (low first) times them to `a`.
// prep8 returns what the eight products together come out too large by: 0 here; a machine's own form may
// trade a constant for fewer instructions.
#ifndef LILY_NATIVE_DOT8
METAL_FUNC float prep8(thread float4& a, thread float4& b) {
  a *= float4(1.0f, 1.0f / 16, 1.0f / 256, 1.0f / 4096);
  b *= float4(1.0f / 65536, 1.0f / 1048576, 1.0f / 16777216, 1.0f / 268435456);
  return 0.0f;
}
METAL_FUNC float dot8(uint v, const thread float* x, float a) {
  a = fma(float(v & 0x0000000fu), x[0], a);
  a = fma(float(v & 0x000000f0u), x[1], a);
  a = fma(float(v & 0x00000f00u), x[2], a);
  a = fma(float(v & 0x0000f000u), x[3], a);
  a = fma(float(v & 0x000f0000u), x[4], a);
  a = fma(float(v & 0x00f00000u), x[5], a);
  a = fma(float(v & 0x0f000000u), x[6], a);
  a = fma(float(v & 0xf0000000u), x[7], a);
  return a;
}
#endif

// Makes the activations 8 c .. 8 c + 7 of a row ready for packet_dot with values of format F; returns what
// their products come out too large by.
template <typename F> METAL_FUNC float prepare8(thread float4& a, thread float4& b, uint c) {
  if (!F::QUANTISED) return 0.0f;
  if (F::BITS == 4) return prep8(a, b);
  if (F::BITS == 8) {
    const float4 places = float4(1.0f, 1.0f / 256, 1.0f / 65536, 1.0f / 16777216);
    a *= places;
    b *= places;
  }
  if (F::BITS == 2) {
    const float word = c % 2 == 0 ? 1.0f : 1.0f / 65536;
    a *= float4(1.0f, 1.0f / 4, 1.0f / 16, 1.0f / 64) * word;
    b *= float4(1.0f / 256, 1.0f / 1024, 1.0f / 4096, 1.0f / 16384) * word;
  }
  return 0.0f;
}

// The activations that belong to a lane's packet. For quantised values: prepared, with their plain sum and
// with the excess of the products.
template <int V> struct lane_x {
  float x[V];
  float sum;
  float excess;
};

// acc + dot of a packet with its activations; the order is that of the values.
template <int BITS, int GROUP, typename S, int V>
METAL_FUNC float packet_dot(const thread packet<affine<BITS, GROUP, S>, V>& p, scale_bias<S> group,
                            const thread lane_x<V>& x, float acc) {
  float d = 0.0f;
  if (BITS == 4) {
    UNROLL for (int w = 0; w < V / 8; w++) d = dot8(p.words[w], x.x + 8 * w, d);
  } else if (BITS == 2 || BITS == 8) {
    UNROLL for (int i = 0; i < V; i++) {
      const int place = i * BITS % 32;
      d = fma(float(p.words[i * BITS / 32] & (((1u << BITS) - 1u) << place)), x.x[i], d);
    }
  } else {
    UNROLL for (int i = 0; i < V; i++) d = fma(float(field<BITS>(p.words, i)), x.x[i], d);
  }
  return acc + scale_of(group) * (d - x.excess) + bias_of(group) * x.sum;
}
template <typename T, int V>
METAL_FUNC float packet_dot(const thread packet<dense<T>, V>& p, no_side, const thread lane_x<V>& x, float acc) {
  float w[V];
  unpack(w, p);
  UNROLL for (int i = 0; i < V; i++) acc = fma(w[i], x.x[i], acc);
  return acc;
}

// How many values a lane takes at a time in a row of K: 16 bytes, or 8 where the row is short or 16 bytes do
// not divide it evenly among 32 lanes; 32 values of 3, 5 and 6 bits; one plain value where rows are not
// aligned.
template <typename F, int K> struct lane_values {
  enum : int {
    WIDE = 128 / F::BITS < 32 ? 128 / F::BITS : 32,
    NARROW = K < 32 * WIDE || (K % (32 * WIDE) != 0 && K % (16 * WIDE) == 0),
    PACKED = F::BITS == 4 || F::BITS == 2 ? (NARROW ? 16 : 32) : F::BITS == 8 ? 16 : 32,
    COUNT = F::QUANTISED ? PACKED : K % WIDE == 0 ? WIDE : 1
  };
};
