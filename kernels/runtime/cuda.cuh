// Run-time of the CUDA back end: what the Metal library means on an NVIDIA GPU.
//
// The translated kernels follow, inside namespace metal, because Metal's names (float4, uint3) are
// CUDA's too. Needs no CUDA header. Compile with NVRTC: -default-device -std=c++17.
#pragma once
#include "runtime/cuda/types.cuh"
#include "runtime/cuda/vector.cuh"
#include "runtime/cuda/math.cuh"
#include "runtime/cuda/simd.cuh"
#include "runtime/cuda/atomic.cuh"
#include "runtime/cuda/matrix.cuh"
#include "runtime/cuda/ahead.cuh"
#include "runtime/cuda/trace.cuh"
// Primitives of the kernels that pay to be written for this machine.
#include "cuda/bytes.cuh"
#include "cuda/cluster.cuh"
#include "cuda/copy.cuh"
#include "cuda/dequant.cuh"
#include "cuda/dot.cuh"
#include "cuda/tile.cuh"
#include "cuda/product.cuh"
}  // namespace metal
