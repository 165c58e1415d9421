// Rows of a 4-bit matrix times one row of activations on the tensor cores, for kernels/common/row_block.h.
//
// The product of a weight q (0 to 15) and an activation is a product of whole numbers: an activation is
// x = unit * (d0 + 256 d1 + 65536 d2) with three signed digits and one power of two per 64 values, 22 bits below the
// largest of them, so about as exact as f32. mma.m16n8k32 multiplies 16 rows of weights, as bytes masked out of the
// words where they stand, with eight columns, and adds up exactly: columns 0 to 2 are the digits of the first 64 of 128
// values, 4 to 6 those of the second 64, each zero in the lanes that hold the other half's weights. So every group has
// sums of its own, in the lanes that hold its scale. 0.7 instructions per weight, where dot8 (dot.cuh) takes 2.4 and as
// much again of the rest.
//
// A lane (g = lane / 4, q = lane % 4) holds words 4 q .. 4 q + 3 of every 16 of rows g and g + 8. The instruction wants
// other k in a lane, but a sum of whole numbers may take them in any order as long as both operands agree.
//
// Digits lie in shared memory as [128 values][q][digit][even, odd nibbles][word]: what a lane reads is 32 bytes.
#define LILY_NATIVE_ROWS 1

enum : int { DIGIT_WORDS_ = 96, ZERO_WORDS_ = 8 };      // of 128 values; what idle lanes read

// sums += rows of weights times digits.
LILY_FUNC void multiply_bytes_(int (&sums)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Eight activations, the 8 c .. 8 c + 7 of a row, as digits. The eight lanes of 64 values call together, and those
// without values too, with zeros and real = false. sums[i]: sum of 64 values, and a sixteenth of their unit.
LILY_FUNC void store_digits_(uint* digits, float2* sums, float4 a, float4 b, uint c, bool real) {
  float most = max(max(max(abs(a.x), abs(a.y)), max(abs(a.z), abs(a.w))),
                   max(max(abs(b.x), abs(b.y)), max(abs(b.z), abs(b.w))));
  float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  _Pragma("unroll") for (int m = 1; m < 8; m *= 2) {
    most = max(most, __shfl_xor_sync(ALL_LANES_, most, m));
    sum += __shfl_xor_sync(ALL_LANES_, sum, m);
  }
  // most < 2^(exponent - 126); whole numbers up to 2^22. What is below 2^-126 of that range counts as 0.
  const uint exponent = max(__float_as_uint(most) >> 23, 26u);
  const float scale = __uint_as_float((275u - exponent) << 23), unit = __uint_as_float((exponent - 25u) << 23);
  // The low bits of 1.5 * 2^23 + n are n. Half of a digit's range on top of each makes the digits signed.
  const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  uint n[8];
  _Pragma("unroll") for (int i = 0; i < 8; i++) {
    n[i] = (__float_as_uint(fma(x[i], scale, 12582912.0f)) - (0x4b400000u - 0x00808080u)) ^ 0x00808080u;
  }
  if (!real) return;
  uint* to = digits + (c / 4) * (DIGIT_WORDS_ / 4) + c % 4;
  _Pragma("unroll") for (int odd = 0; odd < 2; odd++) {
    const uint n0 = n[odd], n1 = n[odd + 2], n2 = n[odd + 4], n3 = n[odd + 6];
    const uint low01 = __byte_perm(n0, n1, 0x5140), low23 = __byte_perm(n2, n3, 0x5140);
    const uint high01 = __byte_perm(n0, n1, 0x0062), high23 = __byte_perm(n2, n3, 0x0062);
    to[odd * 4] = __byte_perm(low01, low23, 0x5410);
    to[8 + odd * 4] = __byte_perm(low01, low23, 0x7632);
    to[16 + odd * 4] = __byte_perm(high01, high23, 0x5410);
  }
  if (c % 8 == 0) sums[c / 8] = float2(sum, unit);
}

// A lane's words and sides of CHUNKS times 128 values of 16 rows.
template <int CHUNKS> struct digit_weights_ {
  uint4 words[CHUNKS][2];
  uint sides[CHUNKS][2];
};

// Asks for values 128 chunk and on of a lane's two rows of K values, g and g + 8 of the tile: where their words and their
// sides begin.
template <int K, int GROUP, int CHUNKS>
LILY_FUNC void ask_weights_(digit_weights_<CHUNKS>& to, const uint* const (&words)[2], const uint* const (&sides)[2],
                            uint chunk) {
  const uint q = threadIdx.x % 4;
  _Pragma("unroll") for (int h = 0; h < 2; h++) {
    const uint4* w = (const uint4*)words[h] + chunk * 4 + q;
    const uint* s = sides[h] + (chunk * 128 + q * 32) / GROUP;
    _Pragma("unroll") for (int i = 0; i < CHUNKS; i++) {
      to.words[i][h] = w[i * 4];
      to.sides[i][h] = s[i * 128 / GROUP];
    }
  }
}

// y[h] += this lane's share of the products of its two rows; the four lanes of a quad together have them all.
template <int CHUNKS>
LILY_FUNC void multiply_digits_(float* y, const digit_weights_<CHUNKS>& weights, const uint* digits, const uint* zeros,
                                const float2* sums, uint chunk) {
  constexpr uint EVEN = 0x0f0f0f0f, ODD = 0xf0f0f0f0;
  const uint lane = lane_<uint>(), q = lane % 4, column = lane / 4;
  const bool busy = column / 4 == q / 2 && column % 4 < 3;
  const uint* from = busy ? digits + (chunk * 4 + q) * (DIGIT_WORDS_ / 4) + column % 4 * 8 : zeros;
  const uint stride = busy ? DIGIT_WORDS_ : 0;
  // Sums that come back: digits 0 and 1 of a half in its first lane, digit 2 in its second.
  const bool second = q % 2 == 1;
  const float place0 = second ? 65536.0f : 1.0f, place1 = second ? 0.0f : 256.0f;
  _Pragma("unroll") for (int i = 0; i < CHUNKS; i++) {
    const uint4 even = *(const uint4*)(from + i * stride), odd = *(const uint4*)(from + i * stride + 4);
    const uint4 u = weights.words[i][0], v = weights.words[i][1];
    int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
    multiply_bytes_(low, u.x & EVEN, v.x & EVEN, u.y & EVEN, v.y & EVEN, even.x, even.y);
    multiply_bytes_(high, u.x & ODD, v.x & ODD, u.y & ODD, v.y & ODD, odd.x, odd.y);
    multiply_bytes_(low, u.z & EVEN, v.z & EVEN, u.w & EVEN, v.w & EVEN, even.z, even.w);
    multiply_bytes_(high, u.z & ODD, v.z & ODD, u.w & ODD, v.w & ODD, odd.z, odd.w);
    const float2 group = sums[(chunk + i) * 2 + q / 2];
    const float sum = second ? 0.0f : group.x;
    _Pragma("unroll") for (int h = 0; h < 2; h++) {
      const uint side = weights.sides[i][h];
      // Odd nibbles stand four bits up.
      const float f0 = float(low[2 * h] * 16 + high[2 * h]), f1 = float(low[2 * h + 1] * 16 + high[2 * h + 1]);
      y[h] = fma(__uint_as_float(side << 16) * group.y, fma(f1, place1, f0 * place0), y[h]);
      y[h] = fma(__uint_as_float(side & 0xffff0000u), sum, y[h]);
    }
  }
}

// Over the quad: its first lane holds the products of rows g and g + 8.
LILY_FUNC void sum_quad_(float* y) {
  _Pragma("unroll") for (int m = 1; m < 4; m *= 2) {
    y[0] += __shfl_xor_sync(ALL_LANES_, y[0], m);
    y[1] += __shfl_xor_sync(ALL_LANES_, y[1], m);
  }
}
