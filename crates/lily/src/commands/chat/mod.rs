//! `lily chat`: one question, or a session.

mod session;
mod slash;

use std::io::{self, IsTerminal, Read};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result};
use lily_engine::{FinishReason, Session};
use lily_server::engine_guide;
use lily_text::{AnswerPlan, OutputEvent, OutputParser, ParserOptions};
use serde_json::{Value, json};

use super::interrupt::{self, INTERRUPTED};
use super::output::print;
use super::rules::Rules;
use super::speed::Stopwatch;
use crate::args::{ChatArgs, Switch};
use crate::failure::{self, UsageError, usage};
use crate::model::{self, Loaded, Needs};

pub(crate) fn run(args: &ChatArgs) -> Result<ExitCode> {
    model::check(&args.model)?;
    let question = question(args)?;
    let rules = Rules::read(&args.rules)?;
    if args.think == Switch::Off && rules.thinking_budget.is_some_and(|budget| budget > 0) {
        return Err(usage("--thinking-budget needs thinking, which --think off switches off"));
    }
    let loaded = model::load(&args.model, &args.engine, Needs::Chat, |options, _| Ok(options))?;
    interrupt::install()?;
    let mut chat = Chat::new(args, &rules, &loaded, question.is_none())?;
    let Some(question) = question else {
        session::run(&mut chat, args)?;
        return Ok(ExitCode::SUCCESS);
    };
    let answer = chat.ask(&question)?;
    eprintln!("{}", answer.summary);
    let interrupted = answer.finish == Some(FinishReason::Cancelled);
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The question of the command line or of standard input; `None` starts a session.
fn question(args: &ChatArgs) -> Result<Option<String>> {
    let mut text = args.question.join(" ");
    if args.question.is_empty() {
        if io::stdin().is_terminal() {
            return Ok(None);
        }
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    }
    if text.trim().is_empty() {
        return Err(UsageError(anyhow::anyhow!("the question is empty")).into());
    }
    Ok(Some(text))
}

/// A conversation with a loaded model.
struct Chat<'a> {
    args: &'a ChatArgs,
    loaded: &'a Loaded,
    /// More questions may follow, and the device has been named.
    is_session: bool,
    session: Session,
    system: Option<String>,
    think: Switch,
    /// What every answer is held to.
    plan: Option<AnswerPlan>,
    /// User and assistant turns; the system prompt is kept apart.
    turns: Vec<Value>,
}

/// How an answer went.
struct Answer {
    finish: Option<FinishReason>,
    summary: String,
}

impl<'a> Chat<'a> {
    fn new(
        args: &'a ChatArgs,
        rules: &Rules,
        loaded: &'a Loaded,
        is_session: bool,
    ) -> Result<Self> {
        // The model knows an empty think block from its template, an ended one less well.
        let think = if rules.thinking_budget == Some(0) { Switch::Off } else { args.think };
        Ok(Chat {
            args,
            loaded,
            is_session,
            session: loaded.engine.new_session()?,
            system: args.system.clone(),
            think,
            plan: rules.plan(loaded.tokenizer()?)?,
            turns: Vec::new(),
        })
    }

    /// Asks, streams the answer to standard output and keeps both turns. After an error the
    /// conversation is as it was before.
    fn ask(&mut self, question: &str) -> Result<Answer> {
        self.turns.push(json!({"role": "user", "content": question}));
        let result = self.answer();
        if result.is_err() {
            self.turns.pop();
        }
        let (turn, answer) = result?;
        self.turns.push(turn);
        Ok(answer)
    }

    fn answer(&mut self) -> Result<(Value, Answer)> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.turns.iter().cloned()).collect();
        let prompt = self.loaded.chat_prompt(&messages, None, self.think)?;
        let parser_options = ParserOptions {
            starts_in_thinking: prompt.starts_in_thinking,
            stop: self.args.stop.clone(),
            ..Default::default()
        };
        let mut parser = OutputParser::new(self.loaded.tokenizer()?, parser_options);
        let mut options = self.loaded.engine.default_options();
        options.sampling = model::sampling(&self.args.sampling, options.sampling);
        options.max_tokens = self.args.sampling.max_tokens;
        let plan = self.plan.as_ref();
        let guide = plan.map(|plan| plan.start(prompt.starts_in_thinking, &options.stop_tokens));

        let cancel = interrupt::token();
        let mut screen = Screen::new(prompt.starts_in_thinking);
        let mut watch = Stopwatch::start(prompt.tokens.len());
        // The template drops earlier reasoning, so a prompt seldom continues the last one.
        self.session.reset();
        let started = self.session.generate(&prompt.tokens, options, &cancel);
        let mut generation = started.map_err(failure::generation)?;
        if let Some(guide) = guide {
            generation = generation.guided_by(engine_guide(guide));
        }
        generation.for_each(|token| {
            watch.token();
            screen.show(parser.push(token.id))?;
            let done = parser.stopped();
            anyhow::Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let finish = generation.finish_reason();
        drop(generation);
        interrupt::done();
        screen.show(parser.finish())?;
        screen.end()?;
        let mut summary = match self.is_session {
            true => watch.summary(),
            false => watch.summary_on(&self.loaded.device),
        };
        match finish {
            Some(FinishReason::Length) => summary.push_str(&self.cut_off(&watch, &screen)),
            Some(FinishReason::Cancelled) => summary.push_str("; interrupted"),
            Some(FinishReason::Stop) | None => {}
        }
        Ok((screen.into_turn(), Answer { finish, summary }))
    }

    /// Why an answer is not whole, and what would make it so.
    fn cut_off(&self, watch: &Stopwatch, screen: &Screen) -> String {
        let (limit, flag) = match self.args.sampling.max_tokens {
            Some(most) if watch.tokens() >= most => {
                (format!("--max-tokens {most}"), "--max-tokens")
            }
            _ => {
                let context = self.loaded.engine.context();
                (format!("the end of the context of {context} tokens"), "--context")
            }
        };
        if screen.only_thought() {
            let off = if self.is_session { "/think off" } else { "--think off" };
            format!("; cut off at {limit} while still thinking; raise {flag} or use {off}")
        } else {
            format!("; cut off at {limit}")
        }
    }
}

/// Standard output: thinking dimmed on a terminal and left out elsewhere.
struct Screen {
    terminal: bool,
    starts_in_thinking: bool,
    dimmed: bool,
    reasoning: String,
    content: String,
}

impl Screen {
    fn new(starts_in_thinking: bool) -> Self {
        Screen {
            terminal: io::stdout().is_terminal(),
            starts_in_thinking,
            dimmed: false,
            reasoning: String::new(),
            content: String::new(),
        }
    }

    fn show(&mut self, events: Vec<OutputEvent>) -> io::Result<()> {
        for event in events {
            match event {
                OutputEvent::Reasoning(text) => {
                    if self.terminal {
                        self.dim(true)?;
                        print(&text)?;
                    }
                    self.reasoning.push_str(&text);
                }
                OutputEvent::Content(text) => {
                    if self.dimmed {
                        self.dim(false)?;
                        print("\n\n")?;
                    }
                    print(&text)?;
                    self.content.push_str(&text);
                }
                // Chat offers no tools, so markup of calls arrives as content.
                OutputEvent::ToolCallStart { .. }
                | OutputEvent::ToolCallArguments { .. }
                | OutputEvent::ToolCallEnd { .. } => {}
            }
        }
        Ok(())
    }

    fn dim(&mut self, on: bool) -> io::Result<()> {
        if self.dimmed != on {
            print(if on { "\x1b[2m" } else { "\x1b[0m" })?;
            self.dimmed = on;
        }
        Ok(())
    }

    /// Ends the line, where there is one.
    fn end(&mut self) -> io::Result<()> {
        self.dim(false)?;
        let shown = !self.content.is_empty() || (self.terminal && !self.reasoning.is_empty());
        if shown { print("\n") } else { Ok(()) }
    }

    /// Whether nothing but thinking has come.
    fn only_thought(&self) -> bool {
        self.starts_in_thinking && self.content.is_empty()
    }

    fn into_turn(self) -> Value {
        json!({
            "role": "assistant",
            "reasoning_content": self.reasoning.trim(),
            "content": self.content.trim(),
        })
    }
}
