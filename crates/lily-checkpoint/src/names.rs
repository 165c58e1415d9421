//! From the names of the files to the canonical ones.

/// What a tensor or module name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Part of the text model, prefixes removed.
    Text(String),
    /// Vision tower or multi-token prediction: known and not used.
    Skipped,
}

/// Removes the prefixes under which converters file the text model.
///
/// `model.language_model.`, `language_model.model.`, `language_model.`, `model.` and none are all
/// in use, sometimes in one file (`lm_head` stands outside the inner model).
pub(crate) fn canonical(raw: &str) -> Name {
    let mut name = raw;
    // Two prefixes at most in any known file; a third is as harmless to remove.
    for _ in 0..3 {
        let Some(rest) =
            name.strip_prefix("model.").or_else(|| name.strip_prefix("language_model."))
        else {
            break;
        };
        name = rest;
    }
    match name.split('.').next() {
        Some("vision_tower" | "visual" | "mtp") => Name::Skipped,
        _ => Name::Text(name.to_owned()),
    }
}

/// Whether a file holds only a multi-token prediction head, by the names converters give it.
///
/// Such files may repeat names of the text model without any prefix, so content cannot tell.
pub(crate) fn is_mtp_file(file: &str) -> bool {
    let stem = file.strip_suffix(".safetensors").unwrap_or(file);
    stem.split(['-', '_', '.']).any(|part| part == "mtp")
}

/// Position and count of a file named `…-00002-of-00004.safetensors`, with the part before them.
pub(crate) fn shard_number(file: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = file.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, position) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse().ok())
            .flatten()
    };
    Some((stem, number(position)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_leads_to_the_same_name() {
        for prefix in
            ["", "model.", "language_model.", "language_model.model.", "model.language_model."]
        {
            assert_eq!(
                canonical(&format!("{prefix}layers.3.mlp.gate")),
                Name::Text("layers.3.mlp.gate".into())
            );
            for skipped in ["vision_tower.x", "visual.blocks.0", "mtp.fc.weight"] {
                assert_eq!(canonical(&format!("{prefix}{skipped}")), Name::Skipped);
            }
        }
    }

    #[test]
    fn words_inside_a_name_do_not_skip_it() {
        for name in ["layers.0.visual.weight", "mtp_fc.weight", "visually.weight"] {
            assert_eq!(canonical(name), Name::Text(name.into()));
        }
    }

    #[test]
    fn shard_numbers_are_read_from_file_names() {
        assert_eq!(shard_number("model-00002-of-00004.safetensors"), Some(("model", 2, 4)));
        for name in
            ["model.safetensors", "model-2-of-4.safetensors", "model-0000x-of-00004.safetensors"]
        {
            assert_eq!(shard_number(name), None);
        }
    }

    #[test]
    fn prediction_heads_are_known_by_file_name() {
        assert!(is_mtp_file("mtp.safetensors"));
        assert!(is_mtp_file("model-mtp.safetensors"));
        assert!(!is_mtp_file("model-00001-of-00002.safetensors"));
        assert!(!is_mtp_file("model-smtpx.safetensors"));
    }
}
