//! `lily make-checkpoint`: a checkpoint of random weights.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use lily_checkpoint::CheckpointError;
use lily_checkpoint::random::{RandomSpec, partial_path, write_random};

use super::interrupt::Unfinished;
use super::output::bytes;
use crate::args::MakeCheckpointArgs;
use crate::failure::usage;

pub(crate) fn run(args: &MakeCheckpointArgs) -> Result<()> {
    let (out, shown) = (&args.out, args.out.display());
    let start = Instant::now();
    let unfinished = Unfinished::new(partial_path(out))?;
    match write_random(out, &RandomSpec::new(args.layers)) {
        // No --force: a whole folder is too much to lose by one mistyped word.
        Err(error @ CheckpointError::NotEmpty { .. }) => return Err(usage(error.to_string())),
        written => written.with_context(|| format!("cannot write {shown}"))?,
    }
    drop(unfinished);
    let size = bytes(size_of(out)?);
    eprintln!("wrote {shown} ({size}) in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes of all files in a directory.
fn size_of(dir: &Path) -> io::Result<u64> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
