#include <metal_stdlib>
using namespace metal;
#include "common/prelude.h"
#include "params.h"
#include "attention/rope.h"
#include "attention/gate.h"
#include "attention/decode.h"
#include "attention/merge.h"
#include "attention/prefill.h"
