// Copies of 16 bytes to shared memory that go on while the threads compute.
#define LILY_NATIVE_COPY 1

LILY_FUNC void copy16(uint4* to, const uint4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
LILY_FUNC void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> LILY_FUNC void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
