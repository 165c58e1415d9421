// simdgroup_matrix: 8x8 matrices spread over a simdgroup, in the layout of Apple's GPUs.
#pragma once

namespace metal {

template <class T, int COLS, int ROWS> struct simdgroup_matrix {
  static_assert(COLS == 8 && ROWS == 8, "only 8x8");
  static_assert(__is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat), "float, half or bfloat");
  vec<T, 2> elements_;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T v) : elements_(v) {}
  vec<T, 2>& thread_elements() { return elements_; }
  const vec<T, 2>& thread_elements() const { return elements_; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

// A lane holds (row, col) and (row, col + 1).
inline uint matrix_row_(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint matrix_col_(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
inline uint matrix_lane_(uint row, uint col) { return ((row & 4) + (col & 4) / 2) * 4 + row % 4 * 2 + col / 2 % 2; }

template <class T, int COLS, int ROWS = COLS> inline simdgroup_matrix<T, COLS, ROWS> make_filled_simdgroup_matrix(T v) {
  return simdgroup_matrix<T, COLS, ROWS>(v);
}

// The element pair that this lane holds (or, transposed, would hold of the stored matrix) is read as one.
template <class T> inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, lily::ptr<const T> p, ulong row_elements = 8,
                                              ulong2 origin = ulong2(0), bool transpose = false) {
  const uint lane = lily::lane(), row = matrix_row_(lane), col = matrix_col_(lane);
  const auto first = p + (origin.y * row_elements + origin.x);
  (void)*lily::ptr<const vec<T, 2>>(first + (row * row_elements + col));
  m.elements_.x = transpose ? first[col * row_elements + row] : first[row * row_elements + col];
  m.elements_.y = transpose ? first[(col + 1) * row_elements + row] : first[row * row_elements + col + 1];
}
template <class T> inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, lily::ptr<T> p, ulong row_elements = 8,
                                               ulong2 origin = ulong2(0), bool transpose = false) {
  const uint lane = lily::lane(), row = matrix_row_(lane), col = matrix_col_(lane);
  const auto first = p + (origin.y * row_elements + origin.x);
  (void)*lily::ptr<vec<T, 2>>(first + (row * row_elements + col));
  first[transpose ? col * row_elements + row : row * row_elements + col] = m.elements_.x;
  first[transpose ? (col + 1) * row_elements + row : row * row_elements + col + 1] = m.elements_.y;
}

// d = a * b + c, products and sums in float, k ascending.
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                          LILY_SITE("simdgroup_multiply_accumulate")) {
  struct shown {
    float a[2], b[2];
  };
  const shown mine = {{float(a.elements_.x), float(a.elements_.y)}, {float(b.elements_.x), float(b.elements_.y)}};
  const lily::exchange<shown> lanes(mine, at);
  const uint lane = lily::lane(), row = matrix_row_(lane), col = matrix_col_(lane);
  float x = float(c.elements_.x), y = float(c.elements_.y);
  for (uint k = 0; k < 8; k++) {
    const float left = lanes[matrix_lane_(row, k)].a[k & 1];
    const shown right = lanes[matrix_lane_(k, col)];
    x += left * right.b[0];
    y += left * right.b[1];
  }
  d.elements_ = vec<D, 2>(D(x), D(y));
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, LILY_SITE("simdgroup_multiply")) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>(D(0.0f)), at);
}

}  // namespace metal
