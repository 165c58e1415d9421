// Scalar and vector types of the Metal Shading Language.
#pragma once

// Stays out of the way of the kernels' own `#ifndef`s.
#define LILY_HOST 1
#define METAL_FUNC inline
#define LILY_WAIT()
#define LILY_TRIGGER()
#define LILY_PUBLISH()
#define LILY_READ_PUBLISHED(pointer) (*(pointer))
#define LILY_FENCE()

#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX ((half)65504.0f)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;

// ---- traits --------------------------------------------------------------------------------------------------
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool B> using bool_constant = integral_constant<bool, B>;
template <class A, class B> constexpr bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <bool C, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> {
  typedef T type;
};
template <bool C, class T = void> using enable_if_t = typename enable_if<C, T>::type;
template <bool C, class A, class B> struct conditional {
  typedef A type;
};
template <class A, class B> struct conditional<false, A, B> {
  typedef B type;
};
template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;
template <class T> using remove_cv_t = __remove_cv(T);
template <class T> using remove_reference_t = __remove_reference_t(T);
template <class T> struct identity_ {
  typedef T type;
};
template <class T> using same_ = typename identity_<T>::type;  // no deduction from this argument
template <class T> constexpr bool is_integral_v = __is_integral(T);
template <class T> constexpr bool is_floating_ = __is_same(T, float) || __is_same(T, half);

// ---- bfloat --------------------------------------------------------------------------------------------------
// Converts implicitly to float and only explicitly from it, to nearest even. Arithmetic stays bfloat.
struct bfloat {
  ushort bits;
  bfloat() = default;
  constexpr explicit bfloat(float f) : bits(0) {
    const uint u = __builtin_bit_cast(uint, f);
    bits = ushort((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  constexpr operator float() const { return __builtin_bit_cast(float, uint(bits) << 16); }
  constexpr bfloat operator-() const { return bfloat(-float(*this)); }
};
#define LILY_BFLOAT(o)                                                                                         \
  constexpr bfloat operator o(bfloat a, bfloat b) { return bfloat(float(a) o float(b)); }                       \
  constexpr bfloat& operator o##=(bfloat& a, bfloat b) { return a = a o b; }
LILY_BFLOAT(+) LILY_BFLOAT(-) LILY_BFLOAT(*) LILY_BFLOAT(/)
#undef LILY_BFLOAT

template <class To, class From> constexpr To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, from);
}

// ---- vectors ---------------------------------------------------------------------------------------------------
// Swizzles of several letters arrive as calls (`v.xy_()`) and are values only.
template <class T, int N> struct vec;
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  constexpr vec(T s) : x(s), y(s) {}
  constexpr vec(T a, T b) : x(a), y(b) {}
  template <class U> constexpr explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
  T& operator[](uint i) { return (&x)[i]; }
  const T& operator[](uint i) const { return (&x)[i]; }
  const vec yx_() const { return {y, x}; }
  const vec xy_() const { return *this; }
  const vec xx_() const { return {x, x}; }
  const vec yy_() const { return {y, y}; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  constexpr vec(T s) : x(s), y(s), z(s) {}
  constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
  constexpr vec(vec<T, 2> a, T c) : x(a.x), y(a.y), z(c) {}
  template <class U> constexpr explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
  T& operator[](uint i) { return (&x)[i]; }
  const T& operator[](uint i) const { return (&x)[i]; }
  const vec<T, 2> xy_() const { return {x, y}; }
  const vec<T, 2> yz_() const { return {y, z}; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  constexpr vec(T s) : x(s), y(s), z(s), w(s) {}
  constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  constexpr vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  constexpr vec(vec<T, 2> a, T c, T d) : x(a.x), y(a.y), z(c), w(d) {}
  constexpr vec(vec<T, 3> a, T d) : x(a.x), y(a.y), z(a.z), w(d) {}
  template <class U> constexpr explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  T& operator[](uint i) { return (&x)[i]; }
  const T& operator[](uint i) const { return (&x)[i]; }
  const vec<T, 2> xy_() const { return {x, y}; }
  const vec<T, 2> zw_() const { return {z, w}; }
  const vec<T, 2> yz_() const { return {y, z}; }
  const vec<T, 2> xz_() const { return {x, z}; }
  const vec<T, 2> yw_() const { return {y, w}; }
  const vec<T, 3> xyz_() const { return {x, y, z}; }
  const vec wzyx_() const { return {w, z, y, x}; }
};

// f(i) for each element.
template <class R, int N, class F> inline vec<R, N> each_(F f) {
  vec<R, N> r;
  if constexpr (N >= 1) r.x = f(0);
  if constexpr (N >= 2) r.y = f(1);
  if constexpr (N >= 3) r.z = f(2);
  if constexpr (N >= 4) r.w = f(3);
  return r;
}

#define LILY_BINARY(o, R)                                                                                     \
  template <class T, int N> inline vec<R, N> operator o(vec<T, N> a, vec<T, N> b) {                            \
    return each_<R, N>([&](int i) { return R(a[i] o b[i]); });                                                 \
  }                                                                                                            \
  template <class T, int N> inline vec<R, N> operator o(vec<T, N> a, same_<T> s) { return a o vec<T, N>(s); }  \
  template <class T, int N> inline vec<R, N> operator o(same_<T> s, vec<T, N> a) { return vec<T, N>(s) o a; }
#define LILY_ARITHMETIC(o)                                                                                       \
  LILY_BINARY(o, T)                                                                                              \
  template <class T, int N> inline vec<T, N>& operator o##=(vec<T, N>& a, vec<T, N> b) { return a = a o b; }     \
  template <class T, int N> inline vec<T, N>& operator o##=(vec<T, N>& a, same_<T> s) { return a = a o s; }
LILY_ARITHMETIC(+) LILY_ARITHMETIC(-) LILY_ARITHMETIC(*) LILY_ARITHMETIC(/) LILY_ARITHMETIC(%)
LILY_ARITHMETIC(&) LILY_ARITHMETIC(|) LILY_ARITHMETIC(^) LILY_ARITHMETIC(<<) LILY_ARITHMETIC(>>)
LILY_BINARY(==, bool) LILY_BINARY(!=, bool) LILY_BINARY(<, bool)
LILY_BINARY(>, bool) LILY_BINARY(<=, bool) LILY_BINARY(>=, bool)
#undef LILY_ARITHMETIC
#undef LILY_BINARY
#define LILY_UNARY(o)                                                     \
  template <class T, int N> inline vec<T, N> operator o(vec<T, N> a) {    \
    return each_<T, N>([&](int i) { return T(o a[i]); });                 \
  }
LILY_UNARY(-) LILY_UNARY(~) LILY_UNARY(!)
#undef LILY_UNARY

#define LILY_VECTORS(T)    \
  typedef vec<T, 2> T##2;  \
  typedef vec<T, 3> T##3;  \
  typedef vec<T, 4> T##4;
LILY_VECTORS(bool) LILY_VECTORS(char) LILY_VECTORS(uchar) LILY_VECTORS(short) LILY_VECTORS(ushort)
LILY_VECTORS(int) LILY_VECTORS(uint) LILY_VECTORS(long) LILY_VECTORS(ulong)
LILY_VECTORS(half) LILY_VECTORS(bfloat) LILY_VECTORS(float)
#undef LILY_VECTORS

template <class T, size_t N> struct array {
  T elements_[N];
  T& operator[](size_t i) { return elements_[i]; }
  const T& operator[](size_t i) const { return elements_[i]; }
};

template <class T> struct numeric_limits {
  static constexpr bool whole_ = __is_integral(T);
  static constexpr T max() {
    if constexpr (!whole_) return T(__is_same(T, half) ? 65504.0f : __is_same(T, float) ? FLT_MAX : 3.38953139e38f);
    else return T(-1) < T(0) ? T((1ull << (8 * sizeof(T) - 1)) - 1) : T(-1);
  }
  static constexpr T lowest() {
    if constexpr (!whole_) return T(-float(max()));
    else return T(-1) < T(0) ? T(1ull << (8 * sizeof(T) - 1)) : T(0);
  }
  static constexpr T min() {
    if constexpr (!whole_) return T(__is_same(T, half) ? 6.103515625e-05f : FLT_MIN);
    else return lowest();
  }
  static constexpr T infinity() { return T(INFINITY); }
};

}  // namespace metal
