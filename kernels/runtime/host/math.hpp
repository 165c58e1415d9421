// Functions of <metal_math>, <metal_integer>, <metal_relational>, <metal_geometric>.
//
// `fast::` and `precise::` are the same here. max and min hand on a NaN, where Metal drops it: poison must
// not vanish.
#pragma once

namespace metal {

// A float function for float, half and their vectors, plain and in both named spaces.
#define LILY_SPREAD_1(name)                                                                          \
  inline half name(half x) { return half(name(float(x))); }                                          \
  template <class T, int N> inline vec<T, N> name(vec<T, N> v) requires is_floating_<T> {            \
    return each_<T, N>([&](int i) { return name(v[i]); });                                           \
  }                                                                                                  \
  namespace fast { using metal::name; }                                                              \
  namespace precise { using metal::name; }
#define LILY_SPREAD_2(name)                                                                          \
  inline half name(half x, half y) { return half(name(float(x), float(y))); }                        \
  template <class T, int N> inline vec<T, N> name(vec<T, N> v, vec<T, N> u) requires is_floating_<T> { \
    return each_<T, N>([&](int i) { return name(v[i], u[i]); });                                     \
  }                                                                                                  \
  namespace fast { using metal::name; }                                                              \
  namespace precise { using metal::name; }
#define LILY_SPREAD_3(name)                                                                          \
  inline half name(half x, half y, half z) { return half(name(float(x), float(y), float(z))); }      \
  template <class T, int N> inline vec<T, N> name(vec<T, N> v, vec<T, N> u, vec<T, N> t) requires is_floating_<T> { \
    return each_<T, N>([&](int i) { return name(v[i], u[i], t[i]); });                               \
  }                                                                                                  \
  namespace fast { using metal::name; }                                                              \
  namespace precise { using metal::name; }

#define LILY_MATH_1(name, ...) inline float name(float x) { return __VA_ARGS__; } LILY_SPREAD_1(name)
#define LILY_MATH_2(name, ...) inline float name(float x, float y) { return __VA_ARGS__; } LILY_SPREAD_2(name)
#define LILY_MATH_3(name, ...) inline float name(float x, float y, float z) { return __VA_ARGS__; } LILY_SPREAD_3(name)
LILY_MATH_1(exp, __builtin_expf(x)) LILY_MATH_1(exp2, __builtin_exp2f(x)) LILY_MATH_1(exp10, __builtin_powf(10.0f, x))
LILY_MATH_1(log, __builtin_logf(x)) LILY_MATH_1(log2, __builtin_log2f(x)) LILY_MATH_1(log10, __builtin_log10f(x))
LILY_MATH_1(sqrt, __builtin_sqrtf(x)) LILY_MATH_1(rsqrt, 1.0f / __builtin_sqrtf(x))
LILY_MATH_1(sin, __builtin_sinf(x)) LILY_MATH_1(cos, __builtin_cosf(x)) LILY_MATH_1(tan, __builtin_tanf(x))
LILY_MATH_1(sinh, __builtin_sinhf(x)) LILY_MATH_1(cosh, __builtin_coshf(x)) LILY_MATH_1(tanh, __builtin_tanhf(x))
LILY_MATH_1(erf, __builtin_erff(x)) LILY_MATH_1(floor, __builtin_floorf(x)) LILY_MATH_1(ceil, __builtin_ceilf(x))
LILY_MATH_1(trunc, __builtin_truncf(x)) LILY_MATH_1(round, __builtin_roundf(x)) LILY_MATH_1(rint, __builtin_rintf(x))
LILY_MATH_1(fabs, __builtin_fabsf(x)) LILY_MATH_1(abs, __builtin_fabsf(x)) LILY_MATH_1(fract, x - __builtin_floorf(x))
LILY_MATH_1(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
LILY_MATH_2(max, x > y || x != x ? x : y) LILY_MATH_2(min, x < y || x != x ? x : y)
LILY_MATH_2(fmax, max(x, y)) LILY_MATH_2(fmin, min(x, y))
LILY_MATH_2(pow, __builtin_powf(x, y)) LILY_MATH_2(fmod, __builtin_fmodf(x, y)) LILY_MATH_2(atan2, __builtin_atan2f(x, y))
LILY_MATH_2(copysign, __builtin_copysignf(x, y)) LILY_MATH_2(divide, x / y) LILY_MATH_2(step, y < x ? 0.0f : 1.0f)
LILY_MATH_3(fma, __builtin_fmaf(x, y, z)) LILY_MATH_3(clamp, min(max(x, y), z)) LILY_MATH_3(mix, x + (y - x) * z)
LILY_MATH_1(saturate, clamp(x, 0.0f, 1.0f))
#undef LILY_MATH_1
#undef LILY_MATH_2
#undef LILY_MATH_3
#undef LILY_SPREAD_1
#undef LILY_SPREAD_2
#undef LILY_SPREAD_3

inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline float sincos(float x, float& c) { c = cos(x); return sin(x); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

#define LILY_INTEGER(T)                                                     \
  constexpr T max(T a, T b) { return a > b ? a : b; }                       \
  constexpr T min(T a, T b) { return a < b ? a : b; }                       \
  constexpr T clamp(T v, T a, T b) { return min(max(v, a), b); }            \
  constexpr T abs(T a) { return a < T(0) ? T(-a) : a; }                     \
  constexpr T popcount(T a) { return T(__builtin_popcountll((unsigned long long)a & (~0ull >> (64 - 8 * sizeof(T))))); } \
  constexpr T clz(T a) { return a ? T(__builtin_clzll((unsigned long long)a << (64 - 8 * sizeof(T)))) : T(8 * sizeof(T)); } \
  constexpr T ctz(T a) { return a ? T(__builtin_ctzll((unsigned long long)a)) : T(8 * sizeof(T)); }
LILY_INTEGER(char) LILY_INTEGER(uchar) LILY_INTEGER(short) LILY_INTEGER(ushort) LILY_INTEGER(int) LILY_INTEGER(uint)
LILY_INTEGER(long) LILY_INTEGER(ulong)
#undef LILY_INTEGER
#define LILY_SPREAD(name)                                                                                       \
  template <class T, int N> inline vec<T, N> name(vec<T, N> a, vec<T, N> b) requires is_integral_v<T> {         \
    return each_<T, N>([&](int i) { return name(a[i], b[i]); });                                                \
  }
LILY_SPREAD(max) LILY_SPREAD(min)
#undef LILY_SPREAD

inline uint extract_bits(uint v, uint at, uint n) { return n == 0 ? 0 : n == 32 ? v : (v >> at) & ((1u << n) - 1); }
inline uint insert_bits(uint v, uint in, uint at, uint n) {
  const uint mask = n == 0 ? 0 : (n == 32 ? ~0u : (1u << n) - 1) << at;
  return (v & ~mask) | ((in << at) & mask);
}
inline uint reverse_bits(uint v) { return __builtin_bitreverse32(v); }
inline uint rotate(uint v, uint n) { return n % 32 ? (v << n % 32) | (v >> (32 - n % 32)) : v; }
inline uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
inline int mulhi(int a, int b) { return int((long(a) * b) >> 32); }

template <class T> inline T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N> inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  return each_<T, N>([&](int i) { return c[i] ? b[i] : a[i]; });
}
template <int N> inline bool any(vec<bool, N> v) {
  bool r = false;
  for (int i = 0; i < N; i++) r |= v[i];
  return r;
}
template <int N> inline bool all(vec<bool, N> v) {
  bool r = true;
  for (int i = 0; i < N; i++) r &= v[i];
  return r;
}
inline bool any(bool v) { return v; }
inline bool all(bool v) { return v; }

template <class T, int N> inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum = T(sum + a[i] * b[i]);
  return sum;
}
template <class T, int N> inline T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> inline T length(vec<T, N> a) { return sqrt(dot(a, a)); }

}  // namespace metal
