// How the numbers of a weight matrix are stored.
//
// A packed matrix is one buffer: the words [experts][rows][row words], then, at the next multiple of
// 256 bytes, the side table [experts][rows][groups]. A row of words is one little-endian bit stream,
// value 0 in the low bits. value = scale * q + bias.
#pragma once

// q of BITS bits (2, 3, 4, 5, 6, 8) with scale and bias of type S per GROUP values.
template <int BITS_, int GROUP_, typename S> struct affine {
  typedef S scale_t;
  enum : int { BITS = BITS_, GROUP = GROUP_, QUANTISED = 1 };
  // Words (uint) of a row of k values, and of one entry of the side table.
  enum : int { SIDE_WORDS = sizeof(S) == 2 ? 1 : 2 };
};

// Plain numbers of type T: no side table.
template <typename T> struct dense {
  typedef T scale_t;
  enum : int { BITS = 8 * int(sizeof(T)), GROUP = 1, QUANTISED = 0, SIDE_WORDS = 0 };
};

// Bytes of a row of K values.
template <typename F, int K> struct row_of {
  enum : uint { BYTES = uint(K) * uint(F::BITS) / 8 };
};

// Bytes from the start of a packed matrix to its side table.
template <typename F> METAL_FUNC constexpr size_t side_offset(size_t experts, size_t rows, size_t k) {
  return (experts * rows * (k * size_t(F::BITS) / 8) + 255) / 256 * 256;
}
