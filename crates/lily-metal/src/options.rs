//! Choices for the device.

use crate::MetalError;

/// Whether matrix products may use the tensor units of newer GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorUnits {
    /// Where the system and the GPU have them and a trial gives the right numbers.
    #[default]
    Auto,
    /// Also on GPUs that are not known to gain; the trial still decides.
    On,
    /// Never.
    Off,
}

/// Choices for a device; the default suits everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// Use of the tensor units.
    pub tensor: TensorUnits,
    /// One command buffer per step, so that a failure names the very step; slow.
    pub step_by_step: bool,
}

impl MetalOptions {
    /// Switches of the environment: `LILY_TENSOR` (`0` or `1`) and `LILY_METAL_STEPS` (`1`: one
    /// command buffer per step).
    ///
    /// # Errors
    /// [`MetalError::Environment`] for any other value.
    pub fn from_env() -> Result<MetalOptions, MetalError> {
        let get = |name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
        MetalOptions::parse(get("LILY_TENSOR"), get("LILY_METAL_STEPS"))
    }

    fn parse(tensor: Option<String>, steps: Option<String>) -> Result<MetalOptions, MetalError> {
        let tensor = match switch("LILY_TENSOR", tensor)? {
            None => TensorUnits::Auto,
            Some(true) => TensorUnits::On,
            Some(false) => TensorUnits::Off,
        };
        let step_by_step = switch("LILY_METAL_STEPS", steps)?.unwrap_or(false);
        Ok(MetalOptions { tensor, step_by_step })
    }
}

fn switch(variable: &'static str, value: Option<String>) -> Result<Option<bool>, MetalError> {
    match value.as_deref() {
        None | Some("") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(found) => Err(MetalError::Environment { variable, found: found.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_0_or_1_or_not_there() {
        let parse = |tensor: Option<&str>, steps: Option<&str>| {
            MetalOptions::parse(tensor.map(Into::into), steps.map(Into::into))
        };
        assert_eq!(parse(None, None).unwrap(), MetalOptions::default());
        assert_eq!(parse(Some(""), Some("")).unwrap(), MetalOptions::default());
        let chosen = parse(Some("0"), Some("1")).unwrap();
        assert_eq!(chosen, MetalOptions { tensor: TensorUnits::Off, step_by_step: true });
        assert_eq!(parse(Some("1"), Some("0")).unwrap().tensor, TensorUnits::On);
        for (tensor, steps, named) in
            [(Some("yes"), None, "LILY_TENSOR"), (None, Some("2"), "LILY_METAL_STEPS")]
        {
            let error = parse(tensor, steps).unwrap_err();
            assert!(
                matches!(&error, MetalError::Environment { variable, .. } if *variable == named),
                "{error}"
            );
        }
    }
}
