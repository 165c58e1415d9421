// Products of f32 numbers through tiles of bfloat, each number in two pieces: x = high + low, high = bfloat(x),
// low = bfloat(x - high). Of the four products of pieces the one of both low ones is left out: an error of 2^-16 of a
// product of two numbers at most, and 2^-17 of each number for what two pieces do not hold.
#pragma once
#include "common/tile.h"

struct split_a {
  tile_a<bfloat> high, low;
};
struct split_b {
  tile_b<bfloat> high, low;
};
// Sums of the products of both high pieces, and of those with one low piece. Three that do not wait for each other.
struct split_c {
  tile_c high, left_low, right_low;
};

// The low pieces lie `low` elements behind the high ones; otherwise as tile_load_a, tile_load_b and tile_load_bt.
METAL_FUNC void split_load_a(thread split_a& t, const threadgroup bfloat* p, uint low, uint ld) {
  tile_load_a(t.high, p, ld);
  tile_load_a(t.low, p + low, ld);
}
METAL_FUNC void split_load_b(thread split_b& t, const threadgroup bfloat* p, uint low, uint ld) {
  tile_load_b(t.high, p, ld);
  tile_load_b(t.low, p + low, ld);
}
METAL_FUNC void split_load_bt(thread split_b& t, const threadgroup bfloat* p, uint low, uint ld) {
  tile_load_bt(t.high, p, ld);
  tile_load_bt(t.low, p + low, ld);
}

// What rounding to bfloat leaves of a number.
METAL_FUNC float2 rest_of(float2 v) { return v - float2(bfloat2(v)); }
METAL_FUNC float4 rest_of(float4 v) { return v - float4(bfloat4(v)); }

METAL_FUNC void split_from_sums(thread split_a& a, thread tile_c& c) {
  tile_c rest;
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) tile_set_pair(rest, i, j, rest_of(tile_pair(c, i, j)));
  }
  tile_from_sums(a.high, c);
  tile_from_sums(a.low, rest);
}

METAL_FUNC void split_zero(thread split_c& c) {
  tile_zero(c.high);
  tile_zero(c.left_low);
  tile_zero(c.right_low);
}
METAL_FUNC void split_mma(thread split_c& c, thread split_a& a, thread split_b& b) {
  tile_mma(c.high, a.high, b.high);
  tile_mma(c.right_low, a.high, b.low);
  tile_mma(c.left_low, a.low, b.high);
}
METAL_FUNC float2 split_pair(thread split_c& c, int i, int j) {
  return tile_pair(c.high, i, j) + (tile_pair(c.left_low, i, j) + tile_pair(c.right_low, i, j));
}
