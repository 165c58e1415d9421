// Four numbers of any element type at once.
#pragma once

// T4: the vector of four T.
template <typename T> struct vector_of {};
template <> struct vector_of<float> {
  typedef float4 four;
};
template <> struct vector_of<half> {
  typedef half4 four;
};
template <> struct vector_of<bfloat> {
  typedef bfloat4 four;
};

// Stores round once, from f32; `p` is aligned to four elements.
METAL_FUNC void store4(device float* p, float4 v) { *(device float4*)p = v; }
METAL_FUNC void store4(device bfloat* p, float4 v) { *(device bfloat4*)p = bfloat4(v); }
METAL_FUNC float4 load4(const device float* p) { return *(const device float4*)p; }
METAL_FUNC float4 load4(const device bfloat* p) { return float4(*(const device bfloat4*)p); }
