#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "linear/gated_matvec.h"
#include "linear/matmul.h"
#include "linear/matvec.h"
#include "linear/stacked_matvec.h"
