//! The phases of an answer.

use super::markup::{
    Ahead, CALL_END, FUNCTION, MAX_GAP, Named, Seen, THINK, THINK_END, cut_opening,
};
use super::stop::StopFilter;
use super::tool_call::{Call, Step};
use super::values::ToolSchemas;
use super::{Located, OutputEvent, ParserOptions, Stage};

/// The parser proper: text in, events out.
#[derive(Debug)]
pub(super) struct Machine {
    tools: ToolSchemas,
    phase: Phase,
    /// Text that has not been decided on.
    input: String,
    /// Bytes of the answer that stood before it.
    decided: usize,
    output: Output,
    /// Number of calls that have begun.
    calls: usize,
}

#[derive(Debug)]
enum Phase {
    /// Before the first visible character.
    Head {
        thinking: bool,
    },
    Reasoning,
    /// Between a closing tag and the first visible character of the content.
    BeforeContent {
        after_call: bool,
    },
    Content,
    Call(Call),
}

/// Whether a phase has got anywhere with the text there is.
enum Progress {
    /// Takes the first bytes of the input and goes on.
    Take(usize),
    /// More text is needed.
    Wait,
}

impl Machine {
    pub(super) fn new(options: &ParserOptions) -> Self {
        let tools = options.tools.as_deref().filter(|_| !options.plain);
        Self {
            tools: ToolSchemas::new(tools.unwrap_or_default()),
            phase: match options.plain {
                true => Phase::Content,
                false => Phase::Head { thinking: options.starts_in_thinking },
            },
            input: String::new(),
            decided: 0,
            output: Output::new(StopFilter::new(&options.stop)),
            calls: 0,
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop_string().is_some()
    }

    pub(super) fn stop_string(&self) -> Option<usize> {
        self.output.stop.stopped()
    }

    /// Bytes of the answer that were pushed.
    pub(super) fn position(&self) -> usize {
        self.decided + self.input.len()
    }

    pub(super) fn stage(&self) -> Stage<'_> {
        match &self.phase {
            Phase::Head { thinking: true } | Phase::Reasoning => {
                Stage::Reasoning { undecided: &self.input }
            }
            Phase::Head { thinking: false } => Stage::Head,
            Phase::BeforeContent { .. } | Phase::Content | Phase::Call(_) => Stage::Answer,
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Located> {
        if !text.is_empty() {
            self.input.push_str(text);
            self.run(false);
        }
        std::mem::take(&mut self.output.events)
    }

    pub(super) fn finish(&mut self, text: &str) -> Vec<Located> {
        self.input.push_str(text);
        self.run(false);
        self.drop_cut_markup();
        self.run(true);
        if let Phase::Call(call) = std::mem::replace(&mut self.phase, Phase::Content) {
            call.finish(&mut self.output);
        }
        self.output.finish();
        std::mem::take(&mut self.output.events)
    }

    /// Where an answer was cut inside the markup of a call, what came of the markup is neither
    /// content nor part of a value.
    fn drop_cut_markup(&mut self) {
        let keep = match &self.phase {
            Phase::Call(call) => call.kept(&self.input),
            Phase::BeforeContent { after_call: true }
                if CALL_END.starts_with(self.input.trim_start()) =>
            {
                Some(0)
            }
            _ if self.tools.is_empty() => None,
            _ => cut_opening(&self.input),
        };
        if let Some(keep) = keep {
            self.input.truncate(keep);
        }
    }

    fn run(&mut self, ended: bool) {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while !self.stopped() {
            self.output.position = self.decided + at;
            match self.step(Ahead { text: &input[at..], ended }) {
                Progress::Take(len) => at += len,
                Progress::Wait => break,
            }
        }
        self.decided += at;
        if !self.stopped() {
            input[at..].clone_into(&mut self.input);
        }
    }

    fn step(&mut self, ahead: Ahead<'_>) -> Progress {
        match &mut self.phase {
            Phase::Head { thinking } => {
                let thinking = *thinking;
                self.head(ahead, thinking)
            }
            Phase::Reasoning => self.reasoning(ahead),
            Phase::BeforeContent { after_call } => {
                let after_call = *after_call;
                self.before_content(ahead, after_call)
            }
            Phase::Content => self.content(ahead),
            Phase::Call(call) => match call.step(ahead, &self.tools, &mut self.output) {
                Step::Take(len) => Progress::Take(len),
                Step::Wait => Progress::Wait,
                Step::End(len) => {
                    self.end_call();
                    Progress::Take(len)
                }
            },
        }
    }

    fn end_call(&mut self) {
        let next = Phase::BeforeContent { after_call: true };
        if let Phase::Call(call) = std::mem::replace(&mut self.phase, next) {
            call.end(&mut self.output);
        }
    }

    fn head(&mut self, ahead: Ahead<'_>, thinking: bool) -> Progress {
        let space = ahead.text.len() - ahead.text.trim_start().len();
        let visible = Ahead { text: &ahead.text[space..], ..ahead };
        if visible.text.is_empty() && space <= MAX_GAP && !ahead.ended {
            return Progress::Wait;
        }
        if space > MAX_GAP {
            self.phase = if thinking { Phase::Reasoning } else { Phase::Content };
            return Progress::Take(0);
        }
        match visible.tag(THINK) {
            Seen::Maybe => Progress::Wait,
            Seen::Yes(len) if thinking => {
                self.phase = Phase::Reasoning;
                Progress::Take(space + len)
            }
            // Asked not to think, a model may still open a think block, but it
            // may also be writing about the tag.
            Seen::Yes(len) => match visible.text[len..].chars().next() {
                Some('\n') => {
                    self.phase = Phase::Reasoning;
                    Progress::Take(space + len)
                }
                None if !ahead.ended => Progress::Wait,
                _ => {
                    self.phase = Phase::Content;
                    Progress::Take(0)
                }
            },
            Seen::No => {
                self.phase = if thinking { Phase::Reasoning } else { Phase::Content };
                Progress::Take(0)
            }
        }
    }

    fn reasoning(&mut self, ahead: Ahead<'_>) -> Progress {
        let Some(at) = ahead.text.find('<') else {
            return self.all(ahead, Output::reasoning);
        };
        if at > 0 {
            self.output.reasoning(&ahead.text[..at]);
            return Progress::Take(at);
        }
        match ahead.tag(THINK_END) {
            Seen::Yes(len) => {
                self.output.end_reasoning();
                self.phase = Phase::BeforeContent { after_call: false };
                return Progress::Take(len);
            }
            Seen::Maybe => return Progress::Wait,
            Seen::No => {}
        }
        if !self.tools.is_empty() {
            match ahead.call() {
                // A thought may quote the format, with a name made up as an example.
                Seen::Yes(call) if self.tools.knows(call.name) => return self.begin(&call),
                Seen::Maybe => return Progress::Wait,
                Seen::Yes(_) | Seen::No => {}
            }
        }
        self.output.reasoning("<");
        Progress::Take(1)
    }

    fn before_content(&mut self, ahead: Ahead<'_>, after_call: bool) -> Progress {
        let rest = if after_call {
            ahead.text.trim_start()
        } else {
            ahead.text.trim_start_matches(['\n', '\r'])
        };
        let space = ahead.text.len() - rest.len();
        if rest.is_empty() {
            return if space > 0 { Progress::Take(space) } else { Progress::Wait };
        }
        if after_call {
            match (Ahead { text: rest, ..ahead }).tag(CALL_END) {
                Seen::Yes(len) => return Progress::Take(space + len),
                Seen::Maybe => return Progress::Wait,
                Seen::No => {}
            }
        }
        self.phase = Phase::Content;
        Progress::Take(space)
    }

    fn content(&mut self, ahead: Ahead<'_>) -> Progress {
        if self.tools.is_empty() {
            return self.all(ahead, Output::content);
        }
        let Some(at) = ahead.text.find('<') else {
            return self.all(ahead, Output::content);
        };
        if at > 0 {
            self.output.content(&ahead.text[..at]);
            return Progress::Take(at);
        }
        match ahead.call() {
            Seen::Yes(call) => return self.begin(&call),
            Seen::Maybe => return Progress::Wait,
            Seen::No => {}
        }
        match ahead.named(FUNCTION) {
            Seen::Yes(call) if self.tools.knows(call.name) => return self.begin(&call),
            Seen::Maybe => return Progress::Wait,
            Seen::Yes(_) | Seen::No => {}
        }
        self.output.content("<");
        Progress::Take(1)
    }

    /// Gives the whole text to `give`.
    fn all(&mut self, ahead: Ahead<'_>, give: fn(&mut Output, &str)) -> Progress {
        if ahead.text.is_empty() {
            return Progress::Wait;
        }
        give(&mut self.output, ahead.text);
        Progress::Take(ahead.text.len())
    }

    fn begin(&mut self, tag: &Named<'_>) -> Progress {
        let index = self.calls;
        self.calls += 1;
        self.output.end_reasoning();
        self.output.before_call();
        self.output.event(OutputEvent::ToolCallStart { index, name: tag.name.to_owned() });
        self.phase = Phase::Call(Call::new(index, tag.name));
        Progress::Take(tag.len)
    }
}

/// The events so far, and the white space that has yet to prove that it stands
/// inside a text and not at its end.
#[derive(Debug)]
pub(super) struct Output {
    events: Vec<Located>,
    /// Where in the answer the text stands that is being looked at.
    position: usize,
    stop: StopFilter,
    reasoning: Trailing,
    content: Trailing,
    any_call: bool,
}

/// Text whose trailing white space is kept back.
#[derive(Debug, Default)]
struct Trailing {
    space: String,
    begun: bool,
}

impl Trailing {
    /// Takes text and gives it up to its last visible character.
    fn push(&mut self, text: &str) -> String {
        let visible = text.trim_end();
        if visible.is_empty() {
            self.space.push_str(text);
            return String::new();
        }
        self.begun = true;
        let mut out = std::mem::take(&mut self.space);
        out.push_str(visible);
        text[visible.len()..].clone_into(&mut self.space);
        out
    }
}

impl Output {
    fn new(stop: StopFilter) -> Self {
        Self {
            events: Vec::new(),
            position: 0,
            stop,
            reasoning: Trailing::default(),
            content: Trailing::default(),
            any_call: false,
        }
    }

    fn event(&mut self, event: OutputEvent) {
        self.events.push(Located { event, span: 0..0 });
    }

    fn reasoning(&mut self, text: &str) {
        let text = if self.reasoning.begun { text } else { text.trim_start() };
        let text = self.reasoning.push(text);
        if !text.is_empty() {
            self.event(OutputEvent::Reasoning(text));
        }
    }

    fn end_reasoning(&mut self) {
        self.reasoning.space.clear();
    }

    /// Text that stands where the answer is looked at.
    pub(super) fn content(&mut self, text: &str) {
        let start = self.position.saturating_sub(self.stop.held());
        let text = self.stop.push(text);
        self.give_content(&text, start);
    }

    /// Text that was taken out of a call.
    pub(super) fn displaced(&mut self, text: &str) {
        self.content(text);
        if let Some(last) = self.events.last_mut() {
            last.span = 0..0;
        }
    }

    fn give_content(&mut self, text: &str, start: usize) {
        let start = start.saturating_sub(self.content.space.len());
        let mut text = self.content.push(text);
        if self.stop.stopped().is_some() {
            text.push_str(&std::mem::take(&mut self.content.space));
        }
        if !text.is_empty() {
            let span = start..start + text.len();
            self.events.push(Located { event: OutputEvent::Content(text), span });
        }
    }

    /// Gives what was held back as the possible start of a stop string.
    fn flush(&mut self) {
        let start = self.position.saturating_sub(self.stop.held());
        let text = self.stop.flush();
        self.give_content(&text, start);
    }

    /// The content before a call ends without its white space.
    fn before_call(&mut self) {
        self.flush();
        self.content.space.clear();
        self.any_call = true;
    }

    pub(super) fn arguments(&mut self, index: usize, fragment: String) {
        if !fragment.is_empty() {
            self.event(OutputEvent::ToolCallArguments { index, fragment });
        }
    }

    pub(super) fn end_call(&mut self, index: usize) {
        self.event(OutputEvent::ToolCallEnd { index });
    }

    fn finish(&mut self) {
        if self.stop.stopped().is_some() {
            return;
        }
        self.flush();
        // After a call the white space at the end is only layout.
        let space = std::mem::take(&mut self.content.space);
        if !self.any_call && !space.is_empty() {
            let span = self.position.saturating_sub(space.len())..self.position;
            self.events.push(Located { event: OutputEvent::Content(space), span });
        }
    }
}
