// Tensor operations of Metal 4 (<metal_tensor>, <MetalPerformancePrimitives/...>), in the one form that the kernels use:
// both operands in threadgroup memory, the right one transposed, sums in a cooperative tensor of one simdgroup.
//
// As unhelpful as a machine may be: sums start as NaN, lanes hold elements in an order that no machine has, and one
// element of every lane is not valid.
#pragma once

namespace lily {

[[noreturn, gnu::noinline, gnu::cold]] inline void bad_operands(const site& at, const char* what) {
  machine& m = self();
  m.report->kind = fault_kind::DIVERGENCE;
  snprintf(m.report->text, sizeof m.report->text, "operands of %s %s:%u are %s", at.what, at.file, at.line, what);
  stop(m);
}

}  // namespace lily

namespace metal {

// Sizes, the inner one first.
template <class I, size_t RANK> struct dextents;
template <class I> struct dextents<I, 2> {
  I inner, outer;
  constexpr dextents(I i, I o) : inner(i), outer(o) {}
};

struct tensor_inline {};
struct execution_simdgroup {};

// Elements (i, o) at p[i * strides[0] + o * strides[1]].
template <class T, class E, class Tag> struct tensor {
  static_assert(!__is_const(T), "operands of tensor operations may not be const");
  typedef T element_type_;
  lily::ptr<T> first_;
  E extents_;
  array<int32_t, 2> strides_;
  tensor(lily::ptr<T> p, E extents, array<int32_t, 2> strides) : first_(p), extents_(extents), strides_(strides) {}
  T at_(int inner, int outer) const { return first_[inner * strides_[0] + outer * strides_[1]]; }
};

// One lane's share of ROWS x COLUMNS elements.
template <int ROWS, int COLUMNS, class T> struct cooperative_tensor_ {
  enum : int { VALID = ROWS * COLUMNS / 32, CAPACITY = VALID + 1 };
  static_assert(ROWS * COLUMNS % 32 == 0, "whole shares");
  T elements_[CAPACITY];
  cooperative_tensor_() { memset(elements_, lily::POISON, sizeof elements_); }
  ushort get_capacity() const { return CAPACITY; }
  bool is_valid_element(ushort i) const { return i < VALID; }
  T& operator[](ushort i) { return elements_[i]; }
  const T& operator[](ushort i) const { return elements_[i]; }
  // Column, row.
  array<int32_t, 2> get_multidimensional_index(ushort i) const {
    const int element = int(lily::lane()) * VALID + VALID - 1 - i;
    return {element / ROWS, element % ROWS};
  }
};

namespace mpp::tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode what;
  constexpr matmul2d_descriptor(int m, int n, int k, bool left = false, bool right = false, bool relaxed = false,
                                mode what = mode::multiply)
      : m(m), n(n), k(k), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), what(what) {}
};

template <matmul2d_descriptor D, class Scope> struct matmul2d {
  static_assert(!D.transpose_left && D.transpose_right, "the form that the kernels use");
  static_assert(D.m % 16 == 0 && D.n % 16 == 0 && D.k % 16 == 0, "whole fragments");
  static_assert(__is_same(Scope, execution_simdgroup), "the form that the kernels use");

  template <class L, class R, class E> cooperative_tensor_<D.m, D.n, E> get_destination_cooperative_tensor() const {
    static_assert(__is_same(typename L::element_type_, typename R::element_type_), "operands of one type");
    static_assert(__is_same(typename L::element_type_, bfloat) || __is_same(typename L::element_type_, half),
                  "operands of 16 bits");
    static_assert(__is_same(E, float), "sums in float");
    return {};
  }

  // k ascending, in float. All lanes of the simdgroup call with the same operands.
  template <class L, class R>
  void run(L& a, R& b, cooperative_tensor_<D.m, D.n, float>& sums, LILY_SITE("matmul2d")) const {
    struct shown {
      const void *a, *b;
    };
    const lily::exchange<shown> lanes({a.first_.at, b.first_.at}, at);
    const bool same = lanes[0].a == a.first_.at && lanes[0].b == b.first_.at;
    const bool inside = a.extents_.inner >= D.k && a.extents_.outer >= D.m && b.extents_.inner >= D.k &&
                        b.extents_.outer >= D.n;
    if (!same || !inside) lily::bad_operands(at, same ? "smaller than the operation" : "not the same in all lanes");
    for (ushort i = 0; sums.is_valid_element(i); i++) {
      const auto index = sums.get_multidimensional_index(i);
      float sum = D.what == matmul2d_descriptor::mode::multiply ? 0.0f : sums[i];
      for (int k = 0; k < D.k; k++) sum += float(a.at_(k, index[1])) * float(b.at_(k, index[0]));
      sums[i] = sum;
    }
  }
};

}  // namespace mpp::tensor_ops
}  // namespace metal
