// The tiles of kernels/common/tile.h for NVIDIA: fragments of mma.m16n8k16. Measured on an H200, a grouped
// 4-bit product reaches 220 TFLOP/s through them, and 109 through 8x8 simdgroup matrices.
#define LILY_NATIVE_TILE 1

template <class T> struct tile_a {
  uint words[4];
};
template <class T> struct tile_b {
  uint words[4];
};
// sums[2 * j + i]: rows lane / 4 + 8 i, columns 8 j + 2 (lane % 4) and the next.
struct tile_c {
  float2 sums[4];
};

LILY_FUNC uint shared_address_(const void* p) { return uint(__cvta_generic_to_shared(p)); }
LILY_FUNC void load_fragments_(uint* words, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address_(p))
               : "memory");
}
LILY_FUNC void load_fragments_transposed_(uint* words, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address_(p))
               : "memory");
}
template <class T> LILY_FUNC void tile_load_a(tile_a<T>& t, const T* p, uint ld) {
  const uint lane = lane_<uint>();
  load_fragments_(t.words, p + lane % 16 * ld + lane / 16 * 8);
}
template <class T> LILY_FUNC void tile_load_b(tile_b<T>& t, const T* p, uint ld) {
  const uint lane = lane_<uint>();
  load_fragments_transposed_(t.words, p + lane % 16 * ld + lane / 16 * 8);
}
template <class T> LILY_FUNC void tile_load_bt(tile_b<T>& t, const T* p, uint ld) {
  const uint lane = lane_<uint>();
  load_fragments_(t.words, p + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8);
}

LILY_FUNC void tile_zero(tile_c& c) {
  _Pragma("unroll") for (int i = 0; i < 4; i++) c.sums[i] = float2(0.0f);
}
LILY_FUNC void tile_store(const tile_c& c, float* p, uint ld) {
  const uint lane = lane_<uint>();
  _Pragma("unroll") for (int j = 0; j < 2; j++) {
    _Pragma("unroll") for (int i = 0; i < 2; i++) {
      *(float2*)(p + (lane / 4 + i * 8) * ld + j * 8 + lane % 4 * 2) = c.sums[j * 2 + i];
    }
  }
}

LILY_FUNC uint tile_row(uint lane) { return lane / 4; }
LILY_FUNC uint tile_column(uint lane) { return lane % 4 * 2; }
LILY_FUNC float2 tile_pair(const tile_c& c, int i, int j) { return c.sums[j * 2 + i]; }
LILY_FUNC void tile_set_pair(tile_c& c, int i, int j, float2 v) { c.sums[j * 2 + i] = v; }
LILY_FUNC float tile_max_of_row(float v) {
  v = max(v, simd_shuffle_xor(v, ushort(1)));
  return max(v, simd_shuffle_xor(v, ushort(2)));
}
LILY_FUNC float tile_sum_of_row(float v) {
  v += simd_shuffle_xor(v, ushort(1));
  return v + simd_shuffle_xor(v, ushort(2));
}
// Sums and left operands have the same map.
template <class T> LILY_FUNC void tile_from_sums(tile_a<T>& a, const tile_c& c) {
  _Pragma("unroll") for (int i = 0; i < 4; i++) a.words[i] = as_type<uint>(vec<T, 2>(c.sums[i]));
}

// Both halves of a word at once: by way of vectors of bfloat they are taken apart and put together again.
LILY_FUNC uint tile_words(float2 v) { return bfloat_pair_(v.x, v.y); }
LILY_FUNC uint2 tile_words(float4 v) { return uint2(bfloat_pair_(v.x, v.y), bfloat_pair_(v.z, v.w)); }
template <> LILY_FUNC void tile_from_sums(tile_a<bfloat>& a, const tile_c& c) {
  _Pragma("unroll") for (int i = 0; i < 4; i++) a.words[i] = tile_words(c.sums[i]);
}

#define LILY_TILE_MMA(T, name)                                                                              \
  LILY_FUNC void tile_mma(tile_c& c, const tile_a<T>& a, const tile_b<T>& b) {                              \
    _Pragma("unroll") for (int j = 0; j < 2; j++) {                                                         \
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                   \
                   ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                                \
                   : "+f"(c.sums[j * 2].x), "+f"(c.sums[j * 2].y), "+f"(c.sums[j * 2 + 1].x),               \
                     "+f"(c.sums[j * 2 + 1].y)                                                              \
                   : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[j * 2]), \
                     "r"(b.words[j * 2 + 1]));                                                              \
    }                                                                                                       \
  }
LILY_TILE_MMA(bfloat, "bf16") LILY_TILE_MMA(half, "f16")
#undef LILY_TILE_MMA

// ---- f32: exact products, slow -----------------------------------------------------------------------------------
// Lane l holds rows (of A) or columns (of B) l / 4 and l / 4 + 8 at k = 4 (l % 4) .. + 3.
template <> struct tile_a<float> {
  float4 values[2];
};
template <> struct tile_b<float> {
  float4 values[2];
};
template <> LILY_FUNC void tile_load_a(tile_a<float>& t, const float* p, uint ld) {
  const uint lane = lane_<uint>();
  t.values[0] = *(const float4*)(p + lane / 4 * ld + lane % 4 * 4);
  t.values[1] = *(const float4*)(p + (lane / 4 + 8) * ld + lane % 4 * 4);
}
template <> LILY_FUNC void tile_load_bt(tile_b<float>& t, const float* p, uint ld) {
  const uint lane = lane_<uint>();
  t.values[0] = *(const float4*)(p + lane / 4 * ld + lane % 4 * 4);
  t.values[1] = *(const float4*)(p + (lane / 4 + 8) * ld + lane % 4 * 4);
}
template <> LILY_FUNC void tile_load_b(tile_b<float>& t, const float* p, uint ld) {
  const uint lane = lane_<uint>();
  const float* q = p + lane % 4 * 4 * ld + lane / 4;
  t.values[0] = float4(q[0], q[ld], q[2 * ld], q[3 * ld]);
  t.values[1] = float4(q[8], q[ld + 8], q[2 * ld + 8], q[3 * ld + 8]);
}
LILY_FUNC float4 from_lane_(float4 v, uint lane) {
  return float4(__shfl_sync(ALL_LANES_, v.x, lane), __shfl_sync(ALL_LANES_, v.y, lane),
                __shfl_sync(ALL_LANES_, v.z, lane), __shfl_sync(ALL_LANES_, v.w, lane));
}
LILY_FUNC float add_dot_(float sum, float4 a, float4 b) {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
LILY_FUNC void tile_mma(tile_c& c, const tile_a<float>& a, const tile_b<float>& b) {
  const uint lane = lane_<uint>(), column = lane % 4 * 2;
  // A loop in earnest: only lanes depend on k, and all at once would not fit the registers.
  _Pragma("unroll 1") for (uint k = 0; k < 4; k++) {
    const float4 above = from_lane_(a.values[0], lane / 4 * 4 + k), below = from_lane_(a.values[1], lane / 4 * 4 + k);
    _Pragma("unroll") for (int j = 0; j < 2; j++) {
      const float4 left = from_lane_(b.values[j], column * 4 + k), right = from_lane_(b.values[j], column * 4 + 4 + k);
      float2& upper = c.sums[j * 2];
      float2& lower = c.sums[j * 2 + 1];
      upper = float2(add_dot_(upper.x, above, left), add_dot_(upper.y, above, right));
      lower = float2(add_dot_(lower.x, below, left), add_dot_(lower.y, below, right));
    }
  }
}
LILY_FUNC float2 from_lane_(float2 v, uint lane) {
  return float2(__shfl_sync(ALL_LANES_, v.x, lane), __shfl_sync(ALL_LANES_, v.y, lane));
}
template <> LILY_FUNC void tile_from_sums(tile_a<float>& a, const tile_c& c) {
  const uint lane = lane_<uint>(), from = lane / 4 * 4 + lane % 2 * 2;
  const bool right = lane % 4 >= 2;  // columns 8 to 15
  _Pragma("unroll") for (int i = 0; i < 2; i++) {
    const float2 l0 = from_lane_(c.sums[i], from), l1 = from_lane_(c.sums[i], from + 1);
    const float2 r0 = from_lane_(c.sums[2 + i], from), r1 = from_lane_(c.sums[2 + i], from + 1);
    a.values[i] = right ? float4(r0, r1) : float4(l0, l1);
  }
}
