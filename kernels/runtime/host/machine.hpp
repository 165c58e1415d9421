// Fibres, barriers and faults: what stands for one compute unit.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

namespace lily {

enum : uint32_t {
  LANES = 32,
  MAX_THREADS = 1024,
  MAX_SIMDGROUPS = MAX_THREADS / LANES,
  MAX_BINDINGS = 31,
  MAX_CLUSTER = 8,
  MAX_ARRAYS = 64 * MAX_CLUSTER,
  MAX_THREADGROUP_BYTES = 32 * 1024,
  STACK_BYTES = 256 * 1024,  // of address space; the lowest page is never mapped
  GUARD_BYTES = 64 * 1024,   // the largest page size of the machines in question
  SLOT_BYTES = 64,
  POISON = 0xff,  // a NaN in every float format, an absurd index as an integer
};

// ---- what the emulator and a library of kernels exchange; mirrored in lily-emulator ------------------------

struct binding {
  void* base;
  uint64_t bytes;
  uint32_t index;
};

enum class fault_kind : uint32_t { NONE, BOUNDS, ALIGNMENT, DIVERGENCE, THREADGROUP_MEMORY, UNKNOWN_MEMORY };

struct fault {
  fault_kind kind;
  int32_t binding;          // buffer index, or -1: the threadgroup array `name`
  int64_t offset;           // bytes from the start of the buffer or array
  uint64_t bytes;           // size of the buffer or array
  uint64_t size;            // size of the access
  uint64_t address;         // of the faulting instruction, relative to the library
  uint32_t thread;          // in its threadgroup
  uint32_t threadgroup[3];  // in the grid
  char name[64];
  char text[512];
};

struct launch {
  void (*entry)(const binding*);
  const binding* bindings;
  uint32_t n_bindings;
  uint32_t threads;  // per threadgroup
  uint32_t grid[3];
  uint32_t n_order;
  uint32_t cluster;       // threadgroups that run together, neighbours in x
  const uint32_t* order;  // linear indices of the clusters to run, first to last
  uint64_t seed;
};

// ---- the machine --------------------------------------------------------------------------------------------

// A buffer or a threadgroup array.
struct region {
  char* begin;
  char* end;
  int32_t index;     // buffer index, or -1
  const void* key;   // of a threadgroup array: its declaration
  uint32_t group;    // and its threadgroup, in the cluster
  const char* name;  // of a threadgroup array
};

// Where in the source a barrier or simdgroup function stands.
struct site {
  const char* what;
  const char* file;
  uint32_t line;
  bool operator==(const site& o) const { return line == o.line && !strcmp(what, o.what) && !strcmp(file, o.file); }
  static constexpr site here(const char* what, const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {what, file, line};
  }
};

struct fiber {
  void* stack_pointer;
  site at;         // where it waits
  uint32_t turns;  // simdgroup functions called so far; its parity chooses the slot
  bool begun;      // has called cluster_begin
  bool ended;
  alignas(16) char slot[2][SLOT_BYTES];
};

// Threads are those of one threadgroup after the other.
struct machine {
  const launch* job;
  fault* report;
  void* scheduler;  // stack pointer of the caller
  uint64_t random;
  uint32_t threads, group_threads;  // of the cluster and of a threadgroup
  uint32_t current, n_ended;
  uint32_t arrived_cluster, arrived[MAX_CLUSTER], arrived_simd[MAX_SIMDGROUPS];
  uint32_t position[3];             // of the first threadgroup
  uint32_t n_arrays, used_bytes[MAX_CLUSTER];
  uint32_t n_stacks;  // made accessible so far
  char* stacks;
  region buffers[MAX_BINDINGS];
  region arrays[MAX_ARRAYS];
  uint32_t ready_groups;                    // bit i: some lane of simdgroup i can go on
  uint32_t n_ready_lanes[MAX_SIMDGROUPS];
  uint8_t ready_lanes[MAX_SIMDGROUPS][LANES];
  uint32_t first_group;                     // who runs ahead; the others follow in order
  bool eager;                               // simdgroups run ahead one by one; otherwise all mix
  fiber fibers[MAX_THREADS];
  alignas(256) char memory[MAX_CLUSTER][MAX_THREADGROUP_BYTES];
};

// Where the current thread is.
inline uint32_t threadgroup_of(const machine& m) { return m.current / m.group_threads; }
inline uint32_t index_in_threadgroup(const machine& m) { return m.current % m.group_threads; }

inline thread_local machine* current_machine;
inline machine& self() { return *current_machine; }

// ---- fibres ---------------------------------------------------------------------------------------------------

// Saves the callee-saved registers on the stack and its pointer in *save, then goes on at `to`.
extern "C" __attribute__((visibility("hidden"))) void lily_switch(void** save, void* to);
extern "C" __attribute__((visibility("hidden"), used, noreturn)) void lily_fiber_main();

#if defined(__x86_64__)
asm(R"(
  .text
  .globl lily_switch
  .hidden lily_switch
  .type lily_switch, @function
lily_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size lily_switch, . - lily_switch
)");
// Six registers, the address to return to, and a word that keeps the stack aligned as after a call.
inline void* first_frame(char* top) {
  void** frame = (void**)top - 8;
  memset(frame, 0, 8 * sizeof(void*));
  frame[6] = (void*)lily_fiber_main;
  return frame;
}
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl lily_switch
  .hidden lily_switch
  .type lily_switch, @function
lily_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size lily_switch, . - lily_switch
)");
inline void* first_frame(char* top) {
  void** frame = (void**)top - 20;
  memset(frame, 0, 20 * sizeof(void*));
  frame[11] = (void*)lily_fiber_main;  // x30
  return frame;
}
#else
#error "the emulator switches fibres on x86-64 and aarch64 only"
#endif

inline uint32_t random_below(machine& m, uint32_t n) {
  m.random = m.random * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(((m.random >> 32) * n) >> 32);
}

inline void make_ready(machine& m, uint32_t thread) {
  const uint32_t group = thread / LANES;
  m.ready_lanes[group][m.n_ready_lanes[group]++] = uint8_t(thread % LANES);
  m.ready_groups |= 1u << group;
}

// Between two barriers of a threadgroup either all simdgroups mix, or one runs as far ahead as it can while
// the others have not begun: the two ways in which a missing barrier shows best.
inline void choose_order(machine& m) {
  m.eager = random_below(m, 2) != 0;
  m.first_group = random_below(m, MAX_SIMDGROUPS);
}

// Takes a thread that can go on; some must.
inline uint32_t take_ready(machine& m) {
  const uint32_t start = m.eager ? m.first_group : random_below(m, MAX_SIMDGROUPS);
  const uint32_t turned = m.ready_groups >> start | (start ? m.ready_groups << (32 - start) : 0);
  const uint32_t group = (uint32_t(__builtin_ctz(turned)) + start) % MAX_SIMDGROUPS;
  const uint32_t pick = random_below(m, m.n_ready_lanes[group]);
  uint8_t* lanes = m.ready_lanes[group];
  const uint32_t thread = group * LANES + lanes[pick];
  lanes[pick] = lanes[--m.n_ready_lanes[group]];
  if (m.n_ready_lanes[group] == 0) m.ready_groups &= ~(1u << group);
  return thread;
}

// Gives way to a random fibre that can go on, or to the scheduler where none can.
inline void give_way(machine& m) {
  const uint32_t me = m.current;
  if (m.ready_groups == 0) {
    lily_switch(&m.fibers[me].stack_pointer, m.scheduler);
    return;
  }
  m.current = take_ready(m);
  if (m.current != me) lily_switch(&m.fibers[me].stack_pointer, m.fibers[m.current].stack_pointer);
}

// Leaves for good: the scheduler finds the report and ends the launch.
[[noreturn]] inline void stop(machine& m) {
  m.report->thread = index_in_threadgroup(m);
  for (int i = 0; i < 3; i++) m.report->threadgroup[i] = m.position[i];
  m.report->threadgroup[0] += threadgroup_of(m);
  void* never;
  lily_switch(&never, m.scheduler);
  __builtin_unreachable();
}

extern "C" inline void lily_fiber_main() {
  machine& m = self();
  m.job->entry(m.job->bindings);
  m.fibers[m.current].ended = true;
  m.n_ended++;
  give_way(m);
  __builtin_unreachable();
}

// ---- barriers ---------------------------------------------------------------------------------------------------

// Who waits where, for the report of a barrier that some threads do not reach.
inline void describe_waiting(machine& m, uint32_t first, uint32_t n) {
  char* text = m.report->text;
  size_t room = sizeof m.report->text, used = 0;
  bool counted[MAX_THREADS] = {};
  for (uint32_t i = first; i < first + n && used < room; i++) {
    if (counted[i]) continue;
    const fiber& f = m.fibers[i];
    uint32_t same = 0;
    for (uint32_t j = i; j < first + n; j++) {
      const fiber& g = m.fibers[j];
      if (counted[j] || g.ended != f.ended || (!f.ended && !(g.at == f.at))) continue;
      counted[j] = true;
      same++;
    }
    const char* comma = used ? ", " : "";
    used += f.ended
        ? snprintf(text + used, room - used, "%s%u ended (first: thread %u)", comma, same, i)
        : snprintf(text + used, room - used, "%s%u at %s %s:%u (first: thread %u)", comma, same, f.at.what,
                   f.at.file, f.at.line, i);
  }
}

// Waits until all of the `n` threads from `first` on stand at the same place.
inline void meet(machine& m, uint32_t& arrived, uint32_t first, uint32_t n, const site& at) {
  m.fibers[m.current].at = at;
  if (++arrived == n) {
    for (uint32_t i = first; i < first + n; i++) {
      if (!(m.fibers[i].at == at)) {
        m.report->kind = fault_kind::DIVERGENCE;
        describe_waiting(m, first, n);
        stop(m);
      }
      make_ready(m, i);
    }
    arrived = 0;
    if (n >= m.group_threads) choose_order(m);
  }
  give_way(m);
}

inline void meet_threadgroup(const site& at) {
  machine& m = self();
  const uint32_t group = threadgroup_of(m);
  meet(m, m.arrived[group], group * m.group_threads, m.group_threads, at);
}

// All threadgroups of the cluster, which have to have said that they began: on a GPU one that has not may be waited for
// in vain.
inline void meet_cluster(const site& at) {
  machine& m = self();
  if (!m.fibers[m.current].begun) {
    m.report->kind = fault_kind::DIVERGENCE;
    snprintf(m.report->text, sizeof m.report->text, "%s without cluster_begin", at.what);
    stop(m);
  }
  meet(m, m.arrived_cluster, 0, m.threads, at);
}

inline void meet_simdgroup(const site& at) {
  machine& m = self();
  const uint32_t group = m.current / LANES;
  meet(m, m.arrived_simd[group], group * LANES, LANES, at);
}

// Shows `mine` to the other lanes of the simdgroup and lets them read what they show. Slots alternate:
// nobody can be two calls ahead, so one meeting per call is enough.
template <class T> struct exchange {
  const fiber* lanes;
  uint32_t parity;
  exchange(const T& mine, const site& at) {
    static_assert(sizeof(T) <= SLOT_BYTES);
    machine& m = self();
    fiber& f = m.fibers[m.current];
    lanes = m.fibers + m.current / LANES * LANES;
    parity = f.turns++ & 1;
    memcpy(f.slot[parity], &mine, sizeof(T));
    meet_simdgroup(at);
  }
  T operator[](uint32_t lane) const {
    T value;
    memcpy(&value, lanes[lane].slot[parity], sizeof(T));
    return value;
  }
};

inline uint32_t lane() { return self().current % LANES; }

// ---- threadgroups -------------------------------------------------------------------------------------------------

inline void run_cluster(machine& m, uint32_t cluster) {
  const launch& job = *m.job;
  const uint32_t index = cluster * job.cluster;
  m.position[0] = index % job.grid[0];
  m.position[1] = index / job.grid[0] % job.grid[1];
  m.position[2] = index / job.grid[0] / job.grid[1];
  memset(m.memory, POISON, job.cluster * sizeof m.memory[0]);
  m.n_arrays = m.n_ended = m.arrived_cluster = 0;
  memset(m.used_bytes, 0, sizeof m.used_bytes);
  memset(m.arrived, 0, sizeof m.arrived);
  memset(m.arrived_simd, 0, sizeof m.arrived_simd);
  m.group_threads = job.threads;
  m.threads = job.threads * job.cluster;
  m.ready_groups = 0;
  memset(m.n_ready_lanes, 0, sizeof m.n_ready_lanes);
  choose_order(m);
  for (uint32_t i = 0; i < m.threads; i++) {
    fiber& f = m.fibers[i];
    f.stack_pointer = first_frame(m.stacks + size_t(i + 1) * STACK_BYTES);
    f.at = {"start", "", 0};
    f.turns = 0;
    f.begun = f.ended = false;
    make_ready(m, i);
  }
  m.current = take_ready(m);
  lily_switch(&m.scheduler, m.fibers[m.current].stack_pointer);
  if (m.report->kind == fault_kind::NONE && m.n_ended != m.threads) {
    m.report->kind = fault_kind::DIVERGENCE;
    for (int i = 0; i < 3; i++) m.report->threadgroup[i] = m.position[i];
    describe_waiting(m, 0, m.threads);
  }
}

}  // namespace lily

#define LILY_EXPORT extern "C" __attribute__((visibility("default")))

// Address space for a machine and its stacks; null where there is none.
LILY_EXPORT void* lily_machine_new() {
  using namespace lily;
  const size_t bytes = sizeof(machine) + size_t(MAX_THREADS) * STACK_BYTES + GUARD_BYTES;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* base = (char*)mmap(nullptr, bytes, PROT_NONE, flags, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const size_t head = (sizeof(machine) + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
  if (mprotect(base, head, PROT_READ | PROT_WRITE)) return nullptr;
  machine* m = (machine*)base;
  m->stacks = base + head;
  return m;
}

// Runs clusters of a grid; returns 0, or 1 with `report` filled in.
LILY_EXPORT uint32_t lily_run(void* machine_, const lily::launch* job, lily::fault* report) {
  using namespace lily;
  machine& m = *(machine*)machine_;
  memset(report, 0, sizeof *report);
  m.job = job;
  m.report = report;
  m.random = job->seed;
  for (; m.n_stacks < job->threads * job->cluster; m.n_stacks++) {
    char* stack = m.stacks + size_t(m.n_stacks) * STACK_BYTES;
    if (mprotect(stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES, PROT_READ | PROT_WRITE)) return 2;
  }
  for (uint32_t i = 0; i < job->n_bindings; i++) {
    const binding& b = job->bindings[i];
    m.buffers[i] = {(char*)b.base, (char*)b.base + b.bytes, int32_t(b.index), nullptr, 0, nullptr};
  }
  current_machine = &m;
  for (uint32_t i = 0; i < job->n_order && report->kind == fault_kind::NONE; i++) run_cluster(m, job->order[i]);
  current_machine = nullptr;
  return report->kind != fault_kind::NONE;
}
