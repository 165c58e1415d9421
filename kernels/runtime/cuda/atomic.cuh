// Atomics; relaxed, as Metal has them.
#pragma once

enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#define LILY_ATOMIC(name, function)                                                          \
  template <class T> LILY_FUNC T name(volatile atomic<T>* p, same_<T> v, memory_order) {     \
    return function(const_cast<T*>(&p->value), v);                                           \
  }
LILY_ATOMIC(atomic_exchange_explicit, atomicExch)
LILY_ATOMIC(atomic_fetch_add_explicit, atomicAdd)
LILY_ATOMIC(atomic_fetch_sub_explicit, atomicSub)
LILY_ATOMIC(atomic_fetch_max_explicit, atomicMax)
LILY_ATOMIC(atomic_fetch_min_explicit, atomicMin)
LILY_ATOMIC(atomic_fetch_and_explicit, atomicAnd)
LILY_ATOMIC(atomic_fetch_or_explicit, atomicOr)
LILY_ATOMIC(atomic_fetch_xor_explicit, atomicXor)
#undef LILY_ATOMIC
template <class T> LILY_FUNC T atomic_load_explicit(const volatile atomic<T>* p, memory_order) { return p->value; }
template <class T> LILY_FUNC void atomic_store_explicit(volatile atomic<T>* p, same_<T> v, memory_order) {
  p->value = v;
}
LILY_FUNC void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) { __threadfence(); }
