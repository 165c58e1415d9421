#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "params.h"
#include "gated_delta/conv.h"
#include "gated_delta/scan.h"
#include "gated_delta/chunk.h"
#include "gated_delta/mix.h"
