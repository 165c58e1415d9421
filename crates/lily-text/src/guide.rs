//! What an answer may go on with: from the first token of the reasoning to the last of the content.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::error::TextError;
use crate::grammar::{
    CallForm, Format, Function, Grammar, GrammarError, Next, Otherwise, call_grammars,
};
use crate::parser::{CALL, OutputParser, ParserOptions, Stage, THINK_END};
use crate::tokenizer::Tokenizer;

/// What stands between the end of the reasoning and the content.
const AFTER_THINKING: &str = "\n\n";

/// Tokens that may be needed to end a character that has begun.
const MAX_CHARACTER_TOKENS: usize = 3;

/// Which functions an answer calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// As the model likes.
    #[default]
    Auto,
    /// None; the markup that begins a call is out of reach.
    None,
    /// At least one.
    Required,
    /// At least one, and only of this function.
    Named(String),
}

/// What an answer must keep to.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerRules<'a> {
    /// The form of the content; `None` leaves it free.
    pub format: Option<&'a Format>,
    /// The tools of the request, as it gives them. A function with `strict` is only called with
    /// arguments that are valid for its schema, and so is every function where a call is required.
    pub tools: &'a [Value],
    /// Whether they are called; `None`: as with [`Calls::Auto`].
    pub calls: Option<&'a Calls>,
    /// At most one call.
    pub single_call: bool,
    /// Tokens that the reasoning may have before it is ended.
    pub thinking_budget: Option<usize>,
}

/// Rules that have been made ready; each answer is guided by a guide of its own.
#[derive(Clone, Debug)]
pub struct AnswerPlan {
    tokenizer: Tokenizer,
    content: Content,
    tools: Vec<Value>,
    thinking_budget: Option<usize>,
}

/// What the answer behind the reasoning keeps to.
#[derive(Clone, Debug)]
enum Content {
    Free,
    /// Anything but these tokens.
    Without(Vec<u32>),
    Grammar(Arc<Grammar>),
}

impl AnswerPlan {
    /// Makes the rules ready; `None` if they leave everything free. Takes a while: the first grammar
    /// for a tokenizer needs up to two seconds, each a few milliseconds.
    ///
    /// # Errors
    /// [`GrammarError`] when a rule cannot be kept.
    pub fn new(
        tokenizer: &Tokenizer,
        rules: AnswerRules<'_>,
    ) -> Result<Option<AnswerPlan>, GrammarError> {
        let content = content(tokenizer, &rules)?;
        if matches!(content, Content::Free) && rules.thinking_budget.is_none() {
            return Ok(None);
        }
        let hidden = rules.calls == Some(&Calls::None);
        Ok(Some(AnswerPlan {
            tokenizer: tokenizer.clone(),
            content,
            tools: if hidden { Vec::new() } else { rules.tools.to_vec() },
            thinking_budget: rules.thinking_budget,
        }))
    }

    /// A guide for one answer. `starts_in_thinking`: the prompt ends inside a think block.
    /// `stop_tokens` end the answer.
    #[must_use]
    pub fn start(&self, starts_in_thinking: bool, stop_tokens: &[u32]) -> AnswerGuide {
        let content = match &self.content {
            Content::Free => Guided::Free,
            Content::Without(ids) => {
                let mask = mask_of(&self.tokenizer, |id, _| !ids.contains(&id));
                Guided::Without(Arc::new(mask))
            }
            Content::Grammar(grammar) => Guided::Grammar(Box::new(grammar.start())),
        };
        let options = ParserOptions {
            starts_in_thinking,
            tools: Some(self.tools.clone()).filter(|tools| !tools.is_empty()),
            ..ParserOptions::default()
        };
        AnswerGuide {
            parser: OutputParser::new(&self.tokenizer, options),
            tokenizer: self.tokenizer.clone(),
            stop_tokens: stop_tokens.to_vec(),
            budget: self.thinking_budget,
            // Where the first token belongs to the content, there is no reasoning to come.
            in_content: !starts_in_thinking && matches!(content, Guided::Grammar(_)),
            content,
            forced: VecDeque::new(),
            reasoning: Reasoning::default(),
        }
    }
}

fn content(tokenizer: &Tokenizer, rules: &AnswerRules<'_>) -> Result<Content, GrammarError> {
    let calls = rules.calls.unwrap_or(&Calls::Auto);
    let all = functions(rules.tools);
    let functions: Vec<Function<'_>> = match calls {
        Calls::Auto => all,
        Calls::None => Vec::new(),
        Calls::Required => all.into_iter().map(|f| Function { exact: true, ..f }).collect(),
        Calls::Named(name) => all
            .into_iter()
            .filter(|function| function.name == name)
            .map(|function| Function { exact: true, ..function })
            .collect(),
    };
    let required = matches!(calls, Calls::Required | Calls::Named(_));
    let otherwise = match rules.format {
        _ if required => Otherwise::Nothing,
        Some(_) => Otherwise::Format,
        None => Otherwise::Text,
    };
    if functions.is_empty() {
        return Ok(match rules.format {
            Some(format) => Content::Grammar(Arc::new(Grammar::of_format(tokenizer, format)?)),
            None if *calls == Calls::None => match tokenizer.token_id(CALL) {
                Some(id) => Content::Without(vec![id]),
                None => Content::Free,
            },
            None => Content::Free,
        });
    }
    if otherwise == Otherwise::Text && functions.iter().all(|function| !function.exact) {
        return Ok(Content::Free);
    }
    let form = CallForm { otherwise, several: !rules.single_call };
    let format = rules.format.filter(|_| otherwise == Otherwise::Format);
    Ok(Content::Grammar(Arc::new(with_calls(tokenizer, &functions, form, format)?)))
}

/// The grammar of an answer that may call functions.
fn with_calls(
    tokenizer: &Tokenizer,
    functions: &[Function<'_>],
    form: CallForm,
    format: Option<&Format>,
) -> Result<Grammar, GrammarError> {
    let (main, parts) = call_grammars(functions, form)?;
    let mut grammars = vec![main];
    if let Some(format) = format {
        grammars.push(format.grammar("format").map_err(GrammarError::Format)?);
    }
    grammars.extend(parts.iter().map(|part| part.grammar.clone()));
    Grammar::compile(tokenizer, grammars).or_else(|error| {
        // The whole does not say which of its parts it fails for.
        if let Some(format) = format {
            Grammar::of_format(tokenizer, format)?;
        }
        for part in &parts {
            if let Err(error) = Grammar::compile(tokenizer, vec![part.grammar.clone()]) {
                let blame = |refusal| GrammarError::Tool { index: part.tool, refusal };
                return Err(error.or("JSON schema", blame));
            }
        }
        let index = functions.first().map_or(0, |function| function.index);
        Err(error.or("grammar of the tool calls", |refusal| GrammarError::Tool { index, refusal }))
    })
}

/// The functions of a request's tools, wrapped in `function` or flat.
fn functions(tools: &[Value]) -> Vec<Function<'_>> {
    fn read((index, tool): (usize, &Value)) -> Option<Function<'_>> {
        let function = tool.get("function").unwrap_or(tool);
        Some(Function {
            index,
            name: function.get("name")?.as_str()?,
            parameters: function.get("parameters").filter(|schema| !schema.is_null()),
            exact: function.get("strict") == Some(&Value::Bool(true)),
        })
    }
    tools.iter().enumerate().filter_map(read).collect()
}

/// What may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// Any token, this time.
    Any,
    /// The tokens whose bit is set: bit `id % 32` of word `id / 32`. Stop tokens are among them
    /// where the answer may end.
    Tokens(Arc<Vec<u32>>),
    /// This token.
    Only(u32),
    /// None: the answer is complete.
    End,
    /// Any token, to the end of the answer.
    Unguided,
}

/// Follows one answer and says before each token what it may be.
///
/// - *Reasoning* is free until the budget is used up; then `</think>` is forced, on a line of its
///   own, with an empty line behind it as the template writes it. A character that has begun is
///   ended first, which takes three tokens at most, and the tag does not come again. Where a grammar waits for the content, an answer
///   can neither end in the reasoning nor call a function there.
/// - *Content* with a grammar follows it from the first token behind that empty line, and ends where
///   the grammar does.
#[derive(Debug)]
pub struct AnswerGuide {
    tokenizer: Tokenizer,
    stop_tokens: Vec<u32>,
    budget: Option<usize>,
    content: Guided,
    /// Reads the answer as those will who are given it, up to the content.
    parser: OutputParser,
    reasoning: Reasoning,
    /// Tokens that come next, whatever the model would like.
    forced: VecDeque<u32>,
    in_content: bool,
}

#[derive(Debug)]
enum Guided {
    Free,
    Without(Arc<Vec<u32>>),
    Grammar(Box<Grammar>),
}

#[derive(Debug, Default)]
struct Reasoning {
    tokens: usize,
    ends_in_line_break: bool,
    /// What may follow where a grammar waits, by the text that is not decided on.
    masks: HashMap<String, Arc<Vec<u32>>>,
    /// What may end a character.
    continuations: Option<Arc<Vec<u32>>>,
}

impl AnswerGuide {
    /// What the next token may be.
    ///
    /// # Errors
    /// [`TextError::Guide`] when the grammar has become too complex to go on with.
    pub fn allowed(&mut self) -> Result<Permitted, TextError> {
        if let Some(&token) = self.forced.front() {
            return Ok(Permitted::Only(token));
        }
        if !self.in_content {
            match self.parser.stage() {
                Stage::Answer => self.in_content = true,
                Stage::Head => return Ok(self.unrestricted()),
                Stage::Reasoning { undecided } => {
                    let undecided = undecided.to_owned();
                    return self.in_reasoning(&undecided);
                }
            }
        }
        match &mut self.content {
            Guided::Free => Ok(Permitted::Unguided),
            Guided::Without(mask) => Ok(Permitted::Tokens(Arc::clone(mask))),
            Guided::Grammar(grammar) => {
                let next = grammar.next(&self.tokenizer);
                match next.map_err(|reason| TextError::Guide { reason })? {
                    Next::End => Ok(Permitted::End),
                    Next::Tokens(mut words, may_end) => {
                        self.stop_tokens.iter().for_each(|&id| set(&mut words, id, may_end));
                        Ok(Permitted::Tokens(Arc::new(words)))
                    }
                }
            }
        }
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// As [`AnswerGuide::allowed`].
    pub fn chosen(&mut self, token: u32) -> Result<(), TextError> {
        if self.forced.pop_front().is_some() {
            self.parser.push(token);
            return Ok(());
        }
        if self.in_content {
            return match &mut self.content {
                Guided::Grammar(grammar) => {
                    grammar.take(token).map_err(|reason| TextError::Guide { reason })
                }
                Guided::Free | Guided::Without(_) => Ok(()),
            };
        }
        let reasons = self.parser.in_reasoning();
        self.parser.push(token);
        let text = match self.tokenizer.token_bytes(token) {
            Some((bytes, false)) => bytes,
            _ => &[],
        };
        self.reasoning.tokens += usize::from(reasons);
        if let Some(&last) = text.last() {
            self.reasoning.ends_in_line_break = last == b'\n';
        }
        if self.parser.stage() == Stage::Answer && matches!(self.content, Guided::Grammar(_)) {
            let there = text.iter().rev().take_while(|&&byte| byte == b'\n').count();
            let missing = AFTER_THINKING.get(there..).unwrap_or_default();
            self.forced = self.tokenizer.encode(missing)?.into();
            self.in_content = true;
        }
        Ok(())
    }

    /// What may come where the content's form does not matter yet.
    fn unrestricted(&self) -> Permitted {
        match &self.content {
            Guided::Without(mask) => Permitted::Tokens(Arc::clone(mask)),
            Guided::Free | Guided::Grammar(_) => Permitted::Any,
        }
    }

    fn in_reasoning(&mut self, undecided: &str) -> Result<Permitted, TextError> {
        let over = self.budget.and_then(|budget| self.reasoning.tokens.checked_sub(budget));
        // What may be the beginning of a call is not cut in two.
        if let Some(over) = over.filter(|_| !undecided.starts_with(CALL)) {
            if over < MAX_CHARACTER_TOKENS && self.parser.inside_character() {
                return Ok(Permitted::Tokens(self.continuations()));
            }
            let line_break = if self.reasoning.ends_in_line_break { "" } else { "\n" };
            let close = format!("{line_break}{THINK_END}{AFTER_THINKING}");
            self.forced = self.tokenizer.encode(&close)?.into();
            self.in_content = matches!(self.content, Guided::Grammar(_));
            self.end_reasoning_once();
            let first = self.forced.front().copied();
            return first.map(Permitted::Only).ok_or_else(|| TextError::Guide {
                reason: format!("the tokenizer has no tokens for {close:?}"),
            });
        }
        if !matches!(self.content, Guided::Grammar(_)) {
            return Ok(self.unrestricted());
        }
        if let Some(mask) = self.reasoning.masks.get(undecided) {
            return Ok(Permitted::Tokens(Arc::clone(mask)));
        }
        let mut words = mask_of(&self.tokenizer, |_, bytes| leaves_tags_whole(undecided, bytes));
        self.stop_tokens.iter().for_each(|&id| set(&mut words, id, false));
        let mask = Arc::new(words);
        self.reasoning.masks.insert(undecided.to_owned(), Arc::clone(&mask));
        Ok(Permitted::Tokens(mask))
    }

    /// A model that was cut short may want to end its reasoning itself later on: there is one end.
    fn end_reasoning_once(&mut self) {
        let Some(tag) = self.tokenizer.token_id(THINK_END) else { return };
        let mut words = match &self.content {
            Guided::Grammar(_) => return,
            Guided::Without(mask) => mask.to_vec(),
            Guided::Free => mask_of(&self.tokenizer, |_, _| true),
        };
        set(&mut words, tag, false);
        self.content = Guided::Without(Arc::new(words));
    }

    /// Tokens of nothing but the inner bytes of characters.
    fn continuations(&mut self) -> Arc<Vec<u32>> {
        let tokenizer = &self.tokenizer;
        let make = || {
            let inner = |&byte: &u8| byte & 0xC0 == 0x80;
            let words = mask_of(tokenizer, |_, bytes| !bytes.is_empty() && bytes.iter().all(inner));
            Arc::new(words)
        };
        Arc::clone(self.reasoning.continuations.get_or_insert_with(make))
    }
}

/// Whether a token behind `undecided` opens no call, and ends the reasoning, if it does, with nothing
/// behind the tag that would have to be content.
fn leaves_tags_whole(undecided: &str, bytes: &[u8]) -> bool {
    // Both tags end in this; most tokens do not hold it.
    if !bytes.contains(&b'>') {
        return true;
    }
    let text = [undecided.as_bytes(), bytes].concat();
    let find = |tag: &str| text.windows(tag.len()).position(|window| window == tag.as_bytes());
    let rest_is_blank = |at: usize| text[at + THINK_END.len()..].iter().all(|&byte| byte == b'\n');
    find(CALL).is_none() && find(THINK_END).is_none_or(rest_is_blank)
}

/// The tokens that `keep` keeps, by id and the bytes of their text. Special tokens have none.
fn mask_of(tokenizer: &Tokenizer, keep: impl Fn(u32, &[u8]) -> bool) -> Vec<u32> {
    let mut words = vec![0; tokenizer.len().div_ceil(32)];
    for id in 0..tokenizer.len() as u32 {
        let bytes = match tokenizer.token_bytes(id) {
            Some((bytes, false)) => bytes,
            _ => &[],
        };
        set(&mut words, id, keep(id, bytes));
    }
    words
}

fn set(words: &mut [u32], id: u32, value: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word = *word & !(1 << (id % 32)) | u32::from(value) << (id % 32);
    }
}

#[cfg(test)]
mod tests;
