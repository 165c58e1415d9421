//! `lily pack`: one file that maps without copying.

use std::fs;
use std::io::{self, IsTerminal};
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use lily_checkpoint::Checkpoint;
use lily_checkpoint::pack::{EXTENSION, write_pack};

use super::output::bytes;
use crate::args::PackArgs;
use crate::failure::usage;
use crate::model;

pub(crate) fn run(args: &PackArgs) -> Result<()> {
    let (file, shown) = (&args.file, args.file.display());
    if file.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(usage(format!("{shown} does not end in .{EXTENSION}")));
    }
    let start = Instant::now();
    let bar = Bar::default();
    if args.check {
        let pack = Checkpoint::open(file).with_context(|| format!("cannot open {shown}"))?;
        pack.verify(&mut |done, total| bar.advance("checking", done, total))?;
    } else {
        if file.exists() && !args.force {
            return Err(usage(format!("{shown} exists; --force replaces it")));
        }
        let checkpoint = model::open(&args.model)?;
        let advance = &mut |done, total| bar.advance("packing", done, total);
        write_pack(&checkpoint, file, advance).with_context(|| format!("cannot write {shown}"))?;
    }
    let size = bytes(fs::metadata(file)?.len());
    let did = if args.check { "checked" } else { "wrote" };
    eprintln!("{did} {shown} ({size}) in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
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
