//! The sampling fields, which every endpoint shares.

use std::collections::HashSet;

use lily_engine::SamplingParams;
use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;

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

/// What the model recommends for answers with or without thinking.
///
/// `generation_config.json` holds one set. The published one is meant for
/// thinking; the model card has another for answers without, which is used then.
/// Where the file holds any other values, they are somebody's decision and hold
/// for both.
pub(crate) fn defaults(model: &SamplingParams, thinking: bool) -> SamplingParams {
    let published =
        SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, ..SamplingParams::default() };
    if thinking || *model != published {
        return model.clone();
    }
    SamplingParams { temperature: 0.7, top_p: 0.8, presence_penalty: 1.5, ..published }
}

/// The sampling asked for, and the model's own where nothing was.
pub(crate) fn merge(request: SamplingRequest, model: &SamplingParams) -> SamplingParams {
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

/// Answers that one request may ask for.
pub(crate) const MAX_ANSWERS: usize = 16;

/// How many answers are wanted.
pub(crate) fn n(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    Ok(fields.integer("n", 1, MAX_ANSWERS as i64)?.map(|n| usize::try_from(n).unwrap_or(1)))
}

/// Reads the sampling fields. `vocabulary` bounds the ids of `logit_bias`.
pub(crate) fn sampling(
    fields: &mut Fields,
    vocabulary: usize,
) -> Result<SamplingRequest, ApiError> {
    // Other servers take -1 for "off", which is 0 here.
    let top_k = fields.integer("top_k", -1, i64::MAX)?;
    Ok(SamplingRequest {
        temperature: fields.number("temperature", 0.0, 2.0)?,
        top_p: positive(fields.number("top_p", 0.0, 1.0)?, "top_p")?,
        top_k: top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0, 1.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?,
        repetition_penalty: positive(
            fields.number("repetition_penalty", 0.0, 10.0)?,
            "repetition_penalty",
        )?,
        logit_bias: logit_bias(fields, vocabulary)?,
        seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned),
    })
}

fn positive(value: Option<f32>, name: &str) -> Result<Option<f32>, ApiError> {
    if value == Some(0.0) {
        return Err(ApiError::field(name, "must be greater than 0"));
    }
    Ok(value)
}

fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let mut read = Vec::with_capacity(biases.len().min(vocabulary));
    let mut seen = HashSet::new();
    // Each by itself: to take fields out of a large object one by one takes a time that grows with
    // the square of their number.
    for (name, value) in biases {
        let id = name.parse().ok().filter(|&id: &u32| (id as usize) < vocabulary);
        let mut bias = Map::new();
        bias.insert(name.clone(), value);
        let mut bias = Fields::new("logit_bias", Value::Object(bias))?;
        let Some(id) = id else {
            return Err(ApiError::field(
                bias.path(&name),
                format_args!("must have a token id below {vocabulary} as its key"),
            ));
        };
        if !seen.insert(id) {
            let complaint = format_args!("names the token {id} a second time");
            return Err(ApiError::field(bias.path(&name), complaint));
        }
        read.extend(bias.number(&name, -100.0, 100.0)?.map(|bias| (id, bias)));
    }
    Ok(read)
}
