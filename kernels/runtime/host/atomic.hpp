// Atomic operations; the emulator spreads threadgroups over system threads, so these are real ones.
#pragma once

namespace metal {

template <class T> struct atomic {
  T value_;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

// Replaces *p by f(*p) and returns what was there.
template <class T, class F> inline T atomic_update_(lily::ptr<atomic<T>> p, F f) {
  T* at = &p->value_;
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  for (;;) {
    T next = f(old);
    if (__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

template <class T> inline T atomic_load_explicit(lily::ptr<const atomic<T>> p, memory_order) {
  T v;
  __atomic_load(const_cast<T*>(&p->value_), &v, __ATOMIC_RELAXED);
  return v;
}
template <class T> inline void atomic_store_explicit(lily::ptr<atomic<T>> p, same_<T> v, memory_order) {
  __atomic_store(&p->value_, &v, __ATOMIC_RELAXED);
}
template <class T> inline bool atomic_compare_exchange_weak_explicit(
    lily::ptr<atomic<T>> p, T* expected, same_<T> v, memory_order, memory_order) {
  return __atomic_compare_exchange(&p->value_, expected, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define LILY_ATOMIC(name, ...)                                                                             \
  template <class T> inline T atomic_##name##_explicit(lily::ptr<atomic<T>> p, same_<T> v, memory_order) { \
    return atomic_update_(p, [v](T old) { return T(__VA_ARGS__); });                                       \
  }                                                                                                        \
  template <class T> inline T atomic_##name##_explicit(atomic<T>* p, same_<T> v, memory_order order) {     \
    return atomic_##name##_explicit(lily::ptr<atomic<T>>(p), v, order);                                    \
  }
LILY_ATOMIC(exchange, (void(old), v)) LILY_ATOMIC(fetch_add, old + v) LILY_ATOMIC(fetch_sub, old - v)
LILY_ATOMIC(fetch_max, old > v ? old : v) LILY_ATOMIC(fetch_min, old < v ? old : v)
LILY_ATOMIC(fetch_and, old & v) LILY_ATOMIC(fetch_or, old | v) LILY_ATOMIC(fetch_xor, old ^ v)
#undef LILY_ATOMIC
template <class T> inline T atomic_load_explicit(const atomic<T>* p, memory_order order) {
  return atomic_load_explicit(lily::ptr<const atomic<T>>(p), order);
}
template <class T> inline void atomic_store_explicit(atomic<T>* p, same_<T> v, memory_order order) {
  atomic_store_explicit(lily::ptr<atomic<T>>(p), v, order);
}

}  // namespace metal
