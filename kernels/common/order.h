// Floats as unsigned numbers of the same order, for reductions that are exact in any order.
#pragma once

// By its bits, since compilers may assume that there are none.
METAL_FUNC bool not_a_number(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }

// -0 counts as 0; NaN lies below every number, with key 0.
METAL_FUNC uint order_key(float x) {
  if (not_a_number(x)) return 0;
  const uint bits = as_type<uint>(x + 0.0f);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The float of a key; NaN for the key of NaN.
METAL_FUNC float order_key_value(uint key) {
  return as_type<float>((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}
