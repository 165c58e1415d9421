// When the blocks of a kernel begin, have waited and end, for whoever compiles with LILY_TRACE. All by the clock of a
// block's first thread: other warps of it may end later.
#pragma once

#ifndef LILY_TRACE
#define LILY_BEGIN(ahead) ask_ahead_(ahead)
#else
// Clocks of one multiprocessor are exact and differ between multiprocessors; the global timer is common and coarse.
// Together they place every block (scripts/gpu/trace.py).
struct record_ {
  unsigned long long begun, waited, ended;  // cycles of this multiprocessor
  unsigned long long begun_ns, ended_ns;    // global timer
  unsigned long long multiprocessor;
};

LILY_FUNC unsigned long long global_timer_() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

static __shared__ unsigned long long waited_;
#if __CUDA_ARCH__ >= 900
#undef LILY_WAIT
#define LILY_WAIT()                                    \
  do {                                                 \
    asm volatile("griddepcontrol.wait;" ::: "memory"); \
    if (threadIdx.x == 0) waited_ = clock64();         \
  } while (0)
#endif

// Nothing is kept in registers meanwhile: a kernel that takes more of them would have fewer blocks at a time.
struct trace_ {
  const ahead_& ahead;
  __device__ __forceinline__ record_& record() const {
    return ((record_*)ahead.records)[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x];
  }
  __device__ __forceinline__ explicit trace_(const ahead_& of) : ahead(of) {
    if (threadIdx.x != 0) return;
    waited_ = 0;
    record().begun = clock64();
    record().begun_ns = global_timer_();
  }
  __device__ __forceinline__ ~trace_() {
    if (threadIdx.x != 0) return;
    record().ended = clock64();
    record().ended_ns = global_timer_();
    record().waited = waited_;
    uint multiprocessor;
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
    record().multiprocessor = multiprocessor;
  }
};
#define LILY_BEGIN(ahead)        \
  const trace_ traced_(ahead);   \
  ask_ahead_(ahead)
#endif
