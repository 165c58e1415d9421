// Who a thread is, barriers, and what the lanes of a simdgroup (a warp) do together.
#pragma once

// ---- built-ins: threadgroups have one dimension -----------------------------------------------------------------
template <class T> LILY_FUNC T tg_pos_();
template <> LILY_FUNC uint tg_pos_<uint>() { return blockIdx.x; }
template <> LILY_FUNC uint2 tg_pos_<uint2>() { return uint2(blockIdx.x, blockIdx.y); }
template <> LILY_FUNC uint3 tg_pos_<uint3>() { return uint3(blockIdx.x, blockIdx.y, blockIdx.z); }
template <class T> LILY_FUNC T tgs_per_grid_();
template <> LILY_FUNC uint tgs_per_grid_<uint>() { return gridDim.x; }
template <> LILY_FUNC uint2 tgs_per_grid_<uint2>() { return uint2(gridDim.x, gridDim.y); }
template <> LILY_FUNC uint3 tgs_per_grid_<uint3>() { return uint3(gridDim.x, gridDim.y, gridDim.z); }
template <class T> LILY_FUNC T tid_() { return T(threadIdx.x); }
template <class T> LILY_FUNC T ntid_() { return T(blockDim.x); }
template <class T> LILY_FUNC T lane_() { return T(threadIdx.x & 31); }
template <class T> LILY_FUNC T nsg_() { return T(blockDim.x >> 5); }
// Through a shuffle: so the compiler knows that all lanes have the same.
template <class T> LILY_FUNC T sg_() { return T(__shfl_sync(0xffffffffu, threadIdx.x >> 5, 0)); }

// ---- barriers ---------------------------------------------------------------------------------------------------
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
LILY_FUNC constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
LILY_FUNC void threadgroup_barrier(mem_flags) { __syncthreads(); }
LILY_FUNC void simdgroup_barrier(mem_flags) { __syncwarp(); }

// ---- exchange. All 32 lanes take part (a rule of the dialect), so the mask is constant --------------------------
constexpr uint ALL_LANES_ = 0xffffffffu;
#define LILY_SHUFFLE(name, function, value)                                                                  \
  template <class T> LILY_FUNC T name(T v, ushort n) {                                                       \
    static_assert(sizeof(T) == 4, "exchange of 32-bit values");                                              \
    return function(ALL_LANES_, v, value);                                                                   \
  }                                                                                                          \
  LILY_FUNC ushort name(ushort v, ushort n) { return ushort(function(ALL_LANES_, uint(v), value)); }         \
  LILY_FUNC half name(half v, ushort n) { return as_type<half>(name(v.bits, n)); }                           \
  template <class T> LILY_FUNC vec<T, 2> name(vec<T, 2> v, ushort n) {                                       \
    return vec<T, 2>(name(v.x, n), name(v.y, n));                                                            \
  }                                                                                                          \
  template <class T> LILY_FUNC vec<T, 3> name(vec<T, 3> v, ushort n) {                                       \
    return vec<T, 3>(name(v.x, n), name(v.y, n), name(v.z, n));                                              \
  }                                                                                                          \
  template <class T> LILY_FUNC vec<T, 4> name(vec<T, 4> v, ushort n) {                                       \
    return vec<T, 4>(name(v.x, n), name(v.y, n), name(v.z, n), name(v.w, n));                                \
  }
LILY_SHUFFLE(simd_shuffle, __shfl_sync, n)
LILY_SHUFFLE(simd_broadcast, __shfl_sync, n)
LILY_SHUFFLE(simd_shuffle_xor, __shfl_xor_sync, n)
LILY_SHUFFLE(simd_shuffle_up, __shfl_up_sync, n)
LILY_SHUFFLE(simd_shuffle_down, __shfl_down_sync, n)
LILY_SHUFFLE(simd_shuffle_rotate_up, __shfl_sync, (threadIdx.x - n) & 31)
LILY_SHUFFLE(simd_shuffle_rotate_down, __shfl_sync, (threadIdx.x + n) & 31)
LILY_SHUFFLE(quad_shuffle_xor, __shfl_xor_sync, n)
LILY_SHUFFLE(quad_broadcast, __shfl_sync, (threadIdx.x & 28) + n)
#undef LILY_SHUFFLE
template <class T> LILY_FUNC T simd_broadcast_first(T v) { return simd_broadcast(v, 0); }
template <class T> LILY_FUNC T simd_shuffle_and_fill_up(T v, T fill, ushort n) {
  const T moved = simd_shuffle_rotate_up(v, n), filled = simd_shuffle_rotate_up(fill, n);
  return lane_<uint>() < n ? filled : moved;
}
template <class T> LILY_FUNC T simd_shuffle_and_fill_down(T v, T fill, ushort n) {
  const T moved = simd_shuffle_rotate_down(v, n), filled = simd_shuffle_rotate_down(fill, n);
  return lane_<uint>() + n >= 32 ? filled : moved;
}

// ---- reductions: floats by halving, the same order in every lane ------------------------------------------------
#define LILY_REDUCE(name, T, lanes, value)                        \
  LILY_FUNC T name(T v) {                                         \
    _Pragma("unroll") for (int m = lanes / 2; m > 0; m /= 2) {    \
      const T o = simd_shuffle_xor(v, ushort(m));                 \
      v = value;                                                  \
    }                                                             \
    return v;                                                     \
  }
#define LILY_REDUCTIONS(T)                                                              \
  LILY_REDUCE(simd_sum, T, 32, v + o) LILY_REDUCE(simd_product, T, 32, v* o)            \
  LILY_REDUCE(simd_max, T, 32, max(v, o)) LILY_REDUCE(simd_min, T, 32, min(v, o))       \
  LILY_REDUCE(quad_sum, T, 4, v + o) LILY_REDUCE(quad_max, T, 4, max(v, o))             \
  LILY_REDUCE(quad_min, T, 4, min(v, o))
LILY_REDUCTIONS(float) LILY_REDUCTIONS(float2) LILY_REDUCTIONS(float3) LILY_REDUCTIONS(float4)
#undef LILY_REDUCTIONS
LILY_REDUCE(quad_sum, uint, 4, v + o) LILY_REDUCE(quad_sum, int, 4, v + o)
#undef LILY_REDUCE
#define LILY_REDUCTIONS(T)                                                              \
  LILY_FUNC T simd_sum(T v) { return __reduce_add_sync(ALL_LANES_, v); }                \
  LILY_FUNC T simd_max(T v) { return __reduce_max_sync(ALL_LANES_, v); }                \
  LILY_FUNC T simd_min(T v) { return __reduce_min_sync(ALL_LANES_, v); }
LILY_REDUCTIONS(uint) LILY_REDUCTIONS(int)
#undef LILY_REDUCTIONS
LILY_FUNC uint simd_and(uint v) { return __reduce_and_sync(ALL_LANES_, v); }
LILY_FUNC uint simd_or(uint v) { return __reduce_or_sync(ALL_LANES_, v); }
LILY_FUNC uint simd_xor(uint v) { return __reduce_xor_sync(ALL_LANES_, v); }
LILY_FUNC bool simd_all(bool p) { return __all_sync(ALL_LANES_, p); }
LILY_FUNC bool simd_any(bool p) { return __any_sync(ALL_LANES_, p); }
LILY_FUNC bool simd_is_first() { return lane_<uint>() == 0; }

template <class T> LILY_FUNC T simd_prefix_inclusive_sum(T v) {
  _Pragma("unroll") for (int d = 1; d < 32; d *= 2) {
    const T before = simd_shuffle_up(v, ushort(d));
    if (lane_<int>() >= d) v = v + before;
  }
  return v;
}
template <class T> LILY_FUNC T simd_prefix_exclusive_sum(T v) {
  const T before = simd_shuffle_up(simd_prefix_inclusive_sum(v), ushort(1));
  return lane_<uint>() == 0 ? T(0) : before;
}
