//! Depthwise causal convolution with its state.

use std::sync::Arc;

use lily_plan::op;

use super::math::{Arithmetic, per_isa, silu};
use super::{Kernel, Part, Run, Workspace, tasks_by_work};
use crate::weights::Weights;

/// Channels of a task come in multiples of this, so that no two tasks share a cache line.
const CHANNEL_UNIT: usize = 64;

pub(super) struct Conv {
    op: op::Conv,
    /// `[width, channels]`: taps of neighbouring channels side by side.
    taps: Arc<[f32]>,
}

impl Conv {
    pub(super) fn new(op: op::Conv, weights: &Weights<'_>) -> Self {
        let weight = weights.floats(op.weight, op.channels * op.width);
        Conv { taps: taps_first(&weight, op.width), op }
    }
}

/// `[width, channels]` from `[channels, width]`.
fn taps_first(weight: &[f32], width: usize) -> Arc<[f32]> {
    let channels = weight.len() / width;
    (0..weight.len()).map(|i| weight[i % channels * width + i / channels]).collect()
}

impl Kernel for Conv {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let op = &self.op;
        let work = CHANNEL_UNIT * run.rows(op.rows) * (op.width + 6);
        tasks_by_work(run, op.channels.div_ceil(CHANNEL_UNIT), work)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.op;
        let (rows, kept, position) = (run.rows(op.rows), op.width - 1, run.active.position);
        let channels = part.of_units(op.channels, CHANNEL_UNIT);
        let row = |t: usize| t * op.channels + channels.start..t * op.channels + channels.end;
        // Slot of the row `after` positions behind the first that the chunk looks back to. Slots of
        // positions before the first token were never written: they are zero.
        let slot = |after: usize| (position + 1 + after) % op.width;
        // Row `i` of what lies before the chunk, followed by the chunk.
        let input = |i: usize| {
            // SAFETY: the plan's hazards exclude writers of `x`; state in these channels is this
            // task's own, and no exclusive slice of it lives while this one does.
            unsafe {
                if i < kept {
                    run.memory.read::<f32>(&op.state, row(slot(i)))
                } else {
                    run.memory.read::<f32>(&op.x, row(i - kept))
                }
            }
        };
        let tap = |j: usize| &self.taps[row(j)];
        for t in 0..rows {
            // SAFETY: `out` has channels of its own per task.
            let out = unsafe { run.memory.write::<f32>(&op.out, row(t)) };
            if op.width == 4 {
                let x = [input(t), input(t + 1), input(t + 2), input(t + 3)];
                convolve_four(run.isa, x, [tap(0), tap(1), tap(2), tap(3)], out);
            } else {
                out.fill(0.0);
                for j in 0..op.width {
                    add_tap(run.isa, input(t + j), tap(j), out);
                }
                activate(run.isa, out);
            }
        }
        for t in rows.saturating_sub(op.width)..rows {
            let raw = input(kept + t);
            // SAFETY: state in these channels is this task's own, and no slice of it lives.
            let kept = unsafe { run.memory.write::<f32>(&op.state, row(slot(kept + t))) };
            kept.copy_from_slice(raw);
        }
    }
}

#[inline(always)]
fn convolve_four_row<A: Arithmetic>(x: [&[f32]; 4], taps: [&[f32]; 4], out: &mut [f32]) {
    let n = out.len();
    let (x, taps) = (x.map(|x| &x[..n]), taps.map(|taps| &taps[..n]));
    for i in 0..n {
        let mut sum = taps[0][i] * x[0][i];
        sum = A::mul_add(taps[1][i], x[1][i], sum);
        sum = A::mul_add(taps[2][i], x[2][i], sum);
        sum = A::mul_add(taps[3][i], x[3][i], sum);
        out[i] = silu::<A>(sum);
    }
}
per_isa!(fn convolve_four(x: [&[f32]; 4], taps: [&[f32]; 4], out: &mut [f32]) = convolve_four_row);

#[inline(always)]
fn add_tap_row<A: Arithmetic>(x: &[f32], taps: &[f32], out: &mut [f32]) {
    for ((out, x), tap) in out.iter_mut().zip(x).zip(taps) {
        *out = A::mul_add(*tap, *x, *out);
    }
}
per_isa!(fn add_tap(x: &[f32], taps: &[f32], out: &mut [f32]) = add_tap_row);

#[inline(always)]
fn activate_row<A: Arithmetic>(x: &mut [f32]) {
    for x in x {
        *x = silu::<A>(*x);
    }
}
per_isa!(fn activate(x: &mut [f32]) = activate_row);

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;
    use super::*;
    use crate::simd::Isa;

    fn wave(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin()).collect()
    }

    /// The whole sequence at once, in double precision.
    fn reference(x: &[f32], weight: &[f32], channels: usize, width: usize) -> Vec<f64> {
        (0..x.len())
            .map(|i| {
                let (t, ch) = (i / channels, i % channels);
                let sum: f64 = (0..width)
                    .filter(|j| t + j + 1 >= width)
                    .map(|j| {
                        let x = x[(t + j + 1 - width) * channels + ch];
                        f64::from(weight[ch * width + j]) * f64::from(x)
                    })
                    .sum();
                sum / (1.0 + (-sum).exp())
            })
            .collect()
    }

    #[test]
    fn any_cut_into_chunks_gives_the_convolution_of_the_whole() {
        for (width, channels) in [(4, 192), (4, 70), (3, 64), (2, 8)] {
            let rows = 13;
            let x = wave(rows * channels, 0.37);
            let weight = wave(channels * width, 0.71);
            let want = reference(&x, &weight, channels, width);
            for isa in Isa::available() {
                for chunk in [1, 2, 3, 5, 13] {
                    let mut bench = Bench::default();
                    let state = bench.f32s(&vec![0.0; width * channels]);
                    let input = bench.f32s(&vec![0.0; chunk * channels]);
                    let out = bench.f32s(&vec![0.0; chunk * channels]);
                    let op = op::Conv {
                        control: bench.u32s(&[0, 0]),
                        x: input.clone(),
                        weight: lily_plan::buffer::WeightId(0),
                        state,
                        out: out.clone(),
                        rows: chunk,
                        channels,
                        width,
                    };
                    let kernel = Conv { op, taps: taps_first(&weight, width) };
                    let mut got = Vec::new();
                    for (i, x) in x.chunks(chunk * channels).enumerate() {
                        bench.set_f32s(&input, x);
                        let rows = x.len() / channels;
                        bench.run(&kernel, isa, Active { position: i * chunk, rows });
                        got.extend_from_slice(&bench.get_f32s(&out)[..x.len()]);
                    }
                    for (got, want) in got.iter().zip(&want) {
                        assert!((f64::from(*got) - want).abs() < 1e-5);
                    }
                }
            }
        }
    }

    use super::super::Active;
}
