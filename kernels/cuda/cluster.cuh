// The exchange of kernels/common/cluster.h for NVIDIA, from compute capability 9.0 on: every block writes into the
// shared memory of the others.
#if __CUDA_ARCH__ >= 900
#define LILY_NATIVE_CLUSTER 1

// Arrived at early and waited for late, so that nobody waits for a block that is still being launched.
template <int CLUSTER> LILY_FUNC void cluster_begin() {
  if (CLUSTER > 1) {
    __syncwarp();  // `aligned`: by a whole warp
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
}

template <int CLUSTER> LILY_FUNC float cluster_sum(float v, float* slots, uint rank, uint thread_index) {
  if (CLUSTER == 1) return v;
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // all have begun
  if (thread_index < CLUSTER) {  // a lane for each of the others
    uint own = uint(__cvta_generic_to_shared(slots + rank)), theirs;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(thread_index));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(theirs), "f"(v) : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  float sum = slots[0];
  _Pragma("unroll") for (int i = 1; i < CLUSTER; i++) sum += slots[i];
  return sum;
}
#endif
