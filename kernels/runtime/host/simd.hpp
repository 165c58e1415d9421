// Built-in indices, barriers, simdgroup and quadgroup functions.
//
// All 32 lanes have to be there: a function that only some lanes call is reported. Reductions combine pairs
// at distance 16, 8, 4, 2, 1, the same tree for every lane.
#pragma once

namespace metal {

// ---- indices (threadgroups are one-dimensional) ------------------------------------------------------------------
template <class T> struct grid_index_ {
  static T of(const uint32_t* v) { return T(v[0]); }
};
template <class T, int N> struct grid_index_<vec<T, N>> {
  static vec<T, N> of(const uint32_t* v) { return each_<T, N>([&](int i) { return T(v[i]); }); }
};
template <class T> inline T tg_pos_() {
  const lily::machine& m = lily::self();
  const uint32_t position[3] = {m.position[0] + lily::threadgroup_of(m), m.position[1], m.position[2]};
  return grid_index_<T>::of(position);
}
template <class T> inline T tgs_per_grid_() { return grid_index_<T>::of(lily::self().job->grid); }
template <class T> inline T in_x_(uint32_t n, uint32_t other) {
  const uint32_t v[3] = {n, other, other};
  return grid_index_<T>::of(v);
}
template <class T> inline T tid_() { return in_x_<T>(lily::index_in_threadgroup(lily::self()), 0); }
template <class T> inline T ntid_() { return in_x_<T>(lily::self().group_threads, 1); }
template <class T> inline T lane_() { return T(lily::lane()); }
template <class T> inline T sg_() { return T(lily::index_in_threadgroup(lily::self()) / lily::LANES); }
template <class T> inline T nsg_() { return T(lily::self().group_threads / lily::LANES); }
template <class T> inline T lanes_() { return T(lily::LANES); }

// ---- barriers ------------------------------------------------------------------------------------------------------
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

#define LILY_SITE(what) ::lily::site at = ::lily::site::here(what)
inline void threadgroup_barrier(mem_flags, LILY_SITE("threadgroup_barrier")) { lily::meet_threadgroup(at); }
inline void simdgroup_barrier(mem_flags, LILY_SITE("simdgroup_barrier")) { lily::meet_simdgroup(at); }
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}

// ---- simdgroup functions ---------------------------------------------------------------------------------------------
// Metal has none of them for bool, bfloat and 64-bit numbers.
template <class T> constexpr bool simd_scalar_ = sizeof(T) <= 4 && !__is_same(T, bool) && !__is_same(T, bfloat) &&
                                                 (__is_integral(T) || is_floating_<T>);
template <class T> constexpr bool simd_type_ = simd_scalar_<T>;
template <class T, int N> constexpr bool simd_type_<vec<T, N>> = simd_scalar_<T>;

template <class T, class F> inline T reduce_(const lily::exchange<T>& lanes, uint32_t first, uint32_t width, F f) {
  T v[lily::LANES];
  for (uint32_t i = 0; i < width; i++) v[i] = lanes[first + i];
  for (uint32_t n = width / 2; n > 0; n /= 2) {
    for (uint32_t i = 0; i < n; i++) v[i] = f(v[i], v[i + n]);
  }
  return v[0];
}
#define LILY_REDUCE(name, ...)                                                                           \
  template <class T> inline T simd_##name(T v, LILY_SITE("simd_" #name)) {                               \
    static_assert(simd_type_<T>, "simd_" #name " takes 32-bit numbers and their vectors");               \
    return reduce_(lily::exchange<T>(v, at), 0, lily::LANES, [](T a, T b) { return T(__VA_ARGS__); });   \
  }                                                                                                      \
  template <class T> inline T quad_##name(T v, LILY_SITE("quad_" #name)) {                               \
    static_assert(simd_type_<T>, "quad_" #name " takes 32-bit numbers and their vectors");               \
    return reduce_(lily::exchange<T>(v, at), lily::lane() & ~3u, 4, [](T a, T b) { return T(__VA_ARGS__); }); \
  }
LILY_REDUCE(sum, a + b) LILY_REDUCE(product, a * b) LILY_REDUCE(max, max(a, b)) LILY_REDUCE(min, min(a, b))
LILY_REDUCE(and, a & b) LILY_REDUCE(or, a | b) LILY_REDUCE(xor, a ^ b)
#undef LILY_REDUCE

// `from` is the lane to read; a lane outside of the group yields the caller's own value.
#define LILY_SHUFFLE(name, argument, from)                                                               \
  template <class T> inline T simd_##name(T v, ushort argument, LILY_SITE("simd_" #name)) {              \
    static_assert(simd_type_<T>, "simd_" #name " takes 32-bit numbers and their vectors");               \
    const lily::exchange<T> lanes(v, at);                                                                \
    const uint lane = lily::lane(), source = (from);                                                     \
    return source < lily::LANES ? lanes[source] : v;                                                     \
  }                                                                                                      \
  template <class T> inline T quad_##name(T v, ushort argument, LILY_SITE("quad_" #name)) {              \
    static_assert(simd_type_<T>, "quad_" #name " takes 32-bit numbers and their vectors");               \
    const lily::exchange<T> lanes(v, at);                                                                \
    const uint first = lily::lane() & ~3u, lane = lily::lane() & 3u, source = (from);                    \
    return source < 4 ? lanes[first + source] : v;                                                       \
  }
LILY_SHUFFLE(shuffle, i, i + 0 * lane) LILY_SHUFFLE(broadcast, i, i + 0 * lane)
LILY_SHUFFLE(shuffle_xor, mask, lane ^ mask)
LILY_SHUFFLE(shuffle_up, delta, lane - delta) LILY_SHUFFLE(shuffle_down, delta, lane + delta)
#undef LILY_SHUFFLE
template <class T> inline T simd_shuffle_rotate_down(T v, ushort delta, LILY_SITE("simd_shuffle_rotate_down")) {
  return lily::exchange<T>(v, at)[(lily::lane() + delta) % lily::LANES];
}
template <class T> inline T simd_shuffle_rotate_up(T v, ushort delta, LILY_SITE("simd_shuffle_rotate_up")) {
  return lily::exchange<T>(v, at)[(lily::lane() - delta) % lily::LANES];
}
template <class T> inline T simd_broadcast_first(T v, LILY_SITE("simd_broadcast_first")) {
  return lily::exchange<T>(v, at)[0];
}
template <class T> inline T simd_prefix_inclusive_sum(T v, LILY_SITE("simd_prefix_inclusive_sum")) {
  const lily::exchange<T> lanes(v, at);
  T sum = lanes[0];
  for (uint i = 1; i <= lily::lane(); i++) sum = T(sum + lanes[i]);
  return sum;
}
template <class T> inline T simd_prefix_exclusive_sum(T v, LILY_SITE("simd_prefix_exclusive_sum")) {
  const lily::exchange<T> lanes(v, at);
  T sum = T(0);
  for (uint i = 0; i < lily::lane(); i++) sum = T(sum + lanes[i]);
  return sum;
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  constexpr explicit operator vote_t() const { return bits; }
  constexpr bool all() const { return bits == 0xffffffffu; }
  constexpr bool any() const { return bits != 0; }
};
inline simd_vote simd_ballot(bool v, LILY_SITE("simd_ballot")) {
  const lily::exchange<bool> lanes(v, at);
  ulong bits = 0;
  for (uint i = 0; i < lily::LANES; i++) bits |= ulong(lanes[i]) << i;
  return {bits};
}
inline bool simd_all(bool v, LILY_SITE("simd_all")) { return simd_ballot(v, at).all(); }
inline bool simd_any(bool v, LILY_SITE("simd_any")) { return simd_ballot(v, at).any(); }
inline bool simd_is_first() { return lily::lane() == 0; }

}  // namespace metal
