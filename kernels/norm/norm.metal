#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "params.h"
#include "norm/elementwise.h"
#include "norm/rms_norm.h"
