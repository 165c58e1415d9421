#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
#include "common/prelude.h"
#include "tensor/expert_matmul.h"
#include "tensor/matmul.h"
