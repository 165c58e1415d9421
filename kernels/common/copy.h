// Copies from device to threadgroup memory that may still be under way when the next instruction runs. On Metal they
// are plain copies; a back end may bring its own (LILY_NATIVE_COPY).
//
//   copy16          16 bytes by this thread, both sides aligned
//   copy_commit     closes a group of copies
//   copy_wait<N>    all groups of this thread but the last N have arrived; a threadgroup barrier then shows them to all
#pragma once

#ifndef LILY_NATIVE_COPY
METAL_FUNC void copy16(threadgroup uint4* to, const device uint4* from) { *to = *from; }
METAL_FUNC void copy_commit() {}
template <int N> METAL_FUNC void copy_wait() {}
#endif
