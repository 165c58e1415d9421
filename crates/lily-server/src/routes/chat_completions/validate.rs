//! From a JSON body to a [`ChatRequest`], or to an error that names the field.
//!
//! Every field is read by name, here or in the module of [`crate::request`] that
//! other endpoints read it with; what is left over is refused. A field that
//! would change the answer but cannot be honoured is refused too.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::request::ChatRequest;
use crate::request::labels;
use crate::request::messages;
use crate::request::sampling;
use crate::request::stop;
use crate::request::stream;
use crate::request::structured;
use crate::request::thinking;
use crate::request::tools;

/// Rivals of each token whose log probabilities may be asked for.
const MAX_TOP_LOGPROBS: i64 = 20;

pub(super) fn validate(body: Value, vocabulary: usize) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::new("", body)?;
    labels::ignore(&mut fields)?;
    refuse(&mut fields)?;
    let messages = messages::messages(&mut fields)?;
    let (mut tools, single_tool_call) = tools::tools(&mut fields)?;
    let mut template_kwargs = thinking::template_kwargs(&mut fields)?;
    let constraints = structured::constraints(&mut fields, &mut tools, &mut template_kwargs)?;
    let (stream, include_usage) = stream::stream(&mut fields)?;
    let request = ChatRequest {
        messages,
        tools,
        single_tool_call,
        constraints,
        template_kwargs,
        continues: messages::continues(&mut fields)?,
        n: sampling::n(&mut fields)?,
        max_tokens: stop::max_tokens(&mut fields)?,
        stop: stop::stop(&mut fields)?,
        sampling: sampling::sampling(&mut fields, vocabulary)?,
        logprobs: logprobs(&mut fields)?,
        stream,
        include_usage,
    };
    fields.finish()?;
    Ok(request)
}

fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(modalities) = fields.array("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ApiError::unsupported("modalities", "must be [\"text\"]"));
    }
    if fields.string("verbosity")?.is_some_and(|verbosity| verbosity != "medium") {
        return Err(ApiError::unsupported(
            "verbosity",
            "must be \"medium\": the model has no levels of it",
        ));
    }
    for (name, complaint) in [
        ("audio", "is not supported"),
        ("function_call", "is not supported: send 'tool_choice'"),
        ("functions", "is not supported: send 'tools'"),
        ("prediction", "is not supported"),
        ("web_search_options", "is not supported"),
        // What other servers call it.
        ("max_new_tokens", "is not supported: send 'max_tokens'"),
        ("n_predict", "is not supported: send 'max_tokens'"),
        ("num_predict", "is not supported: send 'max_tokens'"),
        ("num_ctx", "is not supported: the server's '--context' sets it"),
        ("repeat_penalty", "is not supported: send 'repetition_penalty'"),
    ] {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(name, complaint));
        }
    }
    Ok(())
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::field("top_logprobs", "needs 'logprobs' to be true"));
    }
    Ok(wanted.then(|| usize::try_from(top.unwrap_or(0)).unwrap_or(0)))
}
