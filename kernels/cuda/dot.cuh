// dot8 of kernels/common/packet.h for NVIDIA: two nibbles per instruction become floats.
//
// Nibbles i and i + 4 of a word, or-ed into 0x4300, are two bf16 numbers 128 + q in one word. Shifted up, the
// low one is a float; the high one is used as a float as it stands, and its tail (0x4300 + q_i) / 65536 of a
// unit is linear in q_i: it goes into the activation of nibble i and into the excess. That is 2.4 core
// instructions per weight where converting each nibble takes 3 (measured on an H200: 3.6 against 3.0 TB/s).
#define LILY_NATIVE_DOT8 1

// (v & 0x000f000f) | 0x43004300 in one instruction.
static __device__ __forceinline__ uint nibble_pair(uint v) {
  uint r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "n"(0x000f000f), "n"(0x43004300));
  return r;
}

static __device__ __forceinline__ float prep8(float4& a, float4& b) {
  a -= b * (1.0f / 65536);
  return 128.0f * ((a.x + a.y) + (a.z + a.w)) + (128.0f + 17152.0f / 65536) * ((b.x + b.y) + (b.z + b.w));
}

static __device__ __forceinline__ float dot8(uint v, const float* x, float a) {
  const uint p0 = nibble_pair(v), p1 = nibble_pair(v >> 4), p2 = nibble_pair(v >> 8), p3 = nibble_pair(v >> 12);
  a = fma(__uint_as_float(p0 << 16), x[0], a);
  a = fma(__uint_as_float(p0), x[4], a);
  a = fma(__uint_as_float(p1 << 16), x[1], a);
  a = fma(__uint_as_float(p1), x[5], a);
  a = fma(__uint_as_float(p2 << 16), x[2], a);
  a = fma(__uint_as_float(p2), x[6], a);
  a = fma(__uint_as_float(p3 << 16), x[3], a);
  a = fma(__uint_as_float(p3), x[7], a);
  return a;
}
