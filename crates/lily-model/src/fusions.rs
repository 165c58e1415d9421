//! The named fusions.

use std::fmt;
use std::str::FromStr;

/// Which fusions a plan uses; each has an unfused twin with the same result up to rounding.
///
/// Parses from `all`, `none` or a comma list of names, and prints as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusions {
    /// The output projection adds to the residual stream; twin: projection, then `Add`.
    pub residual: bool,
    /// Gate and up projection with SwiGLU in one step; twin: two projections, then `SwiGlu`.
    pub swiglu: bool,
    /// Attention multiplies by its sigmoid gate; twin: `Attention`, then `OutputGate`.
    pub attention_gate: bool,
}

impl Fusions {
    /// Every fusion.
    pub fn all() -> Self {
        Fusions { residual: true, swiglu: true, attention_gate: true }
    }
    /// No fusion.
    pub fn none() -> Self {
        Fusions { residual: false, swiglu: false, attention_gate: false }
    }
    /// The names of all fusions.
    pub fn names() -> [&'static str; 3] {
        ["residual", "swiglu", "attention_gate"]
    }
    fn switches(&mut self) -> [&mut bool; 3] {
        [&mut self.residual, &mut self.swiglu, &mut self.attention_gate]
    }
}

impl Default for Fusions {
    fn default() -> Self {
        Fusions::all()
    }
}

/// A name that is no fusion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fusion {name:?}, expected all, none or a comma list of {}", Fusions::names().join(", "))]
pub struct UnknownFusion {
    /// The name given.
    pub name: String,
}

impl FromStr for Fusions {
    type Err = UnknownFusion;

    fn from_str(list: &str) -> Result<Self, UnknownFusion> {
        match list.trim() {
            "all" => return Ok(Fusions::all()),
            "none" => return Ok(Fusions::none()),
            _ => {}
        }
        let mut fusions = Fusions::none();
        for name in list.split(',').map(str::trim) {
            let Some(i) = Fusions::names().iter().position(|&known| known == name) else {
                return Err(UnknownFusion { name: name.to_owned() });
            };
            *fusions.switches()[i] = true;
        }
        Ok(fusions)
    }
}

impl fmt::Display for Fusions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Fusions::all() {
            return f.write_str("all");
        }
        if *self == Fusions::none() {
            return f.write_str("none");
        }
        let mut on = *self;
        let names = Fusions::names().into_iter().zip(on.switches());
        let names: Vec<_> = names.filter(|(_, on)| **on).map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}
