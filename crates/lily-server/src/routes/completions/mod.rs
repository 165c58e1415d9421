//! `POST /v1/completions`: text that goes on from a prompt, without template,
//! thinking or tools.

mod convert;
mod types;
mod validate;

use axum::extract::State;
use axum::response::Response;
use lily_engine::GenerateOptions;

use self::validate::CompletionRequest;
use self::validate::Prompt;
use crate::error::ApiError;
use crate::guide::Constraints;
use crate::middleware::body::JsonBody;
use crate::model::Model;
use crate::request::sampling;
use crate::routes::AppState;
use crate::routes::Prepared;
use crate::routes::openai::Envelope;
use crate::turn::Turn;

/// Tokens of an answer where the request does not say, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What the form of the response depends on.
struct Form {
    stream: bool,
    include_usage: bool,
    with_logprobs: bool,
    /// Those of the prompt too.
    prompt_logprobs: bool,
    /// What each choice begins with: its prompt, or nothing.
    echo: Vec<String>,
}

pub(crate) async fn create(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let prepare = move |model: &Model| {
        let asked = validate::validate(body, model.tokenizer.len())?;
        turn(asked, model)
    };
    let Prepared { arrival, value: (turn, form) } = state.prepare(prepare).await?;
    let stream = form.stream;
    let form = (Envelope::new("cmpl-", &state.options().model_name), form);
    let encode = |(envelope, form)| convert::ChunkEncoder::new(envelope, form);
    let collect = |events, (envelope, form)| convert::collect(events, envelope, form);
    state.answer(turn, arrival, form, stream, encode, collect).await
}

fn turn(request: CompletionRequest, model: &Model) -> Result<(Turn, Form), ApiError> {
    let n = request.n;
    let mut prompts = Vec::with_capacity(request.prompts.len());
    let mut echo = Vec::with_capacity(request.prompts.len() * n);
    for Prompt { param, text, tokens } in request.prompts {
        let tokens = match tokens {
            Some(tokens) => tokens,
            None => model.tokenizer.encode(text.as_deref().unwrap_or_default())?,
        };
        if tokens.is_empty() {
            return Err(ApiError::field(param, "must not be empty"));
        }
        if tokens.len() >= model.context {
            return Err(ApiError::Field {
                message: format!(
                    "'{param}' has {} tokens; with an answer it does not fit into the context of {}",
                    tokens.len(),
                    model.context
                ),
                param,
                code: "context_length_exceeded",
            });
        }
        let text = match text {
            _ if !request.echo => String::new(),
            Some(text) => text,
            None => model.tokenizer.decode(&tokens, false),
        };
        echo.extend(std::iter::repeat_n(text, n));
        prompts.push(tokens);
    }
    let prompt_logprobs = request.echo && request.logprobs.is_some();
    let turn = Turn {
        tokenizer: model.tokenizer.clone(),
        prompts,
        n,
        options: GenerateOptions {
            sampling: sampling::merge(request.sampling, &model.defaults.sampling),
            max_tokens: Some(request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            stop_tokens: model.defaults.stop_tokens.clone(),
            logprobs: request.logprobs,
            prompt_logprobs,
        },
        plain: true,
        constraints: Constraints::default(),
        plan: None,
        starts_in_thinking: false,
        tools: None,
        stop: request.stop,
        single_tool_call: false,
    };
    let form = Form {
        stream: request.stream,
        include_usage: request.include_usage,
        with_logprobs: request.logprobs.is_some(),
        prompt_logprobs,
        echo,
    };
    Ok((turn, form))
}
