//! The named fusions.

use std::fmt;
use std::str::FromStr;

/// Which fusions a plan uses; each has an unfused twin with the same result up to rounding.
///
/// Parses from `all`, `none`, `cpu` or a comma list of names, and prints as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusions {
    /// The output projection adds to the residual stream; twin: projection, then `Add`.
    pub residual: bool,
    /// Gate and up projection with SwiGLU in one step; twin: two projections, then `SwiGlu`.
    pub swiglu: bool,
    /// Attention multiplies by its sigmoid gate; twin: `Attention`, then `OutputGate`.
    pub attention_gate: bool,
    /// Projections of one row norm their input themselves; twin: `RmsNorm`, then projections.
    pub norm: bool,
    /// Projections of the same row are one step; twin: one step each.
    pub stack: bool,
    /// Everything between the projections of a Gated DeltaNet layer, for one row, in one step; twin:
    /// `Conv`, `GatedDelta` and `GatedRmsNorm`.
    pub delta: bool,
    /// Attention of one row appends to the cache itself and is cut into splits that are merged; twin:
    /// `RopeAppend`, then `Attention`.
    pub attention: bool,
    /// Routing with the gate and up projections of all experts of one row, and their down projections
    /// with the weighted sum, in two steps; twin: `Route`, `GroupByExpert`, projections and
    /// `MoeCombine`.
    pub routing: bool,
}

impl Fusions {
    /// Every fusion: for devices on which a step costs more than what it computes twice.
    pub fn all() -> Self {
        let mut fusions = Fusions::none();
        fusions.switches().into_iter().for_each(|on| *on = true);
        fusions
    }
    /// No fusion.
    pub fn none() -> Self {
        Fusions {
            residual: false,
            swiglu: false,
            attention_gate: false,
            norm: false,
            stack: false,
            delta: false,
            attention: false,
            routing: false,
        }
    }
    /// What pays on a CPU, where a step costs little.
    pub fn cpu() -> Self {
        Fusions { residual: true, swiglu: true, attention_gate: true, ..Fusions::none() }
    }
    /// Those that plans of more than one row can use.
    pub(crate) fn several_rows(self) -> Self {
        let Fusions { residual, swiglu, attention_gate, .. } = self;
        Fusions { residual, swiglu, attention_gate, ..Fusions::none() }
    }
    /// The names of all fusions.
    pub fn names() -> [&'static str; 8] {
        ["residual", "swiglu", "attention_gate", "norm", "stack", "delta", "attention", "routing"]
    }
    fn switches(&mut self) -> [&mut bool; 8] {
        [
            &mut self.residual,
            &mut self.swiglu,
            &mut self.attention_gate,
            &mut self.norm,
            &mut self.stack,
            &mut self.delta,
            &mut self.attention,
            &mut self.routing,
        ]
    }
}

impl Default for Fusions {
    fn default() -> Self {
        Fusions::all()
    }
}

/// A name that is no fusion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown fusion {name:?}, expected all, none, cpu or a comma list of {}",
    Fusions::names().join(", ")
)]
pub struct UnknownFusion {
    /// The name given.
    pub name: String,
}

/// Fusions that have a name together.
fn sets() -> [(&'static str, Fusions); 3] {
    [("all", Fusions::all()), ("none", Fusions::none()), ("cpu", Fusions::cpu())]
}

impl FromStr for Fusions {
    type Err = UnknownFusion;

    fn from_str(list: &str) -> Result<Self, UnknownFusion> {
        if let Some((_, set)) = sets().into_iter().find(|(name, _)| *name == list.trim()) {
            return Ok(set);
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
        if let Some((name, _)) = sets().into_iter().find(|(_, set)| set == self) {
            return f.write_str(name);
        }
        let mut on = *self;
        let names = Fusions::names().into_iter().zip(on.switches());
        let names: Vec<_> = names.filter(|(_, on)| **on).map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}
