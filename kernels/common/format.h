// How the numbers of a weight matrix are stored.
//
// A packed matrix is one buffer: the words [experts][rows][row words], then, at the next multiple of
// 256 bytes, the side table [experts][rows][groups] of scale and bias. A row of quantised words is one
// little-endian bit stream, value 0 in the low bits; 32 values are BITS words. value = scale * q + bias.
#pragma once

// Scale and bias of one group, as they lie side by side in the side table.
template <typename S> struct scale_bias;
template <> struct scale_bias<bfloat> {
  uint bits;
};
template <> struct scale_bias<half> {
  uint bits;
};
template <> struct scale_bias<float> {
  float2 pair;
};
METAL_FUNC float scale_of(scale_bias<bfloat> g) { return as_type<float>(g.bits << 16); }
METAL_FUNC float bias_of(scale_bias<bfloat> g) { return as_type<float>(g.bits & 0xffff0000u); }
METAL_FUNC float scale_of(scale_bias<half> g) { return float(as_type<half>(ushort(g.bits & 0xffffu))); }
METAL_FUNC float bias_of(scale_bias<half> g) { return float(as_type<half>(ushort(g.bits >> 16))); }
METAL_FUNC float scale_of(scale_bias<float> g) { return g.pair.x; }
METAL_FUNC float bias_of(scale_bias<float> g) { return g.pair.y; }

// Stands for the entry of a side table where a format has none.
struct no_side {};

// q of BITS bits (2, 3, 4, 5, 6, 8) with scale and bias of type S (bfloat, half, float) per GROUP
// values (32, 64, 128).
template <int BITS_, int GROUP_, typename S> struct affine {
  typedef uint word_t;
  typedef scale_bias<S> side_t;
  enum : int { BITS = BITS_, GROUP = GROUP_, QUANTISED = 1 };
};

// Plain numbers of type T (bfloat, half, float): no side table.
template <typename T> struct dense {
  typedef T word_t;
  typedef no_side side_t;
  enum : int { BITS = 8 * int(sizeof(T)), GROUP = 1, QUANTISED = 0 };
};

// Sizes of a row of K values: words of type F::word_t, entries of the side table, bytes.
template <typename F, int K> struct row_of {
  enum : int {
    WORDS = F::QUANTISED ? K / 32 * F::BITS : K,
    GROUPS = F::QUANTISED ? K / F::GROUP : 0,
    BYTES = F::QUANTISED ? K / 32 * F::BITS * 4 : K * (F::BITS / 8)
  };
};

// Bytes from the start of a packed matrix to its side table.
template <typename F> METAL_FUNC constexpr size_t side_offset(size_t experts, size_t rows, size_t k) {
  return (experts * rows * (k * size_t(F::BITS) / 8) + 255) / 256 * 256;
}

// Consecutive rows of a packed matrix: where the first one starts.
template <typename F> struct matrix_rows {
  const device typename F::word_t* words;
  const device typename F::side_t* sides;
};

// Rows from `row` on of a matrix of all_rows = experts * rows rows of K values; row counts through all
// experts.
template <typename F, int K>
METAL_FUNC matrix_rows<F> rows_at(const device uint* matrix, size_t all_rows, size_t row) {
  matrix_rows<F> at;
  at.words = (const device typename F::word_t*)matrix + row * size_t(row_of<F, K>::WORDS);
  const device uchar* sides = (const device uchar*)matrix + (F::QUANTISED ? side_offset<F>(1, all_rows, K) : 0);
  at.sides = (const device typename F::side_t*)sides + row * size_t(row_of<F, K>::GROUPS);
  return at;
}
