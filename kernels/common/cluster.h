// Neighbouring threadgroups that exchange numbers: a cluster.
//
// A kernel whose template has a parameter CLUSTER runs in clusters of that many threadgroups: numbers 0 .. CLUSTER - 1
// of the grid are the first. Metal has none, so CLUSTER is 1 there. A machine that has them brings its own form
// (LILY_NATIVE_CLUSTER).
#pragma once

#ifndef LILY_NATIVE_CLUSTER
// Before the first cluster_sum: all threadgroups of the cluster have begun. Every thread calls it.
template <int CLUSTER> METAL_FUNC void cluster_begin() {}

// Sum over the threadgroups of the cluster, in their order, of `v`, which all threads of a threadgroup have alike; every
// thread calls it, once in a kernel. slots: CLUSTER floats that nothing else uses. rank: this one's number in the cluster.
template <int CLUSTER> METAL_FUNC float cluster_sum(float v, threadgroup float* slots, uint rank, uint thread_index) {
  static_assert(CLUSTER == 1, "this machine has no clusters");
  return v;
}
#endif
