//! What the kernels are tried on.

use anyhow::{Context, Result};
use lily_checkpoint::Checkpoint;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use tempfile::TempDir;

use crate::args::DoctorArgs;
use crate::commands::interrupt::Unfinished;
use crate::model::is_pack;

/// A checkpoint, and the folder that holds it while it is used.
pub(super) struct Source {
    checkpoint: Checkpoint,
    description: String,
    // Dropped before the other, which removes it when a signal comes.
    _folder: Option<TempDir>,
    _unfinished: Option<Unfinished>,
}

impl Source {
    /// The model named, or else random weights with the widths of Qwen3.6-35B-A3B: few layers, few
    /// experts and a short vocabulary, so that it is made and read in a moment.
    pub(super) fn of(args: &DoctorArgs) -> Result<Source> {
        if let Some(dir) = args.model.dir() {
            let checkpoint = super::named(args)?;
            let checked = if is_pack(dir) { ", checksums match" } else { "" };
            let description = format!("{}{checked}", dir.display());
            return Ok(Source { checkpoint, description, _folder: None, _unfinished: None });
        }
        let folder = TempDir::new().context("cannot make a temporary folder")?;
        let shape = RandomShape { n_experts: 16, vocab_size: 65_536, ..RandomShape::default() };
        let spec = RandomSpec { shape, ..RandomSpec::new(4) };
        let unfinished = Unfinished::new(folder.path().to_owned())?;
        // In the folder, not as it: what is half written lies beside its place.
        let place = folder.path().join("model");
        write_random(&place, &spec)?;
        let checkpoint = Checkpoint::open(&place)?;
        let description = "random weights, 4 layers of the 35B widths, 16 experts".to_owned();
        Ok(Source { checkpoint, description, _folder: Some(folder), _unfinished: Some(unfinished) })
    }

    pub(super) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(super) fn description(&self) -> String {
        self.description.clone()
    }
}
