//! What the kernels are tried on.

use anyhow::{Context, Result};
use lily_checkpoint::Checkpoint;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use tempfile::TempDir;

use crate::args::DoctorArgs;
use crate::model::is_pack;

/// A checkpoint, and the folder that holds it while it is used.
pub(super) struct Source {
    checkpoint: Checkpoint,
    description: String,
    _folder: Option<TempDir>,
}

impl Source {
    /// The model named, or else random weights with the widths of Qwen3.6-35B-A3B: few layers, few
    /// experts and a short vocabulary, so that it is made and read in a moment.
    pub(super) fn of(args: &DoctorArgs) -> Result<Source> {
        if let Some(dir) = args.model.dir() {
            let checkpoint = super::named(args)?;
            let checked = if is_pack(dir) { ", checksums match" } else { "" };
            let description = format!("{}{checked}", dir.display());
            return Ok(Source { checkpoint, description, _folder: None });
        }
        let folder = TempDir::new().context("cannot make a temporary folder")?;
        let shape = RandomShape { n_experts: 16, vocab_size: 65_536, ..RandomShape::default() };
        let spec = RandomSpec { shape, ..RandomSpec::new(4) };
        write_random(folder.path(), &spec)?;
        let checkpoint = Checkpoint::open(folder.path())?;
        let description = "random weights, 4 layers of the 35B widths, 16 experts".to_owned();
        Ok(Source { checkpoint, description, _folder: Some(folder) })
    }

    pub(super) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(super) fn description(&self) -> String {
        self.description.clone()
    }
}
