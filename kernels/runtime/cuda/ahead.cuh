// What every kernel does first: it asks for weights of a later step, so that they are in the level-2 cache by then.
#pragma once

// Addresses and sizes, the last parameter of every kernel; of size 0 where there is nothing to ask for. Weights do not
// change, so when they are read does not matter.
struct ahead_ {
  unsigned long long from[4];
  uint bytes[4];
#ifdef LILY_TRACE
  unsigned long long records;  // of this kernel's blocks
#endif
};

LILY_FUNC void ask_ahead_(const ahead_& ahead) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < 4 && ahead.bytes[threadIdx.x] != 0) {
    // Whole lines, one share per block of the grid; what is left over at the end is not worth an instruction.
    const uint bytes = ahead.bytes[threadIdx.x] / 16 * 16, share = (bytes / gridDim.x + 128) / 128 * 128;
    const uint start = blockIdx.x * share;
    if (blockIdx.y == 0 && start < bytes) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.from[threadIdx.x] + start),
                   "r"(min(share, bytes - start)));
    }
  }
#endif
}
