// Activation functions, in f32.
#pragma once

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

METAL_FUNC float silu(float x) { return x * sigmoid(x); }

METAL_FUNC float4 silu(float4 x) { return float4(silu(x.x), silu(x.y), silu(x.z), silu(x.w)); }

METAL_FUNC float4 sigmoid(float4 x) { return float4(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w)); }
