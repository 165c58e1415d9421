//! One step alone, to compare devices.

use lily_device::compare::control;
use lily_device::{DeviceError, PlanId};

use crate::error::{CudaError, driver};
use crate::memory::{Address, DeviceMemory};
use crate::model::CudaModel;

impl CudaModel {
    /// As [`lily_device::LoadedModel::probe`].
    pub(super) fn probe_step(
        &self,
        plan: PlanId,
        step: usize,
        buffers: &mut [Vec<u8>],
    ) -> Result<(), DeviceError> {
        let prepared = &self.plans[plan.0];
        let launch = &prepared.launches[step];
        let at = |error: CudaError| error.at(&launch.step);
        let _running = self.lock();
        // Every buffer in memory of its own size, so that a checker sees accesses beyond it.
        let declared = &prepared.plan.plan().buffers;
        assert_eq!(buffers.len(), declared.len(), "one content per buffer of the plan");
        control(prepared.plan.plan(), buffers);
        let mut memory: Vec<Option<DeviceMemory>> = declared.iter().map(|_| None).collect();
        for id in launch.buffers() {
            let index = id.0 as usize;
            if memory[index].is_some() {
                continue;
            }
            let (name, content) = (&declared[index].name, &buffers[index]);
            assert_eq!(content.len() as u64, declared[index].bytes(), "bytes of {name}");
            let bytes = content.len() as u64;
            let own = DeviceMemory::zeroed(&self.context, name, bytes).map_err(at)?;
            own.write(0, content).map_err(at)?;
            memory[index] = Some(own);
        }
        let bases: Vec<Address> =
            memory.iter().map(|own| own.as_ref().map_or(0, DeviceMemory::base)).collect();
        // SAFETY: the step's buffers live until the end of this function, which waits for the step,
        // and nobody else knows them; weights live as long as the model.
        unsafe { launch.at(&bases).launch(&self.stream, false) }.map_err(at)?;
        self.stream.synchronize().map_err(driver("cuStreamSynchronize")).map_err(at)?;
        for (own, content) in memory.iter().zip(buffers) {
            if let Some(own) = own {
                own.read(0, content).map_err(at)?;
            }
        }
        Ok(())
    }
}
