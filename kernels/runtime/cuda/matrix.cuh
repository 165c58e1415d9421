// Matrices of 8 by 8 that a simdgroup holds.
//
// Lane l holds row l / 4, columns 2 (l % 4) and the next: the map of mma, not Apple's. The registers hold
// the matrix or, where `transposed`, its transpose; after inlining that is known at compile time.
#pragma once

template <class T, int C, int R> struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "only 8x8");
  vec<T, 2> elements;
  bool transposed;
  simdgroup_matrix() = default;
  LILY_FUNC explicit simdgroup_matrix(T v) : elements(v), transposed(false) {}
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R = C> LILY_FUNC simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  return simdgroup_matrix<T, C, R>(v);
}

// The leading dimension is even, and every row starts at two elements.
template <class T>
LILY_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong ld = 8, ulong2 origin = ulong2(0),
                              bool transpose = false) {
  const uint lane = lane_<uint>();
  p += (uint(origin.y) + lane / 4) * uint(ld) + uint(origin.x) + lane % 4 * 2;
  m.elements = *(const vec<T, 2>*)p;
  m.transposed = transpose;
}
template <class T>
LILY_FUNC void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, ulong ld = 8, ulong2 origin = ulong2(0)) {
  const uint lane = lane_<uint>();
  p += (uint(origin.y) + lane / 4) * uint(ld) + uint(origin.x) + lane % 4 * 2;
  *(vec<T, 2>*)p = m.elements;
}

template <class T> LILY_FUNC vec<T, 2> transpose_(vec<T, 2> v) {
  const uint in = as_type<uint>(v);
  uint out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(in));
  return as_type<vec<T, 2>>(out);
}

// The upper half of an m16n8k8; the lower half is zero and nobody reads it.
#pragma nv_diag_suppress 550
#define LILY_MULTIPLY(T, name)                                                                                  \
  LILY_FUNC void multiply_8x8_(float2& d, vec<T, 2> a, vec<T, 2> b, float2 c) {                                 \
    float unused0, unused1;                                                                                     \
    asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name ".f32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%8,%9,%9};"  \
        : "=f"(d.x), "=f"(d.y), "=f"(unused0), "=f"(unused1)                                                    \
        : "r"(as_type<uint>(a)), "r"(0u), "r"(as_type<uint>(b)), "f"(c.x), "f"(c.y), "f"(0.0f));                \
  }
LILY_MULTIPLY(bfloat, "bf16") LILY_MULTIPLY(half, "f16")
#undef LILY_MULTIPLY
#pragma nv_diag_default 550

template <class T>
LILY_FUNC void simdgroup_multiply_accumulate(simdgroup_float8x8& d, const simdgroup_matrix<T, 8, 8>& a,
                                             const simdgroup_matrix<T, 8, 8>& b, const simdgroup_float8x8& c) {
  multiply_8x8_(d.elements, a.transposed ? transpose_(a.elements) : a.elements,
                b.transposed ? b.elements : transpose_(b.elements), c.elements);
  d.transposed = false;
}

// Element (row, column) of a matrix of floats, from whichever lane holds it.
LILY_FUNC float element_(const simdgroup_float8x8& m, uint row, uint column) {
  const uint r = m.transposed ? column : row, c = m.transposed ? row : column;
  const float even = __shfl_sync(ALL_LANES_, m.elements.x, r * 4 + c / 2);
  const float odd = __shfl_sync(ALL_LANES_, m.elements.y, r * 4 + c / 2);
  return c % 2 == 0 ? even : odd;
}
// In exact f32: slow.
LILY_FUNC void simdgroup_multiply_accumulate(simdgroup_float8x8& d, const simdgroup_float8x8& a,
                                             const simdgroup_float8x8& b, const simdgroup_float8x8& c) {
  const uint row = lane_<uint>() / 4, column = lane_<uint>() % 4 * 2;
  float2 sum = c.elements;
  for (uint k = 0; k < 8; k++) {
    const float left = element_(a, row, k);
    sum.x = fma(left, element_(b, k, column), sum.x);
    sum.y = fma(left, element_(b, k, column + 1), sum.y);
  }
  d.elements = sum;
  d.transposed = false;
}
