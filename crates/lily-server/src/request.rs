//! What every endpoint for chat asks of the model, whatever its wire shape: each
//! route validates its body into a [`ChatRequest`], which becomes a [`Turn`].

use lily_engine::GenerateOptions;
use lily_engine::SamplingParams;
use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::model::Model;
use crate::turn::Turn;

/// A validated request. `None` means that the default holds.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) single_tool_call: bool,
    pub(crate) template_kwargs: Map<String, Value>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingRequest,
    /// `Some(n)`: log probabilities, with the `n` likeliest rivals of each token.
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// The sampling fields of a request, which every endpoint shares.
#[derive(Debug, Default)]
pub(crate) struct SamplingRequest {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
}

/// Renders the prompt and gathers what the worker needs. Takes a while for long
/// conversations: not for an async thread.
pub(crate) fn turn(request: ChatRequest, model: &Model) -> Result<Turn, ApiError> {
    let ChatRequest {
        messages,
        tools,
        single_tool_call,
        mut template_kwargs,
        max_tokens,
        stop,
        sampling,
        logprobs,
        // The form of the response is no concern of the turn.
        stream: _,
        include_usage: _,
    } = request;
    if !template_kwargs.contains_key("enable_thinking") && !model.thinking {
        template_kwargs.insert("enable_thinking".to_owned(), false.into());
    }
    let prompt = model.prompt(&messages, tools.as_deref(), &template_kwargs)?;
    Ok(Turn {
        tokenizer: model.tokenizer.clone(),
        prompt: prompt.tokens,
        options: GenerateOptions {
            sampling: merge(sampling, &model.defaults.sampling),
            max_tokens: max_tokens.or(model.defaults.max_tokens),
            stop_tokens: model.defaults.stop_tokens.clone(),
            logprobs,
        },
        starts_in_thinking: prompt.starts_in_thinking,
        tools,
        stop,
        single_tool_call,
    })
}

/// The sampling asked for, and the model's own where nothing was.
fn merge(request: SamplingRequest, model: &SamplingParams) -> SamplingParams {
    SamplingParams {
        temperature: request.temperature.unwrap_or(model.temperature),
        top_k: request.top_k.unwrap_or(model.top_k),
        top_p: request.top_p.unwrap_or(model.top_p),
        min_p: request.min_p.unwrap_or(model.min_p),
        presence_penalty: request.presence_penalty.unwrap_or(model.presence_penalty),
        frequency_penalty: request.frequency_penalty.unwrap_or(model.frequency_penalty),
        repetition_penalty: request.repetition_penalty.unwrap_or(model.repetition_penalty),
        logit_bias: request.logit_bias,
        seed: request.seed,
    }
}
