//! Stages: the length of the longest chain of hazards that leads to a step.

use crate::hazard::Hazard;

/// Step indices by stage, each stage in program order.
///
/// Hazards point forward in program order, so one pass in order of `to` settles every step.
pub(crate) fn stages(n_steps: usize, hazards: &[Hazard]) -> Vec<Vec<usize>> {
    let mut sorted: Vec<(usize, usize)> = hazards.iter().map(|h| (h.to, h.from)).collect();
    sorted.sort_unstable();
    let mut stage_of = vec![0usize; n_steps];
    for (to, from) in sorted {
        stage_of[to] = stage_of[to].max(stage_of[from] + 1);
    }
    let mut stages = vec![Vec::new(); stage_of.iter().max().map_or(0, |last| last + 1)];
    for (step, stage) in stage_of.into_iter().enumerate() {
        stages[stage].push(step);
    }
    stages
}
