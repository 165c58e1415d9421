//! Which kernel a step gets.

mod common;

use std::collections::BTreeSet;

use lily_kernels::launch::{Extent, Launch};
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
    let off = Tuning { scan_chunks: false, ..Tuning::nvidia() };
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

/// The launches of a kind in a decode plan of the 35B shape; `None` without the shape.
fn decode(kind: &str, tuning: &Tuning) -> Option<Vec<Launch>> {
    let folder = common::shared()?.join("qwen36");
    let (config, manifest) = lily_checkpoint::describe(&folder).unwrap();
    let options = BuildOptions {
        fusions: lily_model::Fusions::all(),
        ..BuildOptions::new(Phase::Decode, 1, 4096)
    };
    let plan = ValidPlan::new(build(&config, &manifest, &options).unwrap()).unwrap();
    let program = lower(&plan, &manifest, tuning).unwrap();
    let steps = plan.plan().steps.iter().zip(program.launches);
    Some(steps.filter(|(step, _)| step.op.signature().kind == kind).map(|(_, l)| l).collect())
}

#[test]
fn a_value_head_of_decode_is_shared_by_a_cluster_where_the_tuning_says_so() {
    for (tuning, cluster, groups, threads) in [
        (Tuning::nvidia(), "4", 128, 128),
        (Tuning::nvidia().without_clusters(), "1", 32, 512),
        (Tuning::default(), "1", 32, 512),
        // 32 rows are the least that a threadgroup can have.
        (Tuning { delta_cluster: 8, ..Tuning::nvidia() }, "4", 128, 128),
    ] {
        let Some(launches) = decode("delta_mix", &tuning) else { return };
        assert_eq!(launches.len(), 30);
        for launch in launches {
            assert_eq!(launch.kernel.args.last().unwrap(), cluster);
            assert_eq!((launch.grid[0], launch.threads), (Extent::Fixed(groups), threads));
        }
    }
}

#[test]
fn down_projections_take_tiles_where_the_machine_multiplies_them() {
    let off = Tuning { row_tiles: false, ..Tuning::nvidia() };
    for (tuning, groups) in [(Tuning::nvidia(), 128), (off, 512), (Tuning::default(), 512)] {
        let Some(launches) = decode("routed_down", &tuning) else { return };
        assert_eq!(launches.len(), 40);
        assert!(launches.iter().all(|launch| launch.grid[0] == Extent::Fixed(groups)));
    }
}
