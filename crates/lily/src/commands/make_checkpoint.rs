//! `lily make-checkpoint`: a checkpoint of random weights.

use std::time::Instant;

use anyhow::{Context, Result};
use lily_checkpoint::random::{RandomSpec, write_random};

use crate::args::MakeCheckpointArgs;

pub(crate) fn run(args: &MakeCheckpointArgs) -> Result<()> {
    let start = Instant::now();
    write_random(&args.out, &RandomSpec::new(args.layers))
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("wrote {} in {seconds:.1} s", args.out.display());
    Ok(())
}
