// Arithmetic functions, for floats and vectors of floats.
#pragma once

// ---- one argument ------------------------------------------------------------------------------------------------
#define LILY_MATH(name, value)                                                                       \
  LILY_FUNC float name(float x) { return value; }                                                    \
  LILY_FUNC float2 name(float2 v) { return float2(name(v.x), name(v.y)); }                           \
  LILY_FUNC float3 name(float3 v) { return float3(name(v.x), name(v.y), name(v.z)); }                \
  LILY_FUNC float4 name(float4 v) { return float4(name(v.x), name(v.y), name(v.z), name(v.w)); }
#define LILY_MATH_ALL                                                                                \
  LILY_MATH(exp, ::expf(x)) LILY_MATH(exp2, ::exp2f(x)) LILY_MATH(log, ::logf(x))                    \
  LILY_MATH(log2, ::log2f(x)) LILY_MATH(sqrt, ::sqrtf(x)) LILY_MATH(sin, ::sinf(x))                  \
  LILY_MATH(cos, ::cosf(x)) LILY_MATH(tanh, ::tanhf(x))
LILY_MATH_ALL
LILY_MATH(rsqrt, ::rsqrtf(x)) LILY_MATH(abs, ::fabsf(x)) LILY_MATH(fabs, ::fabsf(x))
LILY_MATH(floor, ::floorf(x)) LILY_MATH(ceil, ::ceilf(x)) LILY_MATH(trunc, ::truncf(x))
LILY_MATH(round, ::roundf(x)) LILY_MATH(rint, ::rintf(x)) LILY_MATH(erf, ::erff(x))
LILY_MATH(sign, float(x > 0.0f) - float(x < 0.0f))
namespace precise {
LILY_MATH_ALL
LILY_MATH(rsqrt, 1.0f / ::sqrtf(x))
}  // namespace precise
namespace fast {
LILY_MATH(exp, __expf(x)) LILY_MATH(exp2, ::exp2f(x)) LILY_MATH(log, __logf(x)) LILY_MATH(log2, __log2f(x))
LILY_MATH(sqrt, ::sqrtf(x)) LILY_MATH(rsqrt, ::rsqrtf(x)) LILY_MATH(sin, __sinf(x)) LILY_MATH(cos, __cosf(x))
LILY_MATH(tanh, ::tanhf(x))
}  // namespace fast
#undef LILY_MATH
#undef LILY_MATH_ALL

// By their bits: a compiler that is told of no NaN may drop x != x.
LILY_FUNC bool isnan(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }
LILY_FUNC bool isinf(float x) { return (__float_as_uint(x) & 0x7fffffffu) == 0x7f800000u; }
LILY_FUNC bool isfinite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u; }

// ---- several arguments -------------------------------------------------------------------------------------------
#define LILY_EACH(T, name)                                                                                     \
  LILY_FUNC T##2 name(T##2 a, T##2 b) { return T##2(name(a.x, b.x), name(a.y, b.y)); }                         \
  LILY_FUNC T##3 name(T##3 a, T##3 b) { return T##3(name(a.x, b.x), name(a.y, b.y), name(a.z, b.z)); }         \
  LILY_FUNC T##4 name(T##4 a, T##4 b) {                                                                        \
    return T##4(name(a.x, b.x), name(a.y, b.y), name(a.z, b.z), name(a.w, b.w));                               \
  }
#define LILY_ORDER(T)                                                     \
  LILY_FUNC T max(T a, T b) { return a > b ? a : b; }                     \
  LILY_FUNC T min(T a, T b) { return a < b ? a : b; }                     \
  LILY_FUNC T clamp(T v, T low, T high) { return min(max(v, low), high); } \
  LILY_FUNC T select(T no, T yes, bool which) { return which ? yes : no; }
LILY_ORDER(short) LILY_ORDER(ushort) LILY_ORDER(int) LILY_ORDER(uint) LILY_ORDER(long) LILY_ORDER(ulong)
#undef LILY_ORDER
LILY_FUNC float max(float a, float b) { return ::fmaxf(a, b); }
LILY_FUNC float min(float a, float b) { return ::fminf(a, b); }
LILY_FUNC float clamp(float v, float low, float high) { return min(max(v, low), high); }
LILY_FUNC float select(float no, float yes, bool which) { return which ? yes : no; }
LILY_FUNC float fmax(float a, float b) { return ::fmaxf(a, b); }
LILY_FUNC float fmin(float a, float b) { return ::fminf(a, b); }
LILY_FUNC float pow(float a, float b) { return ::powf(a, b); }
LILY_FUNC float fmod(float a, float b) { return ::fmodf(a, b); }
LILY_EACH(float, max) LILY_EACH(float, min) LILY_EACH(int, max) LILY_EACH(int, min)
LILY_EACH(uint, max) LILY_EACH(uint, min)
#undef LILY_EACH
LILY_FUNC int abs(int x) { return x < 0 ? -x : x; }
LILY_FUNC float mix(float a, float b, float t) { return a + (b - a) * t; }

LILY_FUNC float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
LILY_FUNC float2 fma(float2 a, float2 b, float2 c) { return float2(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)); }
LILY_FUNC float4 fma(float4 a, float4 b, float4 c) {
  return float4(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y), fma(a.z, b.z, c.z), fma(a.w, b.w, c.w));
}
LILY_FUNC float dot(float2 a, float2 b) { return fma(a.y, b.y, a.x * b.x); }
LILY_FUNC float dot(float3 a, float3 b) { return fma(a.z, b.z, fma(a.y, b.y, a.x * b.x)); }
LILY_FUNC float dot(float4 a, float4 b) { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, a.x * b.x))); }

// ---- bits --------------------------------------------------------------------------------------------------------
LILY_FUNC uint popcount(uint x) { return __popc(x); }
LILY_FUNC uint clz(uint x) { return __clz(x); }
LILY_FUNC uint ctz(uint x) { return x == 0 ? 32 : __ffs(x) - 1; }
LILY_FUNC uint extract_bits(uint v, uint offset, uint bits) {
  return bits == 0 ? 0 : (v >> offset) & (0xffffffffu >> (32 - bits));
}
