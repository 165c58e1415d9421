// The primitives of kernels/common/digits.h, laid out over the lanes as NVIDIA's mma.m16n8k32: so what runs on the tensor
// cores there is tested here.
#pragma once

#ifdef LILY_ROW_TILES
#define LILY_NATIVE_ROWS 1

namespace metal {

struct byte_operands_ {
  uint a[4], b[2];
};

inline void multiply_bytes(int* sums, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1, LILY_SITE("multiply_bytes")) {
  const lily::exchange<byte_operands_> lanes({{a0, a1, a2, a3}, {b0, b1}}, at);
  const uint g = lily::lane() / 4, q = lily::lane() % 4;
  for (uint column = 0; column < 2; column++) {
    for (uint holder = 0; holder < 4; holder++) {  // of values 4 holder .. 4 holder + 3 and 16 + 4 holder ..
      const byte_operands_ left = lanes[4 * g + holder], right = lanes[4 * (2 * q + column) + holder];
      for (uint half = 0; half < 2; half++) {
        for (uint shift = 0; shift < 32; shift += 8) {
          const int b = (signed char)(right.b[half] >> shift);
          sums[column] += int((left.a[2 * half] >> shift) & 0xff) * b;
          sums[2 + column] += int((left.a[2 * half + 1] >> shift) & 0xff) * b;
        }
      }
    }
  }
}

inline uint permute_bytes(uint low, uint high, uint which) {
  const ulong both = ulong(high) << 32 | low;
  uint bytes = 0;
  for (uint i = 0; i < 4; i++) bytes |= uint(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}

}  // namespace metal
#endif
