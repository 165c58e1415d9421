// 16x16 tiles of matrices, one per simdgroup: the seam between kernels that multiply matrices and what a machine
// multiplies them with. On Metal a tile is four 8x8 simdgroup matrices; a back end may bring its own form
// (LILY_NATIVE_TILE), with the same functions.
//
//   tile_a<T>  16 rows x 16 k, left operand          T = bfloat, half or float; float tiles multiply in exact f32
//   tile_b<T>  16 k x 16 columns, right operand
//   tile_c     16 rows x 16 columns, f32 sums
//
// Pointers are aligned to 16 bytes, leading dimensions (in elements) are multiples of 16 bytes. All lanes of the
// simdgroup call together. A lane holds four pairs of neighbouring elements of a tile_c: pair (i, j) is the elements
// (tile_row(lane) + 8 * i, tile_column(lane) + 8 * j) and the next column. Beyond that, what a lane holds is not
// specified.
#pragma once

#ifndef LILY_NATIVE_TILE
template <typename T> struct tile_a {
  simdgroup_matrix<T, 8, 8> m[2][2];                    // [row][k]
};
template <typename T> struct tile_b {
  simdgroup_matrix<T, 8, 8> m[2][2];                    // [k][column]
};
struct tile_c {
  simdgroup_matrix<float, 8, 8> m[2][2];                // [row][column]
};

// p[row * ld + k]
template <typename T> METAL_FUNC void tile_load_a(thread tile_a<T>& t, const threadgroup T* p, uint ld) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_load(t.m[i][j], p + i * 8 * ld + j * 8, ld);
  }
}

// p[k * ld + column]
template <typename T> METAL_FUNC void tile_load_b(thread tile_b<T>& t, const threadgroup T* p, uint ld) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_load(t.m[i][j], p + i * 8 * ld + j * 8, ld);
  }
}

// p[column * ld + k]
template <typename T> METAL_FUNC void tile_load_bt(thread tile_b<T>& t, const threadgroup T* p, uint ld) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) {
      simdgroup_load(t.m[i][j], p + j * 8 * ld + i * 8, ld, ulong2(0), true);
    }
  }
}

METAL_FUNC void tile_zero(thread tile_c& c) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) c.m[i][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
  }
}

// c += a b
template <typename T> METAL_FUNC void tile_mma(thread tile_c& c, thread tile_a<T>& a, thread tile_b<T>& b) {
  UNROLL for (int k = 0; k < 2; k++) {
    UNROLL for (int i = 0; i < 2; i++) {
      UNROLL for (int j = 0; j < 2; j++) simdgroup_multiply_accumulate(c.m[i][j], a.m[i][k], b.m[k][j], c.m[i][j]);
    }
  }
}

// p[row * ld + column]
METAL_FUNC void tile_store(thread tile_c& c, threadgroup float* p, uint ld) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_store(c.m[i][j], p + i * 8 * ld + j * 8, ld);
  }
}

METAL_FUNC uint tile_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
METAL_FUNC uint tile_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

METAL_FUNC float2 tile_pair(thread tile_c& c, int i, int j) {
  return float2(c.m[i][j].thread_elements()[0], c.m[i][j].thread_elements()[1]);
}
METAL_FUNC void tile_set_pair(thread tile_c& c, int i, int j, float2 v) {
  c.m[i][j].thread_elements()[0] = v.x;
  c.m[i][j].thread_elements()[1] = v.y;
}

// Over the lanes that hold the same rows of a tile_c.
METAL_FUNC float tile_max_of_row(float v) {
  v = max(v, simd_shuffle_xor(v, ushort(1)));
  return max(v, simd_shuffle_xor(v, ushort(8)));
}
METAL_FUNC float tile_sum_of_row(float v) {
  v += simd_shuffle_xor(v, ushort(1));
  return v + simd_shuffle_xor(v, ushort(8));
}

// Sums as a left operand, rounded to T.
template <typename T> METAL_FUNC void tile_from_sums(thread tile_a<T>& a, thread tile_c& c) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) {
      a.m[i][j].thread_elements()[0] = T(c.m[i][j].thread_elements()[0]);
      a.m[i][j].thread_elements()[1] = T(c.m[i][j].thread_elements()[1]);
    }
  }
}

// Numbers rounded to bfloat, as they lie in memory.
METAL_FUNC uint tile_words(float2 v) { return as_type<uint>(bfloat2(v)); }
METAL_FUNC uint2 tile_words(float4 v) { return as_type<uint2>(bfloat4(v)); }
#endif
