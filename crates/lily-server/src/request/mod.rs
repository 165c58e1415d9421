//! What every endpoint for chat asks of the model, whatever its wire shape: each
//! route validates its body into a [`ChatRequest`], which becomes a [`Turn`].
//!
//! The modules read and check the fields that several endpoints share.

pub(crate) mod history;
pub(crate) mod labels;
pub(crate) mod messages;
pub(crate) mod sampling;
pub(crate) mod stop;
pub(crate) mod stream;
pub(crate) mod structured;
pub(crate) mod thinking;
pub(crate) mod tokens;
pub(crate) mod tools;

use lily_engine::GenerateOptions;
use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::guide::Constraints;
use crate::model::Model;
use crate::request::sampling::SamplingRequest;
use crate::turn::Turn;

/// A validated request. `None` means that the default holds.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) single_tool_call: bool,
    /// What the answer is held to.
    pub(crate) constraints: Constraints,
    pub(crate) template_kwargs: Map<String, Value>,
    /// Go on where the last message, the assistant's, leaves off.
    pub(crate) continues: bool,
    /// Answers; `None`: one.
    pub(crate) n: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingRequest,
    /// `Some(n)`: log probabilities, with the `n` likeliest rivals of each token.
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// Renders the prompt and gathers what the worker needs but for the compiled constraints. Takes a while for long
/// conversations: not for an async thread.
pub(crate) fn turn(request: ChatRequest, model: &Model) -> Result<Turn, ApiError> {
    let ChatRequest {
        messages,
        tools,
        single_tool_call,
        constraints,
        mut template_kwargs,
        continues,
        n,
        max_tokens,
        stop,
        sampling,
        logprobs,
        // The form of the response is no concern of the turn.
        stream: _,
        include_usage: _,
    } = request;
    model.default_thinking(&mut template_kwargs);
    thinking::apply_budget(constraints.thinking_budget, &mut template_kwargs);
    if continues {
        constraints.check_continuation()?;
    }
    let prompt = match continues {
        true => model.continuation(&messages, tools.as_deref(), &template_kwargs)?,
        false => model.prompt(&messages, tools.as_deref(), &template_kwargs)?,
    };
    let defaults = sampling::defaults(&model.defaults.sampling, prompt.starts_in_thinking);
    Ok(Turn {
        tokenizer: model.tokenizer.clone(),
        prompts: vec![prompt.tokens],
        n: n.unwrap_or(1),
        options: GenerateOptions {
            sampling: sampling::merge(sampling, &defaults),
            max_tokens: max_tokens.or(model.defaults.max_tokens),
            stop_tokens: model.defaults.stop_tokens.clone(),
            logprobs,
            prompt_logprobs: false,
        },
        plain: false,
        starts_in_thinking: prompt.starts_in_thinking,
        tools,
        stop,
        constraints,
        plan: None,
        single_tool_call,
    })
}

/// Tokens of the prompt, which may be more than the context holds.
pub(crate) fn count(request: ChatRequest, model: &Model) -> Result<usize, ApiError> {
    match turn(request, model) {
        Ok(turn) => Ok(turn.prompts.iter().map(Vec::len).sum()),
        Err(ApiError::PromptTooLong { tokens, .. }) => Ok(tokens),
        Err(error) => Err(error),
    }
}
