// Rows of a 4-bit matrix times one row of activations in whole numbers, for row_block.h and moe/routed_down.h, where the
// machine multiplies tiles of bytes (LILY_NATIVE_ROWS). Its primitives:
//
//   multiply_bytes  sums += A B, A 16x32 of unsigned bytes, B 32x8 of signed ones. Lane 4 g + q holds of A row g, values
//                   4 q .. 4 q + 3 and 16 + 4 q .. in a0 and a2, of row g + 8 the same in a1 and a3; of B column g, the
//                   same values, in b0 and b1; of the sums those of columns 2 q and 2 q + 1, row g, then row g + 8
//   permute_bytes   four of the eight bytes of low (0 to 3) and high (4 to 7): those that the nibbles of `which` name
//
// The product of a weight q (0 to 15) and an activation is a product of whole numbers: an activation is
// x = unit * (d0 + 256 d1 + 65536 d2) with three signed digits and one power of two per 64 values, 22 bits below the
// largest of them, so about as exact as f32. multiply_bytes takes 16 rows of weights, as bytes masked out of the words
// where they stand, with eight columns, and adds up exactly: columns 0 to 2 are the digits of the first 64 of 128 values,
// 4 to 6 those of the second 64, each zero in the lanes that hold the other half's weights. So every group has sums of
// its own, in the lanes that hold its scale. On NVIDIA 0.7 instructions per weight, where dot8 (cuda/dot.cuh) takes 2.4
// and as much again of the rest.
//
// A lane (g = lane / 4, q = lane % 4) holds words 4 q .. 4 q + 3 of every 16 of rows g and g + 8. The primitive wants
// other values in a lane, but a sum of whole numbers may take them in any order as long as both operands agree.
//
// Digits lie in threadgroup memory as [128 values][q][digit][even, odd nibbles][word]: what a lane reads is 32 bytes.
#pragma once
#include "common/format.h"

#ifdef LILY_NATIVE_ROWS
// The formats whose products are made so.
template <typename F> struct digit_format {
  enum : bool { TAKEN = is_same_v<F, affine<4, 64, bfloat>> || is_same_v<F, affine<4, 128, bfloat>> };
};

enum : int { DIGIT_WORDS = 96, ZERO_WORDS = 8 };  // of 128 values; what idle lanes read

// Eight activations, the 8 c .. 8 c + 7 of a row, as digits. The eight lanes of 64 values call together, and
// lanes without values too, with real = false. sums[i]: sum of 64 values, and a sixteenth of their unit.
METAL_FUNC void store_digits(threadgroup uint* digits, threadgroup float2* sums, float4 a, float4 b, uint c, bool real) {
  float most = max(max(max(abs(a.x), abs(a.y)), max(abs(a.z), abs(a.w))),
                   max(max(abs(b.x), abs(b.y)), max(abs(b.z), abs(b.w))));
  float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  UNROLL for (int m = 1; m < 8; m *= 2) {
    most = max(most, simd_shuffle_xor(most, ushort(m)));
    sum += simd_shuffle_xor(sum, ushort(m));
  }
  // most < 2^(exponent - 126); whole numbers up to 2^22. What is below 2^-126 of that range counts as 0.
  const uint exponent = max(as_type<uint>(most) >> 23, 26u);
  const float scale = as_type<float>((275u - exponent) << 23), unit = as_type<float>((exponent - 25u) << 23);
  // The low bits of 1.5 * 2^23 + n are n. Half of a digit's range on top of each makes the digits signed.
  const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  uint n[8];
  UNROLL for (int i = 0; i < 8; i++) {
    n[i] = (as_type<uint>(fma(x[i], scale, 12582912.0f)) - (0x4b400000u - 0x00808080u)) ^ 0x00808080u;
  }
  if (!real) return;
  threadgroup uint* to = digits + (c / 4) * uint(DIGIT_WORDS / 4) + c % 4;
  UNROLL for (int odd = 0; odd < 2; odd++) {
    const uint n0 = n[odd], n1 = n[odd + 2], n2 = n[odd + 4], n3 = n[odd + 6];
    const uint low01 = permute_bytes(n0, n1, 0x5140), low23 = permute_bytes(n2, n3, 0x5140);
    const uint high01 = permute_bytes(n0, n1, 0x0062), high23 = permute_bytes(n2, n3, 0x0062);
    to[odd * 4] = permute_bytes(low01, low23, 0x5410);
    to[8 + odd * 4] = permute_bytes(low01, low23, 0x7632);
    to[16 + odd * 4] = permute_bytes(high01, high23, 0x5410);
  }
  if (c % 8 == 0) sums[c / 8] = float2(sum, unit);
}

// A lane's words and sides of CHUNKS times 128 values of 16 rows.
template <int CHUNKS> struct digit_weights {
  uint4 words[CHUNKS][2];
  uint sides[CHUNKS][2];
};

// Asks for values 128 chunk and on of a lane's two rows of K values, g and g + 8 of the tile.
template <int K, typename F, int CHUNKS>
METAL_FUNC void ask_weights(thread digit_weights<CHUNKS>& to, matrix_rows<F> row0, matrix_rows<F> row1, uint chunk,
                            uint lane) {
  const uint q = lane % 4;
  UNROLL for (int h = 0; h < 2; h++) {
    const device uint4* w = (const device uint4*)(h == 0 ? row0.words : row1.words) + chunk * 4 + q;
    const device typename F::side_t* s = (h == 0 ? row0.sides : row1.sides) + (chunk * 128 + q * 32) / F::GROUP;
    UNROLL for (int i = 0; i < CHUNKS; i++) {
      to.words[i][h] = w[i * 4];
      to.sides[i][h] = s[i * 128 / F::GROUP].bits;
    }
  }
}

// y[h] += this lane's share of the products of its two rows; the four lanes of a quad together have them all.
template <int CHUNKS>
METAL_FUNC void multiply_digits(thread float* y, const thread digit_weights<CHUNKS>& weights,
                                const threadgroup uint* digits, const threadgroup uint* zeros,
                                const threadgroup float2* sums, uint chunk, uint lane) {
  constexpr uint EVEN = 0x0f0f0f0f, ODD = 0xf0f0f0f0;
  const uint q = lane % 4, column = lane / 4;
  const bool busy = column / 4 == q / 2 && column % 4 < 3;
  const threadgroup uint* from = busy ? digits + (chunk * 4 + q) * uint(DIGIT_WORDS / 4) + column % 4 * 8 : zeros;
  const uint stride = busy ? DIGIT_WORDS : 0;
  // Sums that come back: digits 0 and 1 of a half in its first lane, digit 2 in its second.
  const bool second = q % 2 == 1;
  const float place0 = second ? 65536.0f : 1.0f, place1 = second ? 0.0f : 256.0f;
  UNROLL for (int i = 0; i < CHUNKS; i++) {
    const uint4 even = *(const threadgroup uint4*)(from + i * stride);
    const uint4 odd = *(const threadgroup uint4*)(from + i * stride + 4);
    const uint4 u = weights.words[i][0], v = weights.words[i][1];
    int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
    multiply_bytes(low, u.x & EVEN, v.x & EVEN, u.y & EVEN, v.y & EVEN, even.x, even.y);
    multiply_bytes(high, u.x & ODD, v.x & ODD, u.y & ODD, v.y & ODD, odd.x, odd.y);
    multiply_bytes(low, u.z & EVEN, v.z & EVEN, u.w & EVEN, v.w & EVEN, even.z, even.w);
    multiply_bytes(high, u.z & ODD, v.z & ODD, u.w & ODD, v.w & ODD, odd.z, odd.w);
    const float2 group = sums[(chunk + i) * 2 + q / 2];
    const float sum = second ? 0.0f : group.x;
    UNROLL for (int h = 0; h < 2; h++) {
      const uint side = weights.sides[i][h];
      // Odd nibbles stand four bits up.
      const float f0 = float(low[2 * h] * 16 + high[2 * h]), f1 = float(low[2 * h + 1] * 16 + high[2 * h + 1]);
      y[h] = fma(as_type<float>(side << 16) * group.y, fma(f1, place1, f0 * place0), y[h]);
      y[h] = fma(as_type<float>(side & 0xffff0000u), sum, y[h]);
    }
  }
}

// Over the quad: its first lane holds the products of rows g and g + 8.
METAL_FUNC void sum_quad(thread float* y) {
  UNROLL for (int m = 1; m < 4; m *= 2) {
    y[0] += simd_shuffle_xor(y[0], ushort(m));
    y[1] += simd_shuffle_xor(y[1], ushort(m));
  }
}
#endif
