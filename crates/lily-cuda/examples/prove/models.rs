//! From flags to checkpoints, devices and plans.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lily_checkpoint::Checkpoint;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_cuda::{CudaDevice, CudaOptions};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::ValidPlan;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;

/// The checkpoint and how it runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Checkpoint directory; without one a tiny random model
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
    /// Layers of the tiny model
    #[arg(long, default_value_t = 4)]
    pub(crate) layers: usize,
    /// Tokens of context
    #[arg(long, default_value_t = 1024)]
    pub(crate) context: usize,
    /// Rows of a prefill chunk
    #[arg(long, default_value_t = 512)]
    pub(crate) rows: usize,
    /// Fusions
    #[arg(long, default_value = "all")]
    pub(crate) fuse: String,
    /// Switches of the CUDA device
    #[arg(long, default_value = "")]
    pub(crate) cuda: String,
}

impl ModelArgs {
    /// Opens the checkpoint; the folder of a tiny one is returned to be kept.
    pub(crate) fn open(&self) -> Result<(Checkpoint, Option<tempfile::TempDir>)> {
        if let Some(dir) = &self.model {
            let opened = Checkpoint::open(dir);
            return Ok((opened.with_context(|| format!("cannot open {}", dir.display()))?, None));
        }
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("tiny");
        let shape = RandomShape::tiny();
        write_random(&dir, &RandomSpec { shape, ..RandomSpec::new(self.layers) })?;
        Ok((Checkpoint::open(&dir)?, Some(folder)))
    }

    pub(crate) fn cuda(&self) -> Result<CudaDevice> {
        Ok(CudaDevice::new(self.options()?)?)
    }

    pub(crate) fn options(&self) -> Result<CudaOptions> {
        Ok(self.cuda.parse()?)
    }

    pub(crate) fn fusions(&self) -> Result<Fusions> {
        Ok(self.fuse.parse()?)
    }

    /// A plan as the engine builds it for a GPU.
    pub(crate) fn plan(
        &self,
        checkpoint: &Checkpoint,
        phase: Phase,
        fusions: Fusions,
    ) -> Result<ValidPlan> {
        let rows = match phase {
            Phase::Decode => 1,
            Phase::Prefill => self.rows.min(self.context),
            Phase::Score => self.rows.min(self.context).min(64),
        };
        let options = BuildOptions {
            kv: Elem::Bf16,
            fusions,
            activations: Elem::Bf16,
            token_slot: phase == Phase::Decode,
            ..BuildOptions::new(phase, rows, self.context)
        };
        Ok(ValidPlan::new(build(checkpoint.config(), checkpoint.manifest(), &options)?)?)
    }
}

/// Token `i` is `((i * 2654435761) mod 2^32) mod vocab`, as `lily bench` has it.
pub(crate) fn prompt(length: usize, vocab: usize) -> Vec<u32> {
    let token = |i: usize| {
        let hashed = (i as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        (hashed % vocab as u64) as u32
    };
    (0..length).map(token).collect()
}
