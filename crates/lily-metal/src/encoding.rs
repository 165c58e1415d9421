//! What each command buffer of a run encodes, decided once per plan.
//!
//! A command buffer has one concurrent encoder: its dispatches may overlap, except across a barrier.
//! Barriers stand exactly between stages of the plan. Command buffers of a run wait for each other, so
//! the border of two needs no barrier.
//!
//! The system ends work that keeps the GPU busy for too long, and shows a stuttering display before:
//! so a long run is cut, at borders of stages, by an estimate of its time on the slowest GPU there is.

use lily_plan::plan::Plan;
use lily_plan::stats::{self, Work};
use lily_plan::valid::ValidPlan;

/// Estimated seconds after which a command buffer ends.
const BUDGET: f64 = 0.1;

/// Half of what a base M1 can do, in floating-point operations per second.
const FLOPS: f64 = 1.2e12;
/// Likewise in bytes per second.
const BANDWIDTH: f64 = 40e9;
/// Seconds from one dispatch to the next.
const DISPATCH: f64 = 5e-6;

/// One command of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The launch of that step.
    Dispatch(usize),
    /// What follows waits for what came before.
    Barrier,
}

/// One command buffer of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandBuffer {
    pub(crate) commands: Vec<Command>,
}

impl CommandBuffer {
    /// The steps that it dispatches.
    pub(crate) fn steps(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.commands.iter().filter_map(|command| match *command {
            Command::Dispatch(step) => Some(step),
            Command::Barrier => None,
        })
    }

    /// What to call it when it fails: its step, or its first and its last.
    pub(crate) fn label(&self, plan: &Plan) -> String {
        let name = |step: usize| plan.steps[step].name.as_str();
        match (self.steps().next(), self.steps().next_back()) {
            (Some(first), Some(last)) if first != last => {
                format!("{} .. {}", name(first), name(last))
            }
            (Some(only), _) => name(only).to_owned(),
            (None, _) => String::new(),
        }
    }
}

/// The command buffers of a run, at whatever position.
pub(crate) fn command_buffers(plan: &ValidPlan, step_by_step: bool) -> Vec<CommandBuffer> {
    // The last position costs most, because attention reads all of the cache.
    let position = plan.plan().capacity.saturating_sub(plan.plan().rows);
    let seconds: Vec<f64> = stats::stats(plan, position).steps.iter().map(seconds).collect();
    match step_by_step {
        true => {
            let steps = plan.stages().iter().flatten();
            steps.map(|&step| CommandBuffer { commands: vec![Command::Dispatch(step)] }).collect()
        }
        false => cut(plan.stages(), &seconds, BUDGET),
    }
}

fn seconds(work: &Work) -> f64 {
    let bytes = work.weight_bytes as f64 + 2.0 * work.state_bytes as f64 + work.kv_bytes as f64;
    DISPATCH + (bytes / BANDWIDTH).max(work.flops as f64 / FLOPS)
}

fn cut(stages: &[Vec<usize>], seconds: &[f64], budget: f64) -> Vec<CommandBuffer> {
    let mut buffers: Vec<CommandBuffer> = Vec::new();
    let mut used = 0.0;
    for stage in stages {
        let cost: f64 = stage.iter().map(|&step| seconds[step]).sum();
        match buffers.last_mut() {
            Some(buffer) if used + cost <= budget => {
                buffer.commands.push(Command::Barrier);
                used += cost;
            }
            _ => {
                buffers.push(CommandBuffer::default());
                used = cost;
            }
        }
        if let Some(buffer) = buffers.last_mut() {
            buffer.commands.extend(stage.iter().map(|&step| Command::Dispatch(step)));
        }
    }
    buffers
}

#[cfg(test)]
mod tests {
    use super::Command::{Barrier, Dispatch};
    use super::*;

    #[test]
    fn stages_are_apart_by_a_barrier_or_a_border() {
        let stages = [vec![0, 2], vec![1], vec![3], vec![4, 5]];
        let buffers = cut(&stages, &[1.0; 6], 3.0);
        let commands: Vec<_> = buffers.iter().map(|buffer| buffer.commands.as_slice()).collect();
        assert_eq!(
            commands,
            [
                &[Dispatch(0), Dispatch(2), Barrier, Dispatch(1)][..],
                &[Dispatch(3), Barrier, Dispatch(4), Dispatch(5)],
            ]
        );
    }

    #[test]
    fn a_stage_beyond_the_budget_has_its_own_command_buffer() {
        let stages = [vec![0], vec![1], vec![2]];
        let buffers = cut(&stages, &[0.1, 9.0, 0.1], 1.0);
        assert_eq!(buffers.iter().map(|b| b.commands.len()).collect::<Vec<_>>(), [1, 1, 1]);
        assert!(cut(&[], &[], 1.0).is_empty());
    }

    #[test]
    fn a_label_names_the_first_and_the_last_step() {
        let plan = testing::plan(lily_plan::plan::Phase::Decode, 1);
        let buffers = command_buffers(&plan, false);
        let (first, last) = (&plan.plan().steps[0].name, buffers[0].label(plan.plan()));
        assert!(last.starts_with(first.as_str()) && last.contains(" .. "), "{last}");
        let steps = command_buffers(&plan, true);
        assert_eq!(steps[0].label(plan.plan()), *first);
    }

    #[test]
    fn a_decode_step_is_one_command_buffer() {
        let plan = testing::plan(lily_plan::plan::Phase::Decode, 1);
        assert_eq!(command_buffers(&plan, false).len(), 1);
        let steps = command_buffers(&plan, true);
        assert_eq!(steps.len(), plan.plan().steps.len());
    }

    /// What a GPU may overlap is what stands between two barriers: no edge of the plan may lie there.
    #[test]
    fn every_edge_of_the_plan_crosses_a_barrier_or_a_border() {
        use lily_plan::plan::Phase;
        for (phase, rows) in [(Phase::Decode, 1), (Phase::Prefill, 48), (Phase::Score, 16)] {
            let plan = testing::plan(phase, rows);
            let seconds: Vec<f64> = (0..plan.plan().steps.len()).map(|i| (i % 7) as f64).collect();
            for budget in [0.0, 5.0, 20.0, 1e9] {
                let buffers = cut(plan.stages(), &seconds, budget);
                let mut group = vec![None; plan.plan().steps.len()];
                let mut now = 0;
                for command in buffers.iter().flat_map(|b| b.commands.iter().chain([&Barrier])) {
                    match *command {
                        Barrier => now += 1,
                        Dispatch(step) => assert_eq!(group[step].replace(now), None, "once"),
                    }
                }
                assert!(group.iter().all(Option::is_some), "every step is dispatched");
                for edge in plan.edges() {
                    assert!(group[edge.from] < group[edge.to], "{edge:?} at budget {budget}");
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use lily_checkpoint::describe;
    use lily_model::{BuildOptions, Fusions, build};
    use lily_plan::buffer::Elem;
    use lily_plan::plan::Phase;
    use lily_plan::valid::ValidPlan;

    /// A plan of the demonstration model.
    pub(crate) fn plan(phase: Phase, rows: usize) -> ValidPlan {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/checkpoint");
        let (config, manifest) = describe(&demo).unwrap();
        let kv = Elem::F32;
        let fusions = Fusions::all();
        let options = BuildOptions { kv, fusions, ..BuildOptions::new(phase, rows, 64) };
        ValidPlan::new(build(&config, &manifest, &options).unwrap()).unwrap()
    }
}
