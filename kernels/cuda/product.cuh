// native_product of kernels/common/block_product.h for NVIDIA: weights go from device memory straight to the
// registers of the lanes that multiply them.
//
// The weights are the left operand of mma.m16n8k16, 16 of their rows, and x the right one, 8 rows. A step of k is split
// evenly among the four lanes of a quad, in order, so a lane reads whole words of its own rows of the matrices and its
// own 16-byte vectors of x. The instruction wants other k in a lane, but a sum may take them in any order as long as
// both operands agree: a lane puts four neighbouring k where the instruction has 2q, 2q + 1, 2q + 8 and 2q + 9. So a
// vector of x holds the operands of two instructions as it stands. x comes through a ring of steps in shared memory,
// copied ahead by cp.async; the words of the next step are asked for before this one is multiplied. One barrier a step.
//
// Vectors of a row are swapped so that the eight lanes that read at a time find eight different groups of banks.
#define LILY_NATIVE_PRODUCT 1

template <class B> struct native_product_memory {
  enum : int {
    STEP = int(B::BM) > 64 ? 64 : 128,
    IN_ROW = STEP / 8,                                  // 16-byte vectors of x in a row of a step
    STAGES = 3,
    VECTORS = STAGES * int(B::BM) * IN_ROW
  };
};

LILY_FUNC uint swapped_(uint row, uint vector) { return vector ^ (row & 1) ^ (vector >> 3 << 1); }

// Eight neighbouring values of a row in pairs.
template <int BITS> struct native_values_;
template <> struct native_values_<4> {
  enum : int { WORDS = 1 };                             // per 8 values
  static LILY_FUNC void make(uint (&b)[4], const uint* words, uint scales, uint biases) {
    const uint v = words[0];
    const uint p0 = dequantised_pair_(v, scales, biases), p1 = dequantised_pair_(v >> 4, scales, biases);
    const uint p2 = dequantised_pair_(v >> 8, scales, biases), p3 = dequantised_pair_(v >> 12, scales, biases);
    // A pair holds values i and i + 4.
    b[0] = __byte_perm(p0, p1, 0x5410);
    b[1] = __byte_perm(p2, p3, 0x5410);
    b[2] = __byte_perm(p0, p1, 0x7632);
    b[3] = __byte_perm(p2, p3, 0x7632);
  }
};
template <> struct native_values_<8> {
  enum : int { WORDS = 2 };
  static LILY_FUNC void make(uint (&b)[4], const uint* words, uint scales, uint biases) {
    _Pragma("unroll") for (int i = 0; i < 4; i++) {
      // A byte behind 0x4b0000 is the float 2^23 + q; whole numbers up to 256 are exact in bf16.
      const uint v = words[i / 2];
      const float low = __uint_as_float(__byte_perm(v, 0x4b000000u, i % 2 == 0 ? 0x7540 : 0x7542)) - 8388608.0f;
      const float high = __uint_as_float(__byte_perm(v, 0x4b000000u, i % 2 == 0 ? 0x7541 : 0x7543)) - 8388608.0f;
      uint pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(b[i]) : "r"(pair), "r"(scales), "r"(biases));
    }
  }
};

// Adds 16 rows of weights times 8 rows of x to one half of a tile_c that lies across (tile_store_across).
LILY_FUNC void multiply_across_(tile_c& c, int half, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c.sums[half * 2].x), "+f"(c.sums[half * 2].y), "+f"(c.sums[half * 2 + 1].x), "+f"(c.sums[half * 2 + 1].y)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// p[row of x * ld + row of the weights] from sums that native_product left: a lane holds rows lane / 4 and the eighth
// after it of the weights, and of x the rows 2 (lane % 4) and the next of either half.
LILY_FUNC void tile_store_across(const tile_c& c, float* p, uint ld) {
  const uint lane = lane_<uint>();
  _Pragma("unroll") for (int half = 0; half < 2; half++) {
    _Pragma("unroll") for (int i = 0; i < 2; i++) {
      float* to = p + (half * 8 + lane % 4 * 2) * ld + lane / 4 + i * 8;
      to[0] = c.sums[half * 2 + i].x;
      to[ld] = c.sums[half * 2 + i].y;
    }
  }
}

// S: block_sums<B>
template <int BITS, int N, int K, int STRIPS, bool RAGGED, template <class> class S, class B, class R>
LILY_FUNC void native_product(S<B>& sums, uint4* ring, const R& rows, uint n_rows, const bfloat* x,
                              const uint* const (&words)[STRIPS], const uint* const (&sides)[STRIPS], uint n0,
                              uint tid, uint sg) {
  typedef native_product_memory<B> memory;
  typedef native_values_<BITS> values;
  constexpr int STEP = memory::STEP, IN_ROW = memory::IN_ROW, STAGES = memory::STAGES, STEPS = K / STEP;
  constexpr int BM = B::BM, THREADS = B::THREADS;
  constexpr int X_TILES = int(B::SM) / 16, W_TILES = int(B::SN) / 16, IN_STRIP = W_TILES / STRIPS;
  constexpr int OWN = IN_ROW / 4;                       // vectors of x, or eights of weights, of a lane in a step
  constexpr int W = OWN * values::WORDS;
  constexpr int ROW_WORDS = K / 32 * BITS, ROW_SIDES = K / 64;
  constexpr int COPIES = BM * IN_ROW / THREADS;
  static_assert(K % STEP == 0 && BM * IN_ROW % THREADS == 0 && THREADS % IN_ROW == 0, "whole steps and shares");
  static_assert(int(B::SM) % 16 == 0 && int(B::SN) % (16 * STRIPS) == 0, "whole tiles");
  const uint lane = lane_<uint>(), q = lane % 4, r = lane / 4;
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  const uint column0 = n0 + sg % uint(B::WN) * uint(int(B::SN) / STRIPS) + r;
  const uint tiles = n_rows > m0 ? (n_rows - m0 + 15) / 16 : 0;

  // The rows of x that this thread copies are THREADS / IN_ROW apart.
  const uint copy_row = tid / IN_ROW, vector = tid % IN_ROW, copied = (n_rows + 15) / 16 * 16;
  uint from[COPIES];
  _Pragma("unroll") for (int i = 0; i < COPIES; i++) {
    const uint row = copy_row + i * (THREADS / IN_ROW);
    from[i] = input_row(rows, min(row, n_rows - 1)) * uint(K / 8) + vector;
  }
  auto copy = [&](int step) {
    if (step < STEPS) {
      uint4* to = ring + step % STAGES * (BM * IN_ROW) + copy_row * IN_ROW + swapped_(copy_row, vector);
      _Pragma("unroll") for (int i = 0; i < COPIES; i++) {
        // Rows of a thread are alike in what swapped_ looks at.
        if (!RAGGED || copy_row + i * (THREADS / IN_ROW) < copied) {
          copy16(to + i * THREADS, (const uint4*)x + (from[i] + step * IN_ROW));
        }
      }
    }
    copy_commit();
  };
  uint next[W_TILES][2][W], next_side[W_TILES][2];
  auto ask = [&](int step) {
    _Pragma("unroll") for (int j = 0; j < W_TILES; j++) {
      _Pragma("unroll") for (int h = 0; h < 2; h++) {
        const uint n = min(column0 + uint(j % IN_STRIP * 16 + h * 8), uint(N - 1));
        const uint* p = words[j / IN_STRIP] + (n * uint(ROW_WORDS) + (step * 4 + q) * uint(W));
        uint* to = next[j][h];
        if (W % 4 == 0) {
          _Pragma("unroll") for (int i = 0; i < W / 4; i++) {
            const uint4 v = ((const uint4*)p)[i];
            to[4 * i] = v.x;
            to[4 * i + 1] = v.y;
            to[4 * i + 2] = v.z;
            to[4 * i + 3] = v.w;
          }
        } else {
          const uint2 v = *(const uint2*)p;
          to[0] = v.x;
          to[1] = v.y;
        }
        next_side[j][h] = sides[j / IN_STRIP][n * uint(ROW_SIDES) + (uint(step * STEP) + q * uint(STEP / 4)) / 64];
      }
    }
  };

  ask(0);
  _Pragma("unroll") for (int s = 0; s < STAGES - 1; s++) copy(s);
  _Pragma("unroll") for (int i = 0; i < X_TILES; i++) {
    _Pragma("unroll") for (int j = 0; j < W_TILES; j++) tile_zero(sums.tile[i][j]);
  }
  for (int step = 0; step < STEPS; step++) {
    uint now[W_TILES][2][W], scales[W_TILES][2], biases[W_TILES][2];
    _Pragma("unroll") for (int j = 0; j < W_TILES; j++) {
      _Pragma("unroll") for (int h = 0; h < 2; h++) {
        _Pragma("unroll") for (int i = 0; i < W; i++) now[j][h][i] = next[j][h][i];
        scales[j][h] = __byte_perm(next_side[j][h], 0, 0x1010);
        biases[j][h] = __byte_perm(next_side[j][h], 0, 0x3232);
      }
    }
    if (step + 1 < STEPS) ask(step + 1);
    copy_wait<STAGES - 2>();
    __syncthreads();
    copy(step + STAGES - 1);
    const uint4* staged = ring + step % STAGES * (BM * IN_ROW) + (m0 + r) * IN_ROW;
    _Pragma("unroll") for (int w = 0; w < OWN; w++) {
      uint a[W_TILES][2][4];
      _Pragma("unroll") for (int j = 0; j < W_TILES; j++) {
        _Pragma("unroll") for (int h = 0; h < 2; h++) {
          values::make(a[j][h], now[j][h] + w * values::WORDS, scales[j][h], biases[j][h]);
        }
      }
      const uint4* own = staged + swapped_(r, q * OWN + w);
      _Pragma("unroll") for (int i = 0; i < X_TILES; i++) {
        if (!RAGGED || uint(i) < tiles) {
          uint4 b[2];
          _Pragma("unroll") for (int half = 0; half < 2; half++) b[half] = own[(i * 16 + half * 8) * IN_ROW];
          _Pragma("unroll") for (int j = 0; j < W_TILES; j++) {
            _Pragma("unroll") for (int half = 0; half < 2; half++) {
              multiply_across_(sums.tile[i][j], half, a[j][0][0], a[j][1][0], a[j][0][1], a[j][1][1], b[half].x, b[half].y);
            }
          }
          _Pragma("unroll") for (int j = 0; j < W_TILES; j++) {
            _Pragma("unroll") for (int half = 0; half < 2; half++) {
              multiply_across_(sums.tile[i][j], half, a[j][0][2], a[j][1][2], a[j][0][3], a[j][1][3], b[half].z, b[half].w);
            }
          }
        }
      }
    }
  }
  __syncthreads();
}
