// The depthwise causal convolution in front of the gated delta rule, for a chunk of rows.
#pragma once
#include "common/activation.h"
#include "common/control.h"

// out[t, c] = silu(sum_j w[c, j] * x[t - (WIDTH - 1) + j, c]), and the last WIDTH rows of x go to the state
//
// x        f32 [T, CHANNELS]
// weight   f32 [CHANNELS, WIDTH]
// state    f32 [WIDTH, CHANNELS], a ring: the row of position p lies in slot p mod WIDTH; rows before the chunk
// out      f32 [T, CHANNELS]
// control  control block
//
// Threadgroup: THREADS channels of ROWS rows, grid (ceil(CHANNELS / THREADS), ceil(T / ROWS)). Thread: one channel.
// The state of a channel belongs to the thread of its first rows: it reads the ring, then writes it. All other threads
// find the rows before theirs in x.
// Threadgroup memory: none. Requires ROWS >= WIDTH, or T <= ROWS.
// Order of the sum: taps from the oldest to the newest.
template <int CHANNELS, int WIDTH, int ROWS, int THREADS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void conv(
    const device uint* control [[buffer(0)]],
    const device float* x [[buffer(1)]],
    const device float* weight [[buffer(2)]],
    device float* state [[buffer(3)]],
    device float* out [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr int AHEAD = ROWS < 8 ? ROWS : 8;            // rows whose loads are in flight together
  static_assert(ROWS % AHEAD == 0, "a block is a whole number of loads");
  const uint channel = group.x * THREADS + tid;
  if (channel >= uint(CHANNELS)) return;
  LILY_TRIGGER();
  float tap[WIDTH];
  UNROLL for (int j = 0; j < WIDTH; j++) tap[j] = weight[channel * WIDTH + j];

  LILY_WAIT();
  const uint position = control[0];
  const int rows = int(active_rows<ONE>(control));
  const int first = int(group.y) * ROWS;
  if (first >= rows) return;
  const device float* column = x + channel;
  float window[WIDTH];                                  // the last WIDTH rows, oldest first
  UNROLL for (int j = 1; j < WIDTH; j++) {
    window[j] = first == 0 ? state[(position + uint(j)) % WIDTH * CHANNELS + channel]
                           : column[size_t(max(first - WIDTH + j, 0)) * CHANNELS];
  }
  const int last = min(first + ROWS, rows);
  for (int t0 = first; t0 < last; t0 += AHEAD) {
    float ahead[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; i++) ahead[i] = column[size_t(min(t0 + i, rows - 1)) * CHANNELS];
    UNROLL for (int i = 0; i < AHEAD; i++) {
      UNROLL for (int j = 0; j < WIDTH - 1; j++) window[j] = window[j + 1];
      window[WIDTH - 1] = ahead[i];
      float sum = tap[0] * window[0];
      UNROLL for (int j = 1; j < WIDTH; j++) sum = fma(tap[j], window[j], sum);
      if (t0 + i < rows) out[size_t(t0 + i) * CHANNELS + channel] = silu(sum);
    }
  }

  if (first == 0) {
    UNROLL for (int j = 0; j < WIDTH; j++) {
      const int t = rows - WIDTH + j;
      if (t >= 0) state[(position + uint(t)) % WIDTH * CHANNELS + channel] = column[size_t(t) * CHANNELS];
    }
  }
}
