//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::middleware::body::JsonBody;
use crate::model::Model;
use crate::request::messages;
use crate::request::structured;
use crate::request::thinking;
use crate::request::tokens;
use crate::request::tools;
use crate::routes::AppState;

/// The tokens of a text.
#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    count: usize,
    /// Tokens that prompt and answer may have together.
    max_model_len: usize,
    tokens: Vec<u32>,
    /// The text of each token, where asked for.
    token_strs: Option<Vec<String>>,
}

/// The text of tokens.
#[derive(Debug, Serialize)]
pub(crate) struct Detokenized {
    prompt: String,
}

pub(crate) async fn tokenize(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Json<Tokenized>, ApiError> {
    Ok(Json(state.prepare(move |model| encode(body, model)).await?.value))
}

fn encode(body: Value, model: &Model) -> Result<Tokenized, ApiError> {
    let mut fields = Fields::new("", body)?;
    // Ignored: one model is loaded.
    fields.string("model")?;
    // Ignored: the model's tokenizer adds nothing at either end.
    fields.boolean("add_special_tokens")?;
    fields.boolean("add_special")?;
    let return_token_strs = fields.boolean("return_token_strs")?.unwrap_or(false);
    let prompt = fields.string("prompt")?;
    let content = fields.string("content")?;
    let tokens = match (prompt, content) {
        (Some(_), Some(_)) => return Err(ApiError::field("content", "contradicts 'prompt'")),
        (Some(text), None) | (None, Some(text)) => {
            fields.finish()?;
            model.tokenizer.encode(&text)?
        }
        (None, None) => chat(fields, model)?,
    };
    let text = |&id: &u32| model.tokenizer.decode(&[id], false);
    Ok(Tokenized {
        count: tokens.len(),
        max_model_len: model.context,
        token_strs: return_token_strs.then(|| tokens.iter().map(text).collect()),
        tokens,
    })
}

/// The tokens of a conversation as a chat completion would send them.
fn chat(mut fields: Fields, model: &Model) -> Result<Vec<u32>, ApiError> {
    if !fields.has("messages") {
        return Err(missing("prompt"));
    }
    let messages = messages::messages(&mut fields)?;
    let (mut tools, _) = tools::tools(&mut fields)?;
    let mut kwargs = thinking::template_kwargs(&mut fields)?;
    structured::tool_choice(&mut fields, &mut tools)?;
    let budget = thinking::budget(&mut fields, &mut kwargs)?;
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    let generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(!continues);
    if continues && generation_prompt {
        return Err(ApiError::field(
            "add_generation_prompt",
            "must be false with 'continue_final_message'",
        ));
    }
    fields.finish()?;
    model.default_thinking(&mut kwargs);
    thinking::apply_budget(budget, &mut kwargs);
    let text = match continues {
        true => model.render_open(&messages, tools.as_deref(), &kwargs)?,
        false => model.render(&messages, tools.as_deref(), &kwargs, generation_prompt)?,
    };
    Ok(model.tokenizer.encode(&text)?)
}

pub(crate) async fn detokenize(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Json<Detokenized>, ApiError> {
    Ok(Json(state.prepare(move |model| decode(body, model)).await?.value))
}

fn decode(body: Value, model: &Model) -> Result<Detokenized, ApiError> {
    let mut fields = Fields::new("", body)?;
    // Ignored: one model is loaded.
    fields.string("model")?;
    let values = fields.array("tokens")?.ok_or_else(|| missing("tokens"))?;
    fields.finish()?;
    let tokenizer = &model.tokenizer;
    let tokens = tokens::token_ids("tokens", values, tokenizer.len())?;
    Ok(Detokenized { prompt: tokenizer.decode(&tokens, false) })
}
