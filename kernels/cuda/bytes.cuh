// The primitives of kernels/common/digits.h for NVIDIA, on its tensor cores.
#ifdef LILY_ROW_TILES
#define LILY_NATIVE_ROWS 1

LILY_FUNC void multiply_bytes(int* sums, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
LILY_FUNC uint permute_bytes(uint low, uint high, uint which) { return __byte_perm(low, high, which); }
#endif
