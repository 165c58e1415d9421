//! `lily bench`: prefill and decode speed under the published contract, alone or beside another engine.
//!
//! `contract` is what is measured, `compare` takes turns with a peer of `peers`, `report` and `html`
//! show what came out.

mod compare;
mod contract;
mod html;
mod machine;
mod peers;
mod plot;
mod report;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lily_engine::{EngineOptions, Session};
use serde_json::{Value, json};

use self::contract::{Measured, Shape};
use self::machine::Machine;
use self::report::{Report, Row, Settings};
use super::output::{bytes, counted, print, print_pretty};
use crate::args::BenchArgs;
use crate::device::describe;
use crate::failure::usage;
use crate::model::{self, Loaded, Needs};

/// Lengths where none are asked for and no peer is there.
const LENGTHS: [usize; 2] = [256, 512];

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(file) = &args.html {
        writable(file)?;
    }
    match args.compare {
        Some(kind) => compare::run(args, kind),
        None => alone(args),
    }
}

fn alone(args: &BenchArgs) -> Result<()> {
    let lengths = args.lengths.clone().unwrap_or_else(|| LENGTHS.to_vec());
    let longest = *lengths.iter().max().context("--lengths is empty")?;
    let shape = Shape { length: longest, steps: args.steps };
    let loaded = model::load(&args.model, &args.engine, Needs::Ids, |options, config| {
        fits(shape, options.context, config.max_position_embeddings)?;
        Ok(EngineOptions { context: options.context.or(Some(shape.context())), ..options })
    })?;
    let mut session = loaded.engine.new_session()?;
    let shapes = lengths.iter().map(|&length| Shape { length, ..shape });
    let results = shapes
        .map(|shape| measure(args, &loaded, &mut session, shape))
        .collect::<Result<Vec<_>>>()?;
    if args.json {
        print_pretty(&report(args, &loaded, &results))?;
    } else {
        print(&table(&loaded, &results))?;
    }
    let Some(file) = &args.html else { return Ok(()) };
    let report = Report {
        model: loaded.name,
        version: env!("CARGO_PKG_VERSION"),
        device: describe(&loaded.device),
        machine: Machine::this(),
        date: machine::now(),
        settings: Settings::of(args, &loaded.device),
        peer: None,
        notes: Vec::new(),
        rows: results.into_iter().map(|lily| Row { lily, peer: None }).collect(),
        peak_memory: peak_memory(),
    };
    write(file, &html::page(&report))
}

/// Refuses a shape that the context that was asked for, or else the model, cannot hold.
fn fits(shape: Shape, context: Option<usize>, most: usize) -> Result<()> {
    let (holder, held) = match context {
        Some(context) => ("the context", context),
        None => ("the model", most),
    };
    if shape.context() > held {
        return Err(usage(format!(
            "length {} and {} need {} tokens, {holder} has {held}",
            shape.length,
            counted(shape.steps as u64, "step"),
            shape.context()
        )));
    }
    Ok(())
}

fn measure(
    args: &BenchArgs,
    loaded: &Loaded,
    session: &mut Session,
    shape: Shape,
) -> Result<Measured> {
    let prompt = contract::prompt(shape.length, loaded.engine.config().vocab_size);
    let mut measured = Measured::new(shape);
    measured.warm_up("", contract::run(session, &prompt, shape.steps)?)?;
    for _ in 0..args.rounds {
        measured.add("", contract::run(session, &prompt, shape.steps)?)?;
    }
    Ok(measured)
}

/// Refuses a place where no file can be written, before anything is measured.
fn writable(file: &Path) -> Result<()> {
    let shown = file.display();
    if file.is_dir() {
        return Err(usage(format!("--html {shown} is a directory, expected a file")));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(usage(format!("--html {shown}: there is no such folder")));
    }
    Ok(())
}

fn write(file: &Path, page: &str) -> Result<()> {
    fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
}

fn report(args: &BenchArgs, loaded: &Loaded, results: &[Measured]) -> Value {
    let result = |m: &Measured| {
        let mut result = json!({"prompt_tokens": m.shape.length, "decode_steps": m.shape.steps});
        if let (Some(result), Value::Object(figures)) =
            (result.as_object_mut(), report::measured(m))
        {
            result.extend(figures);
        }
        result
    };
    let settings = Settings::of(args, &loaded.device);
    json!({
        "model": loaded.name,
        "version": env!("CARGO_PKG_VERSION"),
        "device": describe(&loaded.device),
        "batch": 1,
        "kv_cache": settings.kv_cache,
        "prefill_chunk": settings.prefill_chunk,
        "results": results.iter().map(result).collect::<Vec<_>>(),
        "peak_memory_bytes": peak_memory(),
    })
}

fn table(loaded: &Loaded, results: &[Measured]) -> String {
    let mut text = format!("{} on {}\n", loaded.name, describe(&loaded.device));
    text += "prompt  first token    prefill     decode  digest\n";
    for m in results {
        text += &format!(
            "{:>6} {:>9.0} ms {:>6.1} t/s {:>6.1} t/s  {}\n",
            m.shape.length,
            m.first_token_s() * 1e3,
            m.prefill_rate(),
            m.decode_rate(),
            m.digest().unwrap_or_default()
        );
    }
    if let Some(peak) = peak_memory() {
        text += &format!("peak memory {}\n", bytes(peak));
    }
    text
}

/// The most memory this process ever held, where the system tells (Linux).
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
