//! Everything between an API's messages and a model's token ids.
//!
//! One idea: text enters through [`normalise_messages`], [`ChatTemplate`] and
//! [`Tokenizer`], and leaves through [`OutputParser`], and each of them decides
//! once, for every caller, what the text means. Streaming and complete answers
//! run through the same code. What must not be left to the model, the form of
//! the content, a call, the end of the reasoning, an [`AnswerPlan`] holds it to.
//!
//! Deliberately absent: devices, models and sampling; HTTP and the shapes of
//! API responses; images, audio and video; clocks (`strftime_now`), so that a
//! prompt depends on nothing but the request.
#![forbid(unsafe_code)]

mod detokenizer;
mod error;
mod grammar;
mod guide;
mod json_python;
mod messages;
mod parser;
mod template;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use grammar::{Format, GrammarError, Refusal};
pub use guide::{AnswerGuide, AnswerPlan, AnswerRules, Calls, Permitted};
pub use messages::{MediaParts, normalise_messages, normalise_messages_with};
pub use parser::{Located, OutputEvent, OutputParser, ParserOptions, ends_in_thinking};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::Tokenizer;
