//! Norms and the projections that read them.

use lily_plan::buffer::Region;
use lily_plan::op::{Add, FoldedNorm, Linear, Op, RmsNorm, StackedLinear, StackedPart};

use crate::build::Builder;
use crate::error::ModelError;

/// What projections read: the residual stream with a norm that they do themselves, or its norm.
#[derive(Clone, Debug)]
pub(crate) struct Normed {
    pub(crate) x: Region,
    pub(crate) norm: Option<FoldedNorm>,
}

impl Builder<'_> {
    /// The norm called `name` of `x`, left to its readers where the fusion is on and `foldable`.
    pub(crate) fn normed(
        &mut self,
        name: &str,
        x: &Region,
        rows: usize,
        foldable: bool,
    ) -> Result<Normed, ModelError> {
        let (dim, eps) = (self.config.hidden_size, self.config.rms_norm_eps);
        let weight = self.vector(name, dim)?;
        let x = x.clone();
        if foldable && self.fusions().norm {
            return Ok(Normed { x, norm: Some(FoldedNorm { weight, eps }) });
        }
        let out = self.activations(name, rows, dim);
        self.push(name, Op::RmsNorm(RmsNorm { x, weight, out: out.clone(), rows, dim, eps }));
        Ok(Normed { x: out, norm: None })
    }

    /// One output per projection `(weight, n)` of `h`; `step` names the step where they are one.
    /// Buffers are called like their weights.
    pub(crate) fn project_all<const N: usize>(
        &mut self,
        step: &str,
        h: &Normed,
        projections: [(String, usize); N],
    ) -> Result<[Region; N], ModelError> {
        let (rows, k) = (self.rows, self.config.hidden_size);
        let outs = projections.each_ref().map(|(name, n)| self.scratch(name, rows, *n));
        self.project_into(step, h, (rows, k), projections, &outs)?;
        Ok(outs)
    }

    /// As [`Builder::project_all`], into outputs that exist.
    pub(crate) fn project_into<const N: usize>(
        &mut self,
        step: &str,
        h: &Normed,
        (rows, k): (usize, usize),
        projections: [(String, usize); N],
        outs: &[Region],
    ) -> Result<(), ModelError> {
        let mut parts = Vec::with_capacity(N);
        for ((name, n), out) in projections.iter().zip(outs) {
            let (weight, out) = (self.matrix(name, *n, k)?, out.clone());
            parts.push((name, StackedPart { weight, out, n: *n }));
        }
        let Normed { x, norm } = h;
        let stacked = |parts| {
            let (x, norm) = (x.clone(), *norm);
            Op::StackedLinear(StackedLinear { x, norm, parts, rows, k })
        };
        if self.fusions().stack && (N > 1 || norm.is_some()) {
            let parts = parts.into_iter().map(|(_, part)| part).collect();
            self.push(step, stacked(parts));
            return Ok(());
        }
        for (name, part) in parts {
            // A single projection goes by the step's name.
            let name = if N == 1 { step } else { name };
            if norm.is_some() {
                self.push(name, stacked(vec![part]));
                continue;
            }
            let StackedPart { weight, out, n } = part;
            let (x, accumulate) = (x.clone(), false);
            self.push(name, Op::Linear(Linear { x, weight, out, rows, n, k, accumulate }));
        }
        Ok(())
    }

    /// `out = x Wᵀ` into fresh scratch; step, buffer and weight are called alike.
    pub(crate) fn project(
        &mut self,
        weight: &str,
        x: &Region,
        n: usize,
        k: usize,
    ) -> Result<Region, ModelError> {
        let out = self.scratch(weight, self.rows, n);
        self.linear(weight, x, out.clone(), (n, k), false)?;
        Ok(out)
    }

    /// `x += y Wᵀ`: one step, or two where the residual fusion is off.
    pub(crate) fn project_residual(
        &mut self,
        weight: &str,
        y: &Region,
        x: &Region,
        k: usize,
    ) -> Result<(), ModelError> {
        let (rows, dim) = (self.rows, self.config.hidden_size);
        if self.fusions().residual {
            return self.linear(weight, y, x.clone(), (dim, k), true);
        }
        let out = self.project(weight, y, dim, k)?;
        self.push(format!("{weight}.residual"), Op::Add(Add { x: x.clone(), y: out, rows, dim }));
        Ok(())
    }

    fn linear(
        &mut self,
        weight: &str,
        x: &Region,
        out: Region,
        (n, k): (usize, usize),
        accumulate: bool,
    ) -> Result<(), ModelError> {
        let id = self.matrix(weight, n, k)?;
        let (x, rows) = (x.clone(), self.rows);
        self.push(weight, Op::Linear(Linear { x, weight: id, out, rows, n, k, accumulate }));
        Ok(())
    }
}
