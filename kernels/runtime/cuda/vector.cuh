// Vectors of 2, 3 and 4. Swizzles of several letters arrive as calls (`v.xy_()`); they are constant
// values, so that assigning to one does not compile.
#pragma once

template <class T, int N> struct vec;

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  LILY_FUNC vec(T s) : x(s), y(s) {}
  LILY_FUNC vec(T a, T b) : x(a), y(b) {}
  template <class U> LILY_FUNC explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
  LILY_FUNC T& operator[](int i) { return (&x)[i]; }
  LILY_FUNC const T& operator[](int i) const { return (&x)[i]; }
  LILY_FUNC const vec xy_() const { return *this; }
  LILY_FUNC const vec yx_() const { return vec(y, x); }
  LILY_FUNC const vec xx_() const { return vec(x, x); }
  LILY_FUNC const vec yy_() const { return vec(y, y); }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  LILY_FUNC vec(T s) : x(s), y(s), z(s) {}
  LILY_FUNC vec(T a, T b, T c) : x(a), y(b), z(c) {}
  LILY_FUNC vec(vec<T, 2> a, T c) : x(a.x), y(a.y), z(c) {}
  template <class U> LILY_FUNC explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
  LILY_FUNC T& operator[](int i) { return (&x)[i]; }
  LILY_FUNC const T& operator[](int i) const { return (&x)[i]; }
  LILY_FUNC const vec<T, 2> xy_() const { return vec<T, 2>(x, y); }
  LILY_FUNC const vec<T, 2> yz_() const { return vec<T, 2>(y, z); }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  LILY_FUNC vec(T s) : x(s), y(s), z(s), w(s) {}
  LILY_FUNC vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  LILY_FUNC vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  LILY_FUNC vec(vec<T, 2> a, T c, T d) : x(a.x), y(a.y), z(c), w(d) {}
  LILY_FUNC vec(vec<T, 3> a, T d) : x(a.x), y(a.y), z(a.z), w(d) {}
  template <class U>
  LILY_FUNC explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  LILY_FUNC T& operator[](int i) { return (&x)[i]; }
  LILY_FUNC const T& operator[](int i) const { return (&x)[i]; }
  LILY_FUNC const vec<T, 2> xy_() const { return vec<T, 2>(x, y); }
  LILY_FUNC const vec<T, 2> zw_() const { return vec<T, 2>(z, w); }
  LILY_FUNC const vec<T, 2> yz_() const { return vec<T, 2>(y, z); }
  LILY_FUNC const vec<T, 2> xz_() const { return vec<T, 2>(x, z); }
  LILY_FUNC const vec<T, 2> yw_() const { return vec<T, 2>(y, w); }
  LILY_FUNC const vec<T, 3> xyz_() const { return vec<T, 3>(x, y, z); }
  LILY_FUNC const vec wzyx_() const { return vec(w, z, y, x); }
};

// ---- operators ---------------------------------------------------------------------------------------------------
#define LILY_BINARY(o, R)                                                                              \
  template <class T> LILY_FUNC vec<R, 2> operator o(vec<T, 2> a, vec<T, 2> b) {                        \
    return vec<R, 2>(a.x o b.x, a.y o b.y);                                                            \
  }                                                                                                    \
  template <class T> LILY_FUNC vec<R, 3> operator o(vec<T, 3> a, vec<T, 3> b) {                        \
    return vec<R, 3>(a.x o b.x, a.y o b.y, a.z o b.z);                                                 \
  }                                                                                                    \
  template <class T> LILY_FUNC vec<R, 4> operator o(vec<T, 4> a, vec<T, 4> b) {                        \
    return vec<R, 4>(a.x o b.x, a.y o b.y, a.z o b.z, a.w o b.w);                                      \
  }                                                                                                    \
  template <class T, int N> LILY_FUNC vec<R, N> operator o(vec<T, N> a, same_<T> s) {                  \
    return a o vec<T, N>(s);                                                                           \
  }                                                                                                    \
  template <class T, int N> LILY_FUNC vec<R, N> operator o(same_<T> s, vec<T, N> a) {                  \
    return vec<T, N>(s) o a;                                                                           \
  }
#define LILY_ARITHMETIC(o)                                                                             \
  LILY_BINARY(o, T)                                                                                    \
  template <class T, int N> LILY_FUNC vec<T, N>& operator o##=(vec<T, N>& a, vec<T, N> b) {            \
    return a = a o b;                                                                                  \
  }                                                                                                    \
  template <class T, int N> LILY_FUNC vec<T, N>& operator o##=(vec<T, N>& a, same_<T> s) {             \
    return a = a o vec<T, N>(s);                                                                       \
  }
LILY_ARITHMETIC(+) LILY_ARITHMETIC(-) LILY_ARITHMETIC(*) LILY_ARITHMETIC(/) LILY_ARITHMETIC(%)
LILY_ARITHMETIC(&) LILY_ARITHMETIC(|) LILY_ARITHMETIC(^) LILY_ARITHMETIC(<<) LILY_ARITHMETIC(>>)
LILY_BINARY(==, bool) LILY_BINARY(!=, bool) LILY_BINARY(<, bool)
LILY_BINARY(>, bool) LILY_BINARY(<=, bool) LILY_BINARY(>=, bool)
#undef LILY_ARITHMETIC
#undef LILY_BINARY
#define LILY_UNARY(o)                                                                                  \
  template <class T> LILY_FUNC vec<T, 2> operator o(vec<T, 2> a) { return vec<T, 2>(o a.x, o a.y); }   \
  template <class T> LILY_FUNC vec<T, 3> operator o(vec<T, 3> a) {                                     \
    return vec<T, 3>(o a.x, o a.y, o a.z);                                                             \
  }                                                                                                    \
  template <class T> LILY_FUNC vec<T, 4> operator o(vec<T, 4> a) {                                     \
    return vec<T, 4>(o a.x, o a.y, o a.z, o a.w);                                                      \
  }
LILY_UNARY(-) LILY_UNARY(~)
#undef LILY_UNARY

#define LILY_VECTORS(T)   \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
LILY_VECTORS(bool) LILY_VECTORS(char) LILY_VECTORS(uchar) LILY_VECTORS(short) LILY_VECTORS(ushort)
LILY_VECTORS(int) LILY_VECTORS(uint) LILY_VECTORS(long) LILY_VECTORS(ulong)
LILY_VECTORS(half) LILY_VECTORS(bfloat) LILY_VECTORS(float)
#undef LILY_VECTORS

// ---- two conversions at once -----------------------------------------------------------------------------------
LILY_FUNC uint bfloat_pair_(float low, float high) {
  uint pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <> template <> LILY_FUNC vec<bfloat, 2>::vec(const vec<float, 2>& v) {
  const uint pair = bfloat_pair_(v.x, v.y);
  x.bits = ushort(pair);
  y.bits = ushort(pair >> 16);
}
template <> template <> LILY_FUNC vec<bfloat, 4>::vec(const vec<float, 4>& v) {
  const uint low = bfloat_pair_(v.x, v.y), high = bfloat_pair_(v.z, v.w);
  x.bits = ushort(low);
  y.bits = ushort(low >> 16);
  z.bits = ushort(high);
  w.bits = ushort(high >> 16);
}
