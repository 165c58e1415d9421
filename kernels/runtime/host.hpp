// Run-time of the emulator: Metal kernels, translated to host C++, one fibre per GPU thread.
//
// Fibres are resumed in random order and meet only at barriers and simdgroup functions, so a missing
// barrier gives a wrong result, and a barrier that not all threads reach is reported. Pointers into
// buffers and threadgroup memory know their bounds (host/pointer.hpp). A fault never ends the process:
// it stops the threadgroup and is handed to whoever launched it.
//
// The parts, in order. The emulator concatenates them; this list is what a compiler would follow.
#pragma once
#include "runtime/host/machine.hpp"
#include "runtime/host/pointer.hpp"
#include "runtime/host/vector.hpp"
#include "runtime/host/math.hpp"
#include "runtime/host/simd.hpp"
#include "runtime/host/atomic.hpp"
#include "runtime/host/matrix.hpp"
#include "runtime/host/matmul2d.hpp"
#include "runtime/host/bytes.hpp"
#include "runtime/host/cluster.hpp"
