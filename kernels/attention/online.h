// Softmax attention of a few query heads over a run of keys, in one pass: the part that a simdgroup does on its own.
//
// A simdgroup serves H query heads that share the KV head: every key and value is loaded once for all of them. Loads are
// 16 bytes (a uint4 of KV elements). Keys and values lie in the lanes alike:
//   WIDTH lanes to a row, each with the 16-byte pieces i * WIDTH + lane % WIDTH; SIDE = 32 / WIDTH rows side by side;
//   PASSES loads one after another: PASSES * SIDE keys at a time
// A lane keeps the same pieces of the queries in registers, so the loop reads no query.
//
// Scores: each lane has PASSES * PADDED partial sums. They are halved among the lanes of a row (a lane keeps half of
// them and takes the other lane's share) until each has one: lane l % WIDTH = (pass, head, copy) in that order of bits,
// where COPIES lanes hold the same score.
#pragma once

constant float LOWEST = -1.0e30f;                       // a score that counts as none

template <typename KV, int HEAD_DIM, int H> struct online_layout {
  enum : int {
    VECTOR = 16 / sizeof(KV),                           // elements of a 16-byte load
    QUARTERS = VECTOR / 4,                              // float4 of a load
    WIDTH = HEAD_DIM / VECTOR < 32 ? HEAD_DIM / VECTOR : 32,
    SIDE = 32 / WIDTH,
    LOADS = HEAD_DIM / (WIDTH * VECTOR),                // pieces of a row per lane
    PIECES = LOADS * QUARTERS,                          // float4 of a row per lane
    PADDED = H <= 1 ? 1 : H <= 2 ? 2 : H <= 4 ? 4 : 8,  // heads, as a power of two
    MOST = H >= 4 && sizeof(KV) == 2 ? 8 : 4,           // where a lane has registers for more, more is under way
    PASSES = WIDTH / PADDED < MOST ? WIDTH / PADDED : MOST,
    KEYS = PASSES * SIDE,                               // at a time
    COPIES = WIDTH / (PASSES * PADDED),
    WEIGHTS = PADDED < 4 ? 4 : PADDED                   // floats of a key's softmax weights in threadgroup memory
  };
};

// Float4 number j of a 16-byte load.
template <typename KV> METAL_FUNC float4 quarter(uint4 raw, int j) {
  if (sizeof(KV) == 4) return as_type<float4>(raw);
  const uint low = j == 0 ? raw.x : raw.z, high = j == 0 ? raw.y : raw.w;
  return float4(as_type<float>(low << 16), as_type<float>(low & 0xffff0000u), as_type<float>(high << 16),
                as_type<float>(high & 0xffff0000u));
}

// Where a lane's float4 number `piece` lies within its row.
template <typename KV, int HEAD_DIM, int H> METAL_FUNC uint piece_at(int piece, uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  return (piece / layout::QUARTERS * layout::WIDTH + lane % layout::WIDTH) * layout::QUARTERS + piece % layout::QUARTERS;
}

// The head whose score a lane holds.
template <typename KV, int HEAD_DIM, int H> METAL_FUNC uint head_of(uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  return lane / layout::COPIES % layout::PADDED;
}

// Largest and sum over the lanes that hold the same head and another key.
template <typename KV, int HEAD_DIM, int H> METAL_FUNC float max_of_keys(float v) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  UNROLL for (int m = layout::COPIES * layout::PADDED; m < 32; m *= 2) v = max(v, simd_shuffle_xor(v, ushort(m)));
  return v;
}
template <typename KV, int HEAD_DIM, int H> METAL_FUNC float sum_of_keys(float v) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  UNROLL for (int m = layout::COPIES * layout::PADDED; m < 32; m *= 2) v += simd_shuffle_xor(v, ushort(m));
  return v;
}

// What a simdgroup carries through its keys.
template <typename KV, int HEAD_DIM, int H> struct online_softmax {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  float4 query[H][layout::PIECES];
  float4 out[H][layout::PIECES];                        // sums of exp(score - largest) v
  float largest;                                        // score of this lane's head
  float sum;                                            // of this lane's keys
  uint4 key[layout::PASSES][layout::LOADS];             // the next keys, on their way
};

// Asks for the keys from `first` on; keys from `end` on are stood in for by the last one.
template <typename KV, int HEAD_DIM, int H>
METAL_FUNC void load_keys(thread online_softmax<KV, HEAD_DIM, H>& o, const device KV* keys, uint first, uint end,
                          uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  UNROLL for (int i = 0; i < layout::PASSES; i++) {
    const uint at = min(first + i * layout::SIDE + lane / layout::WIDTH, end - 1);
    const device uint4* from = (const device uint4*)(keys + size_t(at) * HEAD_DIM) + lane % layout::WIDTH;
    UNROLL for (int j = 0; j < layout::LOADS; j++) o.key[i][j] = from[j * layout::WIDTH];
  }
}

// Starts with nothing; queries: H heads in threadgroup memory, scaled.
template <typename KV, int HEAD_DIM, int H>
METAL_FUNC void online_start(thread online_softmax<KV, HEAD_DIM, H>& o, const threadgroup float4* queries, uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  o.largest = LOWEST;
  o.sum = 0.0f;
  UNROLL for (int h = 0; h < H; h++) {
    UNROLL for (int i = 0; i < layout::PIECES; i++) {
      o.query[h][i] = queries[h * (HEAD_DIM / 4) + piece_at<KV, HEAD_DIM, H>(i, lane)];
      o.out[h][i] = float4(0.0f);
    }
  }
}

// One halving: of the first 2 * N sums this lane keeps those of its side and takes the other side's share of them.
template <int N> METAL_FUNC void halve(thread float* sums, uint lane, uint mask) {
  const bool upper = (lane & mask) != 0;
  UNROLL for (int i = 0; i < N; i++) {
    const float keep = upper ? sums[i + N] : sums[i], give = upper ? sums[i] : sums[i + N];
    sums[i] = keep + simd_shuffle_xor(give, ushort(mask));
  }
}

// Of N sums per lane over WIDTH lanes, the one that is this lane's.
template <int N, int WIDTH> METAL_FUNC float reduce(thread float* sums, uint lane) {
  if (N == 32) halve<16>(sums, lane, WIDTH / 2);
  if (N >= 16) halve<N >= 16 ? 8 : 0>(sums, lane, WIDTH * 8 / N);
  if (N >= 8) halve<N >= 8 ? 4 : 0>(sums, lane, WIDTH * 4 / N);
  if (N >= 4) halve<N >= 4 ? 2 : 0>(sums, lane, WIDTH * 2 / N);
  if (N >= 2) halve<N >= 2 ? 1 : 0>(sums, lane, WIDTH / N);
  float sum = sums[0];
  UNROLL for (int m = WIDTH / N / 2; m > 0; m /= 2) sum += simd_shuffle_xor(sum, ushort(m));
  return sum;
}

// Folds the keys first .. first + KEYS, then `stride` further on, up to `end`, into the running softmax. The first of
// them have been asked for by load_keys.
//   weights  KEYS * WEIGHTS floats of this simdgroup's own
template <typename KV, int HEAD_DIM, int H>
METAL_FUNC void online_keys(thread online_softmax<KV, HEAD_DIM, H>& o, threadgroup float4* weights,
                            const device KV* keys, const device KV* values, uint first, uint end, uint stride,
                            uint lane) {
  typedef online_layout<KV, HEAD_DIM, H> layout;
  constexpr int PADDED = layout::PADDED, PASSES = layout::PASSES, WEIGHTS = layout::WEIGHTS;
  constexpr int QUARTERS = layout::QUARTERS, COPIES = layout::COPIES, WIDTH = layout::WIDTH;
  const uint side = lane / WIDTH;
  const uint slot = lane % WIDTH / (COPIES * PADDED) * layout::SIDE + side;  // of the key whose score the lane holds
  for (; first < end; first += stride) {
    uint4 value[PASSES][layout::LOADS];
    UNROLL for (int i = 0; i < PASSES; i++) {
      const uint at = min(first + i * layout::SIDE + side, end - 1);
      const device uint4* from = (const device uint4*)(values + size_t(at) * HEAD_DIM) + lane % WIDTH;
      UNROLL for (int j = 0; j < layout::LOADS; j++) value[i][j] = from[j * WIDTH];
    }

    float sums[PASSES * PADDED];
    UNROLL for (int i = 0; i < PASSES; i++) {
      UNROLL for (int h = 0; h < PADDED; h++) sums[i * PADDED + h] = 0.0f;
      UNROLL for (int n = 0; n < layout::PIECES; n++) {
        const float4 k = quarter<KV>(o.key[i][n / QUARTERS], n % QUARTERS);
        UNROLL for (int h = 0; h < H; h++) {
          const float4 q = o.query[h][n];
          const float sum = sums[i * PADDED + h];
          sums[i * PADDED + h] = fma(k.w, q.w, fma(k.z, q.z, fma(k.y, q.y, fma(k.x, q.x, sum))));
        }
      }
    }
    if (first + stride < end) load_keys(o, keys, first + stride, end, lane);

    const bool real = first + slot < end;
    const float score = reduce<PASSES * PADDED, WIDTH>(sums, lane);
    const float largest = max(o.largest, max_of_keys<KV, HEAD_DIM, H>(real ? score : LOWEST));
    if (simd_any(largest > o.largest)) {
      const float factor = fast::exp(o.largest - largest);
      o.sum *= factor;
      UNROLL for (int h = 0; h < H; h++) {
        const float of_head = simd_shuffle(factor, ushort(h * COPIES));
        UNROLL for (int i = 0; i < layout::PIECES; i++) o.out[h][i] *= of_head;
      }
      o.largest = largest;
    }
    const float w = real ? fast::exp(score - largest) : 0.0f;
    o.sum += w;
    if (lane % COPIES == 0) ((threadgroup float*)weights)[slot * WEIGHTS + head_of<KV, HEAD_DIM, H>(lane)] = w;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int i = 0; i < PASSES; i++) {
      const threadgroup float4* of_key = weights + (i * layout::SIDE + side) * (WEIGHTS / 4);
      float heads[WEIGHTS];
      UNROLL for (int j = 0; j < WEIGHTS / 4; j++) {
        const float4 four = of_key[j];
        heads[4 * j] = four.x;
        heads[4 * j + 1] = four.y;
        heads[4 * j + 2] = four.z;
        heads[4 * j + 3] = four.w;
      }
      UNROLL for (int n = 0; n < layout::PIECES; n++) {
        const float4 v = quarter<KV>(value[i][n / QUARTERS], n % QUARTERS);
        UNROLL for (int h = 0; h < H; h++) o.out[h][n] += v * heads[h];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);      // the weights may be written again
  }
}
