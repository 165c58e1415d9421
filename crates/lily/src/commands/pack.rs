//! `lily pack`: one file that maps without copying.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use lily_checkpoint::pack::{EXTENSION, partial_path, write_pack};
use lily_checkpoint::{Checkpoint, CheckpointError};

use super::interrupt::Unfinished;
use super::output::bytes;
use crate::args::PackArgs;
use crate::failure::usage;
use crate::model;

pub(crate) fn run(args: &PackArgs) -> Result<()> {
    let (file, shown) = (&args.file, args.file.display());
    if file.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(usage(format!("{shown} does not end in .{EXTENSION}")));
    }
    if file.is_dir() {
        return Err(usage(format!("{shown} is a directory, expected a file")));
    }
    let start = Instant::now();
    if args.check {
        let pack = Checkpoint::open(file).map_err(|error| model::unopened(file, error))?;
        verify(&pack, file)?;
    } else {
        if file.exists() && !args.force {
            return Err(usage(format!("{shown} exists; --force replaces it")));
        }
        let checkpoint = model::open(&args.model)?;
        let bar = Bar::default();
        let advance = &mut |done, total| bar.advance("packing", done, total);
        let _unfinished = Unfinished::new(partial_path(file))?;
        write_pack(&checkpoint, file, advance).map_err(|error| unwritten(file, error))?;
    }
    let size = bytes(fs::metadata(file)?.len());
    let did = if args.check { "checked" } else { "wrote" };
    eprintln!("{did} {shown} ({size}) in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Compares a `.lily` file, opened from `file`, with its checksums; other checkpoints have none.
pub(crate) fn verify(checkpoint: &Checkpoint, file: &Path) -> Result<()> {
    let bar = Bar::default();
    let verified = checkpoint.verify(&mut |done, total| bar.advance("checking", done, total));
    verified.map_err(|error| match error {
        CheckpointError::Pack { source, .. } => {
            anyhow::Error::new(source).context(file.display().to_string())
        }
        other => other.into(),
    })
}

/// An error of the file itself is told without naming it a second time.
fn unwritten(file: &Path, error: CheckpointError) -> anyhow::Error {
    let partial = partial_path(file);
    let own = |named: &str| [file, &partial].contains(&Path::new(named));
    let reason = match error {
        CheckpointError::Io { path, source } if own(&path) => source.into(),
        other => anyhow::Error::new(other),
    };
    reason.context(format!("cannot write {}", file.display()))
}

/// A bar on a terminal.
#[derive(Default)]
struct Bar {
    bar: std::cell::OnceCell<ProgressBar>,
}

impl Bar {
    fn advance(&self, what: &'static str, done: u64, total: u64) {
        if !io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let style = "{msg} {bar:32} {decimal_bytes} of {decimal_total_bytes} \
                         ({decimal_bytes_per_sec})";
            let style = ProgressStyle::with_template(style).expect("the template is a constant");
            ProgressBar::new(total).with_style(style).with_message(what)
        });
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}
