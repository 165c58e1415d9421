// Floats as unsigned numbers of the same order, for reductions that are exact in any order.
#pragma once

// -0 counts as 0; NaN lies below every number, with key 0.
METAL_FUNC uint order_key(float x) {
  if (!(x == x)) return 0;
  const uint bits = as_type<uint>(x + 0.0f);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// NaN above every number instead, with key 0xffffffff.
METAL_FUNC uint order_key_nan_largest(float x) { return x == x ? order_key(x) : 0xffffffffu; }

// The float of a key; NaN for either key of NaN.
METAL_FUNC float order_key_value(uint key) {
  return as_type<float>((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}
