//! Greedy steps one after the other, for devices that do not submit any ahead.

use lily_plan::op::NO_TOKEN;

use crate::DeviceError;

/// As [`crate::LoadedModel::run_ahead`], with one run as a function of token and position.
///
/// # Errors
/// Those of `run`.
pub fn one_by_one(
    mut run: impl FnMut(u32, usize, &mut Vec<f32>) -> Result<(), DeviceError>,
    mut token: u32,
    position: usize,
    steps: usize,
    on_token: &mut dyn FnMut(u32) -> bool,
) -> Result<usize, DeviceError> {
    let mut logits = Vec::new();
    for step in 0..steps {
        run(token, position + step, &mut logits)?;
        token = most_probable(&logits);
        if !on_token(token) || token == NO_TOKEN {
            return Ok(step + 1);
        }
    }
    Ok(steps)
}

/// The largest logit's id, the lowest among equals; [`NO_TOKEN`] when some logit is no number or the
/// largest is infinite.
fn most_probable(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, NO_TOKEN);
    for (id, &logit) in (0..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return NO_TOKEN;
        }
        if logit > best.0 {
            best = (logit, id);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model whose next token is the sum of the token and the position, below 10.
    fn sum(token: u32, position: usize, logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        logits.resize(10, 0.0);
        logits[(token as usize + position) % 10] = 1.0;
        Ok(())
    }

    #[test]
    fn each_token_feeds_the_next_step() {
        let mut tokens = Vec::new();
        let fed = one_by_one(sum, 3, 1, 4, &mut |token| {
            tokens.push(token);
            true
        });
        assert_eq!((fed.expect("runs"), tokens), (4, vec![4, 6, 9, 3]));
    }

    #[test]
    fn nothing_is_fed_after_the_token_that_is_refused() {
        let mut tokens = Vec::new();
        let fed = one_by_one(sum, 3, 1, 4, &mut |token| {
            tokens.push(token);
            token != 6
        });
        assert_eq!((fed.expect("runs"), tokens), (2, vec![4, 6]));
    }

    #[test]
    fn equal_logits_choose_the_lower_id_and_what_is_no_number_chooses_none() {
        assert_eq!(most_probable(&[1.0, 2.0, 2.0]), 1);
        assert_eq!(most_probable(&[1.0, f32::NAN, 2.0]), NO_TOKEN);
        assert_eq!(most_probable(&[1.0, f32::INFINITY, 2.0]), NO_TOKEN);
        assert_eq!(most_probable(&[1.0, f32::NEG_INFINITY]), 0);
    }

    #[test]
    fn a_step_without_a_token_is_the_last() {
        let mut calls = 0;
        let mut on_token = |token| {
            calls += 1;
            assert_eq!(token, NO_TOKEN);
            true
        };
        let nan = |_, _, logits: &mut Vec<f32>| {
            *logits = vec![f32::NAN];
            Ok(())
        };
        assert_eq!(one_by_one(nan, 0, 0, 5, &mut on_token).expect("runs"), 1);
        assert_eq!(calls, 1);
    }
}
