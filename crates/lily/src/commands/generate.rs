//! `lily generate`: a raw completion, from text or from ids.

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use lily_device::DeviceFacts;
use lily_engine::{FinishReason, GenerateOptions};
use lily_server::engine_guide;
use lily_text::{Detokenizer, Tokenizer};
use serde_json::json;

use super::interrupt::{self, INTERRUPTED};
use super::output::{piped_text, print, print_line, read_text};
use super::rules::Rules;
use super::speed::Stopwatch;
use crate::args::{GenerateArgs, TokenIds};
use crate::failure::{self, usage};
use crate::model::{self, Loaded, Needs};

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    model::check(&args.model)?;
    let input = Input::of(args)?;
    let rules = Rules::read(&args.rules)?;
    let prints_text = !(args.tokens || args.json);
    let text =
        matches!(input, Input::Text(_)) || prints_text || !args.stop.is_empty() || !rules.is_free();
    let needs = if text { Needs::Text } else { Needs::Ids };
    let loaded = model::load(&args.model, &args.engine, needs, |options, _| Ok(options))?;
    let prompt = match input {
        Input::Tokens(ids) => ids,
        Input::Text(text) => loaded.tokenizer()?.encode(&text)?,
    };
    let plan = if rules.is_free() { None } else { rules.plan(loaded.tokenizer()?)? };
    let options = options(args, &loaded);
    let stop_tokens = options.stop_tokens.clone();
    let mut output = Output::new(args, &loaded);

    interrupt::install()?;
    let cancel = interrupt::token();
    let mut session = loaded.engine.new_session()?;
    let mut watch = Stopwatch::start(prompt.len());
    let started = session.generate(&prompt, options, &cancel);
    let mut generation = started.map_err(failure::generation)?;
    if let Some(plan) = plan {
        // Without a budget a form holds from the first token on, wherever the prompt ends.
        let thinks = rules.thinking_budget.is_some();
        let thinks = thinks && ends_in_thinking(&prompt, loaded.tokenizer()?);
        generation = generation.guided_by(engine_guide(plan.start(thinks, &stop_tokens)));
    }
    generation.for_each(|token| {
        watch.token();
        let done = output.push(token.id)?;
        anyhow::Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    // A stop string ends the loop before the engine has a reason.
    let finish = match generation.finish_reason() {
        Some(FinishReason::Length) if !output.stopped() => "length",
        Some(FinishReason::Cancelled) => "interrupted",
        _ => "stop",
    };
    interrupt::done();
    output.finish(finish, &watch, &loaded.device)?;
    let interrupted = finish == "interrupted";
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

impl Input {
    fn of(args: &GenerateArgs) -> Result<Self> {
        let GenerateArgs { text, prompt, file, prompt_tokens, .. } = args;
        let text = match (text.as_ref().or(prompt.as_ref()), file, prompt_tokens) {
            (Some(text), ..) => text.clone(),
            (_, Some(file), _) => read_text(file)?,
            (.., Some(TokenIds(ids))) => return Ok(Input::Tokens(ids.clone())),
            (None, None, None) => piped_text()?.ok_or_else(|| {
                usage(
                    "nothing to continue: give TEXT, --prompt, --file or --prompt-tokens, or pipe \
                     a text in",
                )
            })?,
        };
        if text.is_empty() {
            return Err(usage("nothing to continue: the text is empty"));
        }
        Ok(Input::Text(text))
    }
}

/// Whether a prompt ends inside a think block.
fn ends_in_thinking(prompt: &[u32], tokenizer: &Tokenizer) -> bool {
    tokenizer.decode(prompt, false).trim_end().ends_with("<think>")
}

fn options(args: &GenerateArgs, loaded: &Loaded) -> GenerateOptions {
    let mut options = loaded.engine.default_options();
    options.sampling = model::sampling(&args.sampling, options.sampling);
    options.max_tokens = args.sampling.max_tokens;
    if args.ignore_eos {
        options.stop_tokens.clear();
    }
    options
}

/// Streams text, or collects for `--tokens` and `--json`.
struct Output<'a> {
    args: &'a GenerateArgs,
    text: Option<(Detokenizer, StopStrings)>,
    collected: String,
    ids: Vec<u32>,
}

impl<'a> Output<'a> {
    fn new(args: &'a GenerateArgs, loaded: &Loaded) -> Self {
        let stops = StopStrings { stops: args.stop.clone(), held: String::new(), stopped: false };
        let text = loaded.tokenizer.as_ref().map(|t| (Detokenizer::new(t), stops));
        Output { args, text, collected: String::new(), ids: Vec::new() }
    }

    fn stopped(&self) -> bool {
        self.text.as_ref().is_some_and(|(_, stops)| stops.stopped)
    }

    /// Takes a token; `true` when a stop string is complete.
    fn push(&mut self, id: u32) -> Result<bool> {
        self.ids.push(id);
        let Some((detokenizer, stops)) = &mut self.text else { return Ok(false) };
        let piece = detokenizer.push(id);
        let piece = stops.push(&piece);
        self.emit(&piece)?;
        Ok(self.stopped())
    }

    fn emit(&mut self, piece: &str) -> Result<()> {
        self.collected.push_str(piece);
        if !(self.args.tokens || self.args.json || piece.is_empty()) {
            print(piece)?;
        }
        Ok(())
    }

    /// Says that a form is not complete; text without one ends at a length as a rule.
    fn cut_off(&self, watch: &Stopwatch) -> String {
        let rules = &self.args.rules;
        if rules.json_schema.is_none() && rules.regex.is_none() && rules.grammar.is_none() {
            return String::new();
        }
        match self.args.sampling.max_tokens {
            Some(most) if watch.tokens() >= most => {
                format!("; the form was cut off at --max-tokens {most}")
            }
            _ => "; the form was cut off at the end of the context".to_owned(),
        }
    }

    fn finish(mut self, finish: &str, watch: &Stopwatch, device: &DeviceFacts) -> Result<()> {
        if let Some((detokenizer, stops)) = &mut self.text {
            let tail = detokenizer.finish();
            let tail = stops.push(&tail) + &stops.finish();
            self.emit(&tail)?;
        }
        if self.args.json {
            print_line(&json!({
                "tokens": self.ids,
                "text": self.text.as_ref().map(|_| &self.collected),
                "finish_reason": finish,
                "prompt_tokens": watch.prompt_tokens(),
                "prefill_tokens_per_second": watch.prefill_rate(),
                "decode_tokens_per_second": watch.decode_rate(),
            }))?;
        } else if self.args.tokens {
            print_line(&json!(self.ids))?;
        } else {
            print("\n")?;
            let ending = match finish {
                "interrupted" => "; interrupted".to_owned(),
                "length" => self.cut_off(watch),
                _ => String::new(),
            };
            eprintln!("{}{ending}", watch.summary_on(device));
        }
        Ok(())
    }
}

/// Holds back text that may turn out to be the beginning of a stop string.
struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Takes text and returns what is safe to show.
    fn push(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop));
        if let Some(at) = found.min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back and did not become a stop string.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest proper prefix of `stop` that ends `text`.
fn overlap(text: &str, stop: &str) -> usize {
    let prefixes = stop.char_indices().map(|(at, _)| at).skip(1);
    prefixes.filter(|&at| text.ends_with(&stop[..at])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop_strings(stops: &[&str]) -> StopStrings {
        let stops = stops.iter().map(|s| (*s).to_owned()).collect();
        StopStrings { stops, held: String::new(), stopped: false }
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_not_shown() {
        let mut stops = stop_strings(&["END", "」。"]);
        assert_eq!(stops.push("one E"), "one ");
        assert_eq!(stops.push("N"), "");
        assert_eq!(stops.push("D two"), "");
        assert!(stops.stopped);
        let mut stops = stop_strings(&["END", "」。"]);
        assert_eq!(stops.push("a」"), "a");
        assert_eq!(stops.push("。b"), "");
        assert!(stops.stopped);
    }

    #[test]
    fn held_text_comes_out_when_it_is_no_stop_string() {
        let mut stops = stop_strings(&["END"]);
        assert_eq!(stops.push("E"), "");
        assert_eq!(stops.push("x"), "Ex");
        assert_eq!(stops.push("EN"), "");
        assert_eq!(stops.finish(), "EN");
        assert!(!stops.stopped);
    }
}
