//! Gated DeltaNet: the layers with a recurrent state of constant size.

use lily_checkpoint::config::GateActivation;
use lily_plan::buffer::{BufferClass, Elem, Region};
use lily_plan::op::{Conv, DeltaMix, GatedDelta, GatedRmsNorm, Op};

use crate::build::Builder;
use crate::error::ModelError;

/// What lies between the projections of one layer.
struct Mix {
    qkv: Region,
    z: Region,
    a: Region,
    b: Region,
    conv_state: Region,
    state: Region,
}

/// Norm · qkv, z, b, a · convolution · delta rule · gated norm · output projection, residual.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let config = b.config;
    let (channels, value_heads) = (config.conv_dim(), config.linear_value_heads);
    let (key_dim, value_dim) = (config.linear_key_head_dim, config.linear_value_head_dim);
    let linear = format!("{path}.linear_attn");
    let name = |part: &str| format!("{linear}.{part}");

    let h = b.normed(&format!("{path}.input_layernorm"), x, b.rows, true)?;
    let projections = [
        (name("in_proj_qkv"), channels),
        (name("in_proj_z"), config.linear_value_dim()),
        (name("in_proj_b"), value_heads),
        (name("in_proj_a"), value_heads),
    ];
    let [qkv, z, beta, decay] = b.project_all(&name("in_proj"), &h, projections)?;

    let mut state = |part: &str, shape: &[usize]| {
        b.buffer(format!("{path}.{part}"), Elem::F32, shape, BufferClass::State)
    };
    let conv_state = state("conv_state", &[config.conv_width, channels]);
    let state = state("delta_state", &[value_heads, value_dim, key_dim]);
    let mix = Mix { qkv, z, a: decay, b: beta, conv_state, state };
    let out = if b.fusions().delta { one_step(b, &linear, mix)? } else { steps(b, &linear, mix)? };
    b.project_residual(&name("out_proj"), &out, x, config.linear_value_dim())
}

fn one_step(b: &mut Builder<'_>, path: &str, mix: Mix) -> Result<Region, ModelError> {
    let (config, rows) = (b.config, b.rows);
    let (channels, width) = (config.conv_dim(), config.conv_width);
    let (key_heads, value_heads) = (config.linear_key_heads, config.linear_value_heads);
    let (key_dim, value_dim) = (config.linear_key_head_dim, config.linear_value_head_dim);
    let name = format!("{path}.mix");
    let out = b.scratch(&name, rows, config.linear_value_dim());
    let op = DeltaMix {
        control: b.control.clone(),
        qkv: mix.qkv,
        z: mix.z,
        a: mix.a,
        b: mix.b,
        conv: b.conv(&format!("{path}.conv1d"), channels, width)?,
        conv_state: mix.conv_state,
        a_log: b.vector(&format!("{path}.A_log"), value_heads)?,
        dt_bias: b.vector(&format!("{path}.dt_bias"), value_heads)?,
        norm: b.vector(&format!("{path}.norm"), value_dim)?,
        state: mix.state,
        out: out.clone(),
        rows,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        width,
        eps: config.rms_norm_eps,
        sigmoid: config.linear_gate == GateActivation::Sigmoid,
    };
    b.push(name, Op::DeltaMix(op));
    Ok(out)
}

fn steps(b: &mut Builder<'_>, path: &str, mix: Mix) -> Result<Region, ModelError> {
    let (config, rows) = (b.config, b.rows);
    let (channels, width) = (config.conv_dim(), config.conv_width);
    let (key_heads, value_heads) = (config.linear_key_heads, config.linear_value_heads);
    let (key_dim, value_dim) = (config.linear_key_head_dim, config.linear_value_head_dim);
    let name = |part: &str| format!("{path}.{part}");

    let weight = b.conv(&name("conv1d"), channels, width)?;
    let conv = b.scratch(name("conv"), rows, channels);
    let (control, state) = (b.control.clone(), mix.conv_state);
    let op = Conv { control, x: mix.qkv, weight, state, out: conv.clone(), rows, channels, width };
    b.push(name("conv"), Op::Conv(op));

    let delta = b.scratch(name("delta"), rows, config.linear_value_dim());
    let op = GatedDelta {
        qkv: conv,
        a: mix.a,
        b: mix.b,
        a_log: b.vector(&name("A_log"), value_heads)?,
        dt_bias: b.vector(&name("dt_bias"), value_heads)?,
        state: mix.state,
        out: delta.clone(),
        rows,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    };
    b.push(name("gated_delta"), Op::GatedDelta(op));

    // In place, unless the norm changes the element type.
    let in_place = rows == 1 || b.options.activations == Elem::F32;
    let out = if in_place {
        delta.clone()
    } else {
        b.activations(name("normed"), rows, config.linear_value_dim())
    };
    let op = GatedRmsNorm {
        x: delta,
        gate: mix.z,
        weight: b.vector(&name("norm"), value_dim)?,
        out: out.clone(),
        rows,
        heads: value_heads,
        dim: value_dim,
        eps: config.rms_norm_eps,
        sigmoid: config.linear_gate == GateActivation::Sigmoid,
    };
    b.push(name("norm"), Op::GatedRmsNorm(op));
    Ok(out)
}
