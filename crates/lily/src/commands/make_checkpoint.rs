//! `lily make-checkpoint`: a checkpoint of random weights.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use lily_checkpoint::random::{RandomSpec, write_random};

use super::output::bytes;
use crate::args::MakeCheckpointArgs;

pub(crate) fn run(args: &MakeCheckpointArgs) -> Result<()> {
    let start = Instant::now();
    write_random(&args.out, &RandomSpec::new(args.layers))
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    let size = bytes(size_of(&args.out)?);
    eprintln!("wrote {} ({size}) in {seconds:.1} s", args.out.display());
    Ok(())
}

/// Bytes of all files in a directory.
fn size_of(dir: &Path) -> io::Result<u64> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
