// The exchange of kernels/common/cluster.h between threadgroups that run together.
#pragma once

#define LILY_NATIVE_CLUSTER 1

namespace metal {

template <int CLUSTER> inline void cluster_begin() { lily::self().fibers[lily::self().current].begun = true; }

template <int CLUSTER>
inline float cluster_sum(float v, lily::ptr<float> slots, uint rank, uint thread_index, LILY_SITE("cluster_sum")) {
  if constexpr (CLUSTER == 1) return v;
  lily::meet_cluster(at);  // all have begun
  // Every threadgroup has its arrays at the same places: `slots` of the first one, then of the others.
  const lily::machine& m = lily::self();
  const ptrdiff_t bytes = sizeof m.memory[0];
  float* const first = (float*)((char*)slots.raw() - bytes * lily::threadgroup_of(m));
  if (thread_index < CLUSTER) lily::ptr<float>((float*)((char*)first + bytes * thread_index))[rank] = v;
  lily::meet_cluster(at);
  float sum = slots[0];
  for (int i = 1; i < CLUSTER; i++) sum += slots[i];
  return sum;
}

}  // namespace metal
