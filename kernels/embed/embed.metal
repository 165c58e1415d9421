#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "embed/embed_rows.h"
