// What every kernel may use beside the Metal standard library.
#pragma once

// Scheduling hints. On Metal they are empty: encoder barriers order dispatches. A back end with
// programmatic dependent launch brings its own.
//   LILY_WAIT     before the first read of anything an earlier step wrote (weights may be read before it)
//   LILY_TRIGGER  from here on the next step may start, up to its own LILY_WAIT
//   LILY_PUBLISH  by a whole simdgroup, before its LILY_TRIGGER and in the only threadgroup that has not triggered yet:
//                 what it has written may be read by the next step ahead of LILY_WAIT, with LILY_READ_PUBLISHED
#ifndef LILY_WAIT
#define LILY_WAIT()
#define LILY_TRIGGER()
#define LILY_PUBLISH()
#define LILY_READ_PUBLISHED(pointer) (*(pointer))
#endif

// Before a loop whose every trip has to be its own code: private arrays indexed by the counter stay in registers.
#define UNROLL _Pragma("clang loop unroll(full)")
