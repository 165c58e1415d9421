//! Penalties and bias: the steps that change single logits.

use std::collections::BTreeMap;

use super::SamplingParams;

/// Changes single logits in place, and takes the changes back.
#[derive(Clone, Debug)]
pub(crate) struct Adjustments {
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    bias: Vec<(u32, f32)>,
    token_limit: usize,
    /// Distinct tokens of the context, and which tokens these are.
    context: Vec<u32>,
    in_context: Vec<bool>,
    /// Occurrences among the generated tokens.
    generated: BTreeMap<u32, u32>,
    /// What was changed: index and former value, in order.
    undo: Vec<(u32, f32)>,
}

impl Adjustments {
    pub(crate) fn new(params: &SamplingParams, token_limit: usize) -> Self {
        let mut bias = params.logit_bias.clone();
        bias.retain(|&(id, _)| (id as usize) < token_limit);
        Adjustments {
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            bias,
            token_limit,
            context: Vec::new(),
            in_context: Vec::new(),
            generated: BTreeMap::new(),
            undo: Vec::new(),
        }
    }

    /// Whether no logit is ever changed.
    pub(crate) fn are_neutral(&self) -> bool {
        self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.bias.is_empty()
    }

    /// Counts tokens as part of the context.
    pub(crate) fn see(&mut self, tokens: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        self.in_context.resize(self.token_limit, false);
        for &id in tokens {
            let Some(seen) = self.in_context.get_mut(id as usize) else { continue };
            if !std::mem::replace(seen, true) {
                self.context.push(id);
            }
        }
    }

    /// Counts a token as generated.
    pub(crate) fn generated(&mut self, id: u32) {
        self.see(&[id]);
        if self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 {
            *self.generated.entry(id).or_default() += 1;
        }
    }

    /// Applies penalties and bias to the first `token_limit` logits.
    pub(crate) fn apply(&mut self, logits: &mut [f32]) {
        let undo = &mut self.undo;
        undo.clear();
        let mut change = |id: u32, f: &dyn Fn(f32) -> f32| {
            let logit = &mut logits[id as usize];
            if *logit == f32::NEG_INFINITY {
                return;
            }
            undo.push((id, *logit));
            // Finite logits stay finite, whatever the penalty.
            *logit = f(*logit).clamp(f32::MIN, f32::MAX);
        };
        let repetition = self.repetition_penalty;
        for &id in &self.context {
            change(id, &|x| if x < 0.0 { x * repetition } else { x / repetition });
        }
        for (&id, &count) in &self.generated {
            let penalty = self.presence_penalty + self.frequency_penalty * count as f32;
            change(id, &|x| x - penalty);
        }
        for &(id, bias) in &self.bias {
            change(id, &|x| x + bias);
        }
    }

    /// Puts back the logits as they were before [`Adjustments::apply`].
    pub(crate) fn revert(&mut self, logits: &mut [f32]) {
        for (id, logit) in self.undo.drain(..).rev() {
            logits[id as usize] = logit;
        }
    }
}
