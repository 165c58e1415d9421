//! What holding an answer to a form costs per token, on the demo model: the same number of tokens with
//! and without a guide, in turns. `cargo run --release -p lily-server --example guide_cost -- 15 200`
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::path::Path;
use std::time::Instant;

use lily_checkpoint::Checkpoint;
use lily_cpu::CpuDevice;
use lily_cpu::CpuOptions;
use lily_device::NoProgress;
use lily_engine::CancelToken;
use lily_engine::Engine;
use lily_engine::EngineOptions;
use lily_engine::GenerateOptions;
use lily_engine::SamplingParams;
use lily_server::engine_guide;
use lily_text::AnswerPlan;
use lily_text::AnswerRules;
use lily_text::Format;
use lily_text::Tokenizer;
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse());
    let rounds: usize = numbers.next().transpose()?.unwrap_or(15);
    let tokens: usize = numbers.next().transpose()?.unwrap_or(200);

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let checkpoint = Checkpoint::open(&root.join("models/demo/checkpoint"))?;
    let tokenizer = checkpoint.side_file("tokenizer.json")?.ok_or("no tokenizer")?;
    let tokenizer = Tokenizer::from_json(&tokenizer)?;
    let options = EngineOptions {
        context: Some(1024),
        token_limit: Some(tokenizer.len()),
        ..EngineOptions::default()
    };
    let device = CpuDevice::new(CpuOptions::default());
    let engine = Engine::load(&checkpoint, &device, options, &NoProgress)?;

    // Forms that never end, so that every run has as many tokens.
    let list = Format::JsonSchema(json!({
        "type": "array",
        "items": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "minItems": 10_000,
    }));
    let tools = [json!({"name": "write", "strict": true, "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
    }})];
    let rules = [
        ("free", AnswerRules::default()),
        ("a JSON schema", AnswerRules { format: Some(&list), ..AnswerRules::default() }),
        ("a strict tool", AnswerRules { tools: &tools, ..AnswerRules::default() }),
    ];
    let mut plans = Vec::new();
    for (name, rules) in rules {
        plans.push((name, AnswerPlan::new(&tokenizer, rules)?, Vec::new()));
    }
    let prompt = tokenizer
        .encode("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n")?;
    let mut session = engine.new_session()?;
    for round in 0..=rounds {
        for (_, plan, times) in &mut plans {
            session.reset();
            let options = GenerateOptions {
                sampling: SamplingParams::greedy(),
                max_tokens: Some(tokens),
                stop_tokens: Vec::new(),
                logprobs: None,
                prompt_logprobs: false,
            };
            let cancel = CancelToken::new();
            let mut generation = session.generate(&prompt, options, &cancel)?;
            if let Some(plan) = plan {
                generation = generation.guided_by(engine_guide(plan.start(false, &[])));
            }
            generation.next_token()?;
            let begun = Instant::now();
            let mut n = 0;
            while generation.next_token()?.is_some() {
                n += 1;
            }
            // The first round warms up.
            if round > 0 {
                times.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(n));
            }
        }
    }
    let mut free = None;
    for (name, _, times) in &mut plans {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let free = *free.get_or_insert(median);
        println!("{name:14} {median:8.1} us per token, {:+.1} %", (median / free - 1.0) * 100.0);
    }
    Ok(())
}
