// The most probable token, and the step to the next position.
#pragma once

METAL_FUNC float negative_infinity() { return as_type<float>(0xff800000u); }
METAL_FUNC float positive_infinity() { return as_type<float>(0x7f800000u); }

// A NaN counts as infinite, so that it reaches the host. By its bits, since compilers may assume that there are none.
METAL_FUNC float finite_or_infinite(float x) {
  return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u ? positive_infinity() : x;
}

// The larger of two logits; of equal ones the lower id.
METAL_FUNC void keep_larger(thread float& value, thread uint& id, float other, uint other_id) {
  if (other > value || (other == value && other_id < id)) {
    value = other;
    id = other_id;
  }
}

// The same over a simdgroup: every lane holds the result.
METAL_FUNC void keep_largest_of_simdgroup(thread float& value, thread uint& id) {
  const float largest = simd_max(value);
  id = simd_min(value == largest ? id : 0xffffffffu);
  value = largest;
}

// The same over a threadgroup of up to 32 simdgroups: the lanes of simdgroup 0 hold the result.
METAL_FUNC void keep_largest_of_threadgroup(
    thread float& value, thread uint& id, threadgroup float* values, threadgroup uint* ids, uint sg, uint lane,
    uint simdgroups) {
  keep_largest_of_simdgroup(value, id);
  if (lane == 0) {
    values[sg] = value;
    ids[sg] = id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = lane < simdgroups ? values[lane] : negative_infinity();
  id = lane < simdgroups ? ids[lane] : 0xffffffffu;
  keep_largest_of_simdgroup(value, id);
}

// values[i], ids[i] = the largest logit of run i and its id (ties: lower id); a NaN counts as infinity
//
// logits  f32 [VOCAB]
// values  f32 [PARTS]; negative infinity for an empty run
// ids     u32 [PARTS]; the first id of the run where no logit is larger than negative infinity
//
// Threadgroup: one run of ceil(VOCAB / PARTS) ids, 256 threads, grid (PARTS). Thread: every 256th id.
// Threadgroup memory: 256 bytes.
template <int VOCAB, int PARTS>
[[kernel, max_total_threads_per_threadgroup(256)]] void argmax_parts(
    const device float* logits [[buffer(0)]],
    device float* values [[buffer(1)]],
    device uint* ids [[buffer(2)]],
    uint part [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint RUN = (VOCAB + PARTS - 1) / PARTS;
  threadgroup float group_values[32];
  threadgroup uint group_ids[32];
  const uint begin = min(part * RUN, uint(VOCAB)), end = min(begin + RUN, uint(VOCAB));

  LILY_WAIT();
  float value = negative_infinity();
  uint id = begin;
  for (uint i = begin + tid; i < end; i += 256) keep_larger(value, id, finite_or_infinite(logits[i]), i);
  keep_largest_of_threadgroup(value, id, group_values, group_ids, sg, lane, 8);
  if (tid == 0) {
    values[part] = value;
    ids[part] = id;
  }
}

// tokens[0] = ring[position % RING] = id of the largest value (ties: lower id); position += 1
// Where that value is infinite the ring gets 0xffffffff instead, which tells the host.
//
// control  control block, read and written
// values   f32 [PARTS]
// ids      u32 [PARTS]
// tokens   u32 [1]
// ring     u32 [RING]
//
// One threadgroup of 256 threads, grid (1). Thread: every 256th part. Threadgroup memory: 256 bytes.
template <int PARTS, int RING>
[[kernel, max_total_threads_per_threadgroup(256)]] void advance(
    device uint* control [[buffer(0)]],
    const device float* values [[buffer(1)]],
    const device uint* ids [[buffer(2)]],
    device uint* tokens [[buffer(3)]],
    device uint* ring [[buffer(4)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float group_values[32];
  threadgroup uint group_ids[32];

  LILY_WAIT();
  float value = negative_infinity();
  uint id = ids[0];
  for (uint i = tid; i < uint(PARTS); i += 256) keep_larger(value, id, values[i], ids[i]);
  keep_largest_of_threadgroup(value, id, group_values, group_ids, sg, lane, 8);
  if (tid == 0) {
    const uint position = control[0];
    tokens[0] = id;
    ring[position % RING] = as_type<uint>(value) == 0x7f800000u ? 0xffffffffu : id;
    control[0] = position + 1;
  }
}
