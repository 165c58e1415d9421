//! Runs prepared plans: the steps of one stage are cut into tasks, and all tasks of the stage are
//! one job of the pool. The end of the job is the barrier between stages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lily_plan::op::Op;

use crate::ops::{Kernel, Part, Run, Workspace, kind};
use crate::pool::{Pool, SharedSlice};

/// A step with its weights resolved, and what it is called.
pub(crate) struct PreparedStep {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) kernel: Box<dyn Kernel>,
}

impl PreparedStep {
    pub(crate) fn new(name: &str, op: &Op, kernel: Box<dyn Kernel>) -> Self {
        PreparedStep { name: name.to_owned(), kind: kind(op), kernel }
    }
}

/// The tasks of one step within a stage.
#[derive(Clone, Copy, Debug)]
struct Share {
    step: usize,
    /// Number of the first task of the next step.
    end: usize,
    count: usize,
}

/// Time spent in one kind of operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// Kind, such as `gated_delta`.
    pub op: &'static str,
    /// Steps run.
    pub steps: u64,
    /// Wall time, all threads working on one step at a time.
    pub time: Duration,
}

/// What runs share: working memory per thread, and the table of the current stage.
#[derive(Debug, Default)]
pub(crate) struct Executor {
    workspaces: Vec<Workspace>,
    shares: Vec<Share>,
    /// Times by kind while profiling.
    profile: Option<Vec<OpTime>>,
    /// The step that a panic came from; `usize::MAX` for none.
    blamed: AtomicUsize,
}

impl Executor {
    pub(crate) fn new(threads: usize) -> Self {
        Executor {
            workspaces: (0..threads).map(|_| Workspace::default()).collect(),
            blamed: AtomicUsize::new(usize::MAX),
            ..Executor::default()
        }
    }

    /// Makes room for stages of up to `steps` steps, so that runs need not.
    pub(crate) fn reserve(&mut self, steps: usize) {
        self.shares.reserve(steps.saturating_sub(self.shares.len()));
    }

    /// Starts or stops taking times; while taking them, steps of a stage do not overlap.
    pub(crate) fn set_profiling(&mut self, on: bool) {
        self.profile = on.then(Vec::new);
    }

    /// Times taken since profiling began.
    pub(crate) fn profile(&self) -> Vec<OpTime> {
        self.profile.clone().unwrap_or_default()
    }

    /// The step whose task panicked.
    pub(crate) fn blamed(&self) -> Option<usize> {
        Some(self.blamed.load(Ordering::Relaxed)).filter(|&step| step != usize::MAX)
    }

    /// Runs the stages in order.
    pub(crate) fn run(
        &mut self,
        pool: &Pool,
        steps: &[PreparedStep],
        stages: &[Vec<usize>],
        run: &Run<'_>,
    ) {
        *self.blamed.get_mut() = usize::MAX;
        for stage in stages {
            if self.profile.is_none() {
                self.run_stage(pool, steps, stage, run);
                continue;
            }
            for step in stage {
                let start = Instant::now();
                self.run_stage(pool, steps, std::slice::from_ref(step), run);
                self.note(steps[*step].kind, start.elapsed());
            }
        }
    }

    fn note(&mut self, op: &'static str, time: Duration) {
        let Some(times) = &mut self.profile else { return };
        match times.iter_mut().find(|t| t.op == op) {
            Some(entry) => {
                entry.steps += 1;
                entry.time += time;
            }
            None => times.push(OpTime { op, steps: 1, time }),
        }
    }

    fn run_stage(&mut self, pool: &Pool, steps: &[PreparedStep], stage: &[usize], run: &Run<'_>) {
        // What the stage reads, no step of it writes; earlier stages may have.
        for workspace in &mut self.workspaces {
            workspace.matrix.forget();
        }
        self.shares.clear();
        let mut end = 0;
        for &step in stage {
            let count = steps[step].kernel.tasks(run);
            end += count;
            self.shares.push(Share { step, end, count });
        }
        let shares = &self.shares;
        let blamed = &self.blamed;
        let workspaces = SharedSlice::new(&mut self.workspaces);
        pool.run(end, |task, worker| {
            let share = shares[shares.partition_point(|share| share.end <= task)];
            let part = Part { index: task + share.count - share.end, count: share.count };
            let _blame = Blame { blamed, step: share.step };
            // SAFETY: a worker number belongs to one thread for the whole job.
            let workspace = unsafe { &mut workspaces.slice(worker, 1)[0] };
            steps[share.step].kernel.task(run, part, workspace);
        });
    }
}

/// Notes its step when dropped by a panic.
struct Blame<'a> {
    blamed: &'a AtomicUsize,
    step: usize,
}

impl Drop for Blame<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.blamed.store(self.step, Ordering::Relaxed);
        }
    }
}
