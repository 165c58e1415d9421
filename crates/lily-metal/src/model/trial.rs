//! Runs the trial of the tensor units.

use std::sync::Arc;

use lily_device::LoadedModel;
use lily_device::compare::{Prepared, compare_steps};
use lily_kernels::lower::Tuning;
use lily_plan::valid::ValidPlan;

use crate::device::MetalDevice;
use crate::memory::Heap;
use crate::model::{MetalModel, filled};
use crate::trial;

/// Whether the tensor kernels compile here and agree with the simdgroup kernels; if not, why.
pub(crate) fn trial(device: &MetalDevice) -> Result<(), String> {
    let (manifest, plan) = trial::model();
    let valid = ValidPlan::new(plan.clone()).map_err(|error| error.to_string())?;
    let model = |tensor_units| {
        let tuning = Tuning { tensor_units, ..Tuning::default() };
        let weights = |heap: &Arc<Heap>| {
            filled(heap, &manifest, |layout, buffers| {
                trial::fill(&manifest, layout, buffers);
                Ok(())
            })
        };
        let model = MetalModel::new(device, manifest.clone(), tuning, weights);
        let mut model = model.map_err(|error| error.to_string())?;
        let plan = model.prepare(valid.clone()).map_err(|error| error.to_string())?;
        Ok::<_, String>((model, plan))
    };
    let ((plain, plain_plan), (tensor, tensor_plan)) = (model(false)?, model(true)?);
    let mut verdict = Ok(());
    let mut judge = |difference| {
        if verdict.is_ok() {
            verdict = trial::judge(&difference);
        }
    };
    let reference = Prepared { model: &plain, plan: plain_plan };
    let subject = Prepared { model: &tensor, plan: tensor_plan };
    compare_steps(&plan, reference, subject, trial::START, &mut judge)
        .map_err(|error| error.to_string())?;
    verdict
}
