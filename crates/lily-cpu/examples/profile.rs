//! Time by kind of operation: `profile DIR [PROMPT [STEPS [ISA]]]` runs a prompt of `PROMPT` tokens and
//! then `STEPS` decode steps. `LILY_THREADS` is the number of threads.
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::path::Path;
use std::time::Instant;

use lily_checkpoint::Checkpoint;
use lily_cpu::{CpuDevice, CpuModel, CpuOptions};
use lily_device::{LoadedModel, NoProgress};
use lily_model::{BuildOptions, build};
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: profile DIR [PROMPT [STEPS [ISA]]]")?;
    let prompt = args.next().map_or(Ok(512), |n| n.parse::<usize>())?;
    let steps = args.next().map_or(Ok(32), |n| n.parse::<usize>())?;
    let isa = args.next().map(|word| word.parse()).transpose()?;
    let threads = std::env::var("LILY_THREADS").ok().map(|n| n.parse()).transpose()?;
    let checkpoint = Checkpoint::open(Path::new(&dir))?;
    let mut model =
        CpuDevice::new(CpuOptions { isa, threads }).load_model(&checkpoint, &NoProgress)?;
    let mut prepare = |phase, rows| -> Result<_, Failure> {
        let options = BuildOptions::new(phase, rows, 2 * (prompt + steps));
        let plan = build(checkpoint.config(), checkpoint.manifest(), &options)?;
        let plan = ValidPlan::new(plan)?;
        println!("{phase:?}: {} steps in {} stages", plan.plan().steps.len(), plan.stages().len());
        Ok(model.prepare(plan)?)
    };
    let prefill = prepare(Phase::Prefill, prompt)?;
    let decode = prepare(Phase::Decode, 1)?;
    let vocab = checkpoint.config().vocab_size as u64;
    let tokens: Vec<u32> =
        (0..prompt as u64).map(|i| ((i * 2_654_435_761 % (1 << 32)) % vocab) as u32).collect();
    let mut logits = Vec::new();
    let mut sequence = model.new_sequence()?;
    model.run(prefill, &mut *sequence, &tokens, 0, &mut logits)?;
    for profiled in [false, true] {
        sequence.reset();
        model.set_profiling(profiled);
        let start = Instant::now();
        model.run(prefill, &mut *sequence, &tokens, 0, &mut logits)?;
        report(&model, "prefill", start, prompt);
        model.set_profiling(profiled);
        let start = Instant::now();
        for step in 0..steps {
            let token = tokens[step % prompt];
            model.run(decode, &mut *sequence, &[token], prompt + step, &mut logits)?;
        }
        report(&model, "decode", start, steps);
    }
    Ok(())
}

fn report(model: &CpuModel, phase: &str, start: Instant, tokens: usize) {
    let total = start.elapsed().as_secs_f64();
    println!("{phase}: {tokens} tokens in {total:.3} s, {:.1} tokens/s", tokens as f64 / total);
    let mut times = model.profile();
    times.sort_by_key(|time| std::cmp::Reverse(time.time));
    for time in times {
        let seconds = time.time.as_secs_f64();
        let share = 100.0 * seconds / total;
        println!("  {:20} {:5} steps {:9.3} ms {share:5.1} %", time.op, time.steps, 1e3 * seconds);
    }
}
