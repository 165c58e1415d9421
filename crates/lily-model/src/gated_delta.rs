//! Gated DeltaNet: the layers with a recurrent state of constant size.

use lily_checkpoint::config::GateActivation;
use lily_plan::buffer::{BufferClass, Elem, Region};
use lily_plan::op::{Conv, GatedDelta, GatedRmsNorm, Op};

use crate::build::Builder;
use crate::error::ModelError;

/// Norm · qkv, z, b, a · convolution · delta rule · gated norm · output projection, residual.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let config = b.config;
    let (rows, hidden) = (b.rows, config.hidden_size);
    let (channels, width) = (config.conv_dim(), config.conv_width);
    let (key_heads, value_heads) = (config.linear_key_heads, config.linear_value_heads);
    let (key_dim, value_dim) = (config.linear_key_head_dim, config.linear_value_head_dim);
    let name = |part: &str| format!("{path}.linear_attn.{part}");

    let norm = format!("{path}.input_layernorm");
    let h = b.norm(&norm, &norm, x, rows)?;
    let qkv = b.project(&name("in_proj_qkv"), &h, channels, hidden)?;
    let z = b.project(&name("in_proj_z"), &h, config.linear_value_dim(), hidden)?;
    let beta = b.project(&name("in_proj_b"), &h, value_heads, hidden)?;
    let decay = b.project(&name("in_proj_a"), &h, value_heads, hidden)?;

    let weight = b.conv(&name("conv1d"), channels, width)?;
    let conv_state = [width, channels];
    let state = b.buffer(format!("{path}.conv_state"), Elem::F32, &conv_state, BufferClass::State);
    let conv = b.scratch(name("conv"), rows, channels);
    let control = b.control.clone();
    let op = Conv { control, x: qkv, weight, state, out: conv.clone(), rows, channels, width };
    b.push(name("conv"), Op::Conv(op));

    let a_log = b.vector(&name("A_log"), value_heads)?;
    let dt_bias = b.vector(&name("dt_bias"), value_heads)?;
    let delta_state = [value_heads, value_dim, key_dim];
    let state =
        b.buffer(format!("{path}.delta_state"), Elem::F32, &delta_state, BufferClass::State);
    let out = b.scratch(name("delta"), rows, config.linear_value_dim());
    let op = GatedDelta {
        qkv: conv,
        a: decay,
        b: beta,
        a_log,
        dt_bias,
        state,
        out: out.clone(),
        rows,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    };
    b.push(name("gated_delta"), Op::GatedDelta(op));

    let op = GatedRmsNorm {
        x: out.clone(),
        gate: z,
        weight: b.vector(&name("norm"), value_dim)?,
        out: out.clone(),
        rows,
        heads: value_heads,
        dim: value_dim,
        eps: config.rms_norm_eps,
        sigmoid: config.linear_gate == GateActivation::Sigmoid,
    };
    b.push(name("norm"), Op::GatedRmsNorm(op));
    b.project_residual(&name("out_proj"), &out, x, config.linear_value_dim())
}
