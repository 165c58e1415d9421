//! Runs on a GPU that prove the CUDA device: each step against the CPU, tokens and likelihoods of
//! whole models, speed, and what each technique is worth. `scripts/gpu/prove.sh` calls it.
//!
//! Text for people goes to standard error, one JSON object to standard output. The exit code is 1
//! where something is wrong.
#![forbid(unsafe_code)]

mod ablate;
mod company;
mod facts;
mod goldens;
mod models;
mod once;
mod score;
mod steps;
mod trace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lily_checkpoint::random::{RandomSpec, write_random};
use serde_json::Value;

/// What to prove.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a random checkpoint of the full shape.
    Make {
        /// Layers
        #[arg(long)]
        layers: usize,
        /// Folder to create
        folder: std::path::PathBuf,
    },
    /// What the compiler and the graph builder made of the plans.
    Facts(models::ModelArgs),
    /// Every step of every kind of plan against the CPU.
    Steps(steps::StepsArgs),
    /// Reference logits and tokens of tiny checkpoints.
    Goldens(goldens::GoldensArgs),
    /// Greedy tokens against the CPU's.
    Tokens(company::TokensArgs),
    /// Likelihood of given tokens against the CPU's.
    Score(score::ScoreArgs),
    /// The same tokens alone, again, and beside another session.
    Company(company::CompanyArgs),
    /// One decode step and one prefill chunk: for compute-sanitizer.
    Once(once::OnceArgs),
    /// Speed with each technique switched off, one at a time.
    Ablate(ablate::AblateArgs),
    /// When the blocks of a decode step begin, have waited and end.
    Trace(trace::TraceArgs),
}

/// What a command found.
struct Verdict {
    passed: bool,
    report: Value,
}

fn main() -> Result<ExitCode> {
    let verdict = match &Cli::parse().command {
        Command::Make { layers, folder } => {
            write_random(folder, &RandomSpec::new(*layers))?;
            Verdict { passed: true, report: Value::Null }
        }
        Command::Facts(args) => facts::run(args)?,
        Command::Steps(args) => steps::run(args)?,
        Command::Goldens(args) => goldens::run(args)?,
        Command::Tokens(args) => company::tokens(args)?,
        Command::Score(args) => score::score(args)?,
        Command::Company(args) => company::company(args)?,
        Command::Once(args) => once::run(args)?,
        Command::Ablate(args) => ablate::run(args)?,
        Command::Trace(args) => trace::run(args)?,
    };
    #[expect(clippy::print_stdout, reason = "the result of the program")]
    {
        println!("{:#}", verdict.report);
    }
    eprintln!("{}", if verdict.passed { "passed" } else { "FAILED" });
    Ok(if verdict.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
