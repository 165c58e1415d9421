// dequant8 of kernels/common/matmul.h for NVIDIA: nibbles become bf16 two at a time.
//
// A pair of nibbles or-ed into 0x4300 is a pair of bf16 numbers 128 + q, exactly; 128 is taken off, and
// one fma with the scale and the bias rounds once.
#define LILY_NATIVE_DEQUANT8 1

LILY_FUNC uint dequantised_pair_(uint v, uint scales, uint biases) {
  uint pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair) : "r"(v), "n"(0x000f000f), "n"(0x43004300));
#if __CUDA_ARCH__ >= 900
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(0x43004300u));
#else
  // Times 1 minus 128.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(pair), "r"(0x3f803f80u), "r"(0xc300c300u));
#endif
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(pair), "r"(scales), "r"(biases));
  return pair;
}
// G: scale_bias<bfloat>
template <class G> LILY_FUNC void dequant8(bfloat* to, uint v, G group) {
  const uint scales = __byte_perm(group.bits, 0, 0x1010), biases = __byte_perm(group.bits, 0, 0x3232);
  const uint p0 = dequantised_pair_(v, scales, biases), p1 = dequantised_pair_(v >> 4, scales, biases);
  const uint p2 = dequantised_pair_(v >> 8, scales, biases), p3 = dequantised_pair_(v >> 12, scales, biases);
  // A pair holds values i and i + 4.
  *(uint4*)to = uint4(__byte_perm(p0, p1, 0x5410), __byte_perm(p2, p3, 0x5410), __byte_perm(p0, p1, 0x7632),
                      __byte_perm(p2, p3, 0x7632));
}
