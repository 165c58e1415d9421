//! All spellings of the rotary embedding's parameters.
//!
//! The base, the rotated share and the context extension appear in `rope_parameters`, in
//! `rope_scaling`, or directly in the configuration, under `text_config` or at the root. Whatever is
//! said more than once must agree.

use serde_json::Value;

use crate::config::{RopeConfig, RopeScaling};
use crate::error::CheckpointError;
use crate::fields::{CONFIG, Fields};

/// Reads the parameters; `text` is `root` itself in a flat configuration.
pub(crate) fn parse(
    root: Fields<'_>,
    text: Fields<'_>,
    head_dim: usize,
) -> Result<RopeConfig, CheckpointError> {
    let mut places = vec![text];
    let paths: Vec<(Fields<'_>, &str, String)> =
        [(text, "rope_parameters"), (text, "rope_scaling")]
            .into_iter()
            .chain([(root, "rope_parameters"), (root, "rope_scaling")])
            .map(|(fields, key)| (fields, key, fields.path(key)))
            .collect();
    for (fields, key, path) in &paths {
        if let Some(map) = fields.optional_object(key)? {
            places.push(Fields::new(path, map));
        }
    }
    places.push(root);

    let theta = agreed(&places, "rope_theta", "a number above 1", |theta| {
        theta > 1.0 && (theta as f32).is_finite()
    })?
    .ok_or_else(|| text.missing("rope_parameters.rope_theta"))?;
    let factor = agreed(&places, "partial_rotary_factor", "above 0 and at most 1", |factor| {
        factor > 0.0 && factor <= 1.0
    })?
    .ok_or_else(|| text.missing("rope_parameters.partial_rotary_factor"))?;
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim < 2 || !rotary_dim.is_multiple_of(2) {
        return Err(text.out_of_range(
            "partial_rotary_factor",
            format!("an even number of rotated dimensions of head_dim {head_dim}"),
            format!("{factor}, that is {rotary_dim}"),
        ));
    }
    Ok(RopeConfig { theta, rotary_dim, scaling: scaling(&places[1..places.len() - 1], text)? })
}

/// The one value of `key` in all places that have it.
fn agreed(
    places: &[Fields<'_>],
    key: &str,
    expected: &'static str,
    accept: impl Fn(f64) -> bool + Copy,
) -> Result<Option<f64>, CheckpointError> {
    let mut first: Option<(Fields<'_>, f64)> = None;
    for place in places {
        let Some(value) = place.optional_number(key, expected, accept)? else { continue };
        match first {
            None => first = Some((*place, value)),
            Some((other, known)) if known != value => {
                return Err(CheckpointError::Contradiction {
                    file: CONFIG.to_owned(),
                    first: other.path(key),
                    first_value: known.to_string(),
                    second: place.path(key),
                    second_value: value.to_string(),
                });
            }
            Some(_) => {}
        }
    }
    Ok(first.map(|(_, value)| value))
}

/// Context extension named by `rope_type` (or its older spelling `type`) of any rope object.
fn scaling(objects: &[Fields<'_>], text: Fields<'_>) -> Result<RopeScaling, CheckpointError> {
    let mut yarn = false;
    for object in objects {
        for key in ["rope_type", "type"] {
            match object.optional_string(key)? {
                // "mrope" is plain rope for text, whose three positions are equal.
                None | Some("default" | "mrope") => {}
                Some("yarn") => yarn = true,
                Some(other) => {
                    let found = Value::String(other.to_owned());
                    return Err(object.unsupported(key, "default or yarn", &found));
                }
            }
        }
    }
    if !yarn {
        return Ok(RopeScaling::None);
    }
    for object in objects {
        for key in ["attention_factor", "mscale", "mscale_all_dim"] {
            if let Some(found) = object.get(key) {
                return Err(object.unsupported(key, "none", found));
            }
        }
    }
    let number = |key, expected, accept: fn(f64) -> bool| agreed(objects, key, expected, accept);
    let factor = number("factor", "1 to 1024", |f| (1.0..=1024.0).contains(&f))?
        .ok_or_else(|| text.missing("rope_parameters.factor"))?;
    let original =
        number("original_max_position_embeddings", "a whole number from 1 to 2^30", |n| {
            n.fract() == 0.0 && (1.0..=f64::from(1 << 30)).contains(&n)
        })?
        .ok_or_else(|| text.missing("rope_parameters.original_max_position_embeddings"))?;
    let turns: fn(f64) -> bool = |turns| turns > 0.0 && turns <= 1e6;
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position: original as usize,
        beta_fast: number("beta_fast", "above 0", turns)?.unwrap_or(32.0),
        beta_slow: number("beta_slow", "above 0", turns)?.unwrap_or(1.0),
    })
}
