//! Which kernel a step gets.

mod common;

use std::collections::BTreeSet;

use lily_kernels::lower::{Tuning, lower};
use lily_model::{BuildOptions, build};
use lily_plan::ValidPlan;
use lily_plan::plan::Phase;

/// The templates of the scans of a prefill plan of the 35B shape; `None` without the shape.
fn scans(rows: usize, tuning: &Tuning) -> Option<BTreeSet<&'static str>> {
    let folder = common::shared()?.join("qwen36");
    let (config, manifest) = lily_checkpoint::describe(&folder).unwrap();
    let options = BuildOptions::new(Phase::Prefill, rows, 4096);
    let plan = ValidPlan::new(build(&config, &manifest, &options).unwrap()).unwrap();
    let program = lower(&plan, &manifest, tuning).unwrap();
    let steps = plan.plan().steps.iter().zip(&program.launches);
    let scans = steps.filter(|(step, _)| step.op.signature().kind == "gated_delta");
    Some(scans.map(|(_, launch)| launch.kernel.template).collect())
}

#[test]
fn scans_of_many_rows_go_by_chunks_where_the_tuning_says_so() {
    let off = Tuning { scan_chunk: 0, ..Tuning::nvidia() };
    for (rows, tuning, template) in [
        (31, Tuning::nvidia(), "gated_delta"),
        (32, Tuning::nvidia(), "gated_delta_chunks"),
        (4096, Tuning::nvidia(), "gated_delta_chunks"),
        (4096, off, "gated_delta"),
        (4096, Tuning::default(), "gated_delta"),
    ] {
        let Some(found) = scans(rows, &tuning) else { return };
        assert_eq!(found, BTreeSet::from([template]), "{rows} rows");
    }
}
