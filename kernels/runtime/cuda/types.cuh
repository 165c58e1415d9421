// Scalar types, type traits, and the macros of kernels/common/prelude.h.
#pragma once

#define LILY_CUDA 1
#define LILY_FUNC __device__ __forceinline__
#define METAL_FUNC LILY_FUNC

// Programmatic dependent launch: a kernel may start while the one before it still runs.
#if __CUDA_ARCH__ >= 900
#define LILY_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#ifdef LILY_NO_TRIGGER
#define LILY_TRIGGER()
#else
#define LILY_TRIGGER() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#endif
#else
#define LILY_WAIT()
#define LILY_TRIGGER()
#endif
// A kernel starts once every block of the one before has triggered; the fence makes what one of them wrote before that
// visible at the level-2 cache, where the load looks.
#define LILY_PUBLISH() (__threadfence(), __syncwarp())
#define LILY_READ_PUBLISHED(pointer) __ldcg(pointer)

#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX metal::half(65504.0f)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

// ---- traits --------------------------------------------------------------------------------------------------
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool B> using bool_constant = integral_constant<bool, B>;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
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
template <class T> struct identity_ {
  typedef T type;
};
template <class T> using same_ = typename identity_<T>::type;  // no deduction from this argument

template <class To, class From> LILY_FUNC To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  ::memcpy(&to, &from, sizeof(To));
  return to;
}

// ---- 16-bit floats ---------------------------------------------------------------------------------------------
// Storage; arithmetic goes through float, which rounds + - * / correctly. A float becomes one of them
// only when the source says so.
struct bfloat {
  ushort bits;
  bfloat() = default;
  LILY_FUNC explicit bfloat(float f) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
  LILY_FUNC operator float() const { return __uint_as_float(uint(bits) << 16); }
};
struct half {
  ushort bits;
  half() = default;
  LILY_FUNC explicit half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
  LILY_FUNC operator float() const {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
};
#define LILY_FLOAT16(T, o)                                                    \
  LILY_FUNC T operator o(T a, T b) { return T(float(a) o float(b)); }         \
  LILY_FUNC T& operator o##=(T& a, T b) { return a = a o b; }
LILY_FLOAT16(bfloat, +) LILY_FLOAT16(bfloat, -) LILY_FLOAT16(bfloat, *) LILY_FLOAT16(bfloat, /)
LILY_FLOAT16(half, +) LILY_FLOAT16(half, -) LILY_FLOAT16(half, *) LILY_FLOAT16(half, /)
#undef LILY_FLOAT16
