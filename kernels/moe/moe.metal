#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "moe/combine.h"
#include "moe/expert_matmul.h"
#include "moe/expert_matvec.h"
#include "moe/group.h"
#include "moe/route.h"
#include "moe/routed.h"
#include "moe/routed_down.h"
