#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
