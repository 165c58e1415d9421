//! Gated softmax attention: the layers with a KV cache.

use lily_plan::buffer::{BufferClass, Region};
use lily_plan::op::{Attention, Op, OutputGate, RopeAppend};

use crate::build::Builder;
use crate::error::ModelError;

/// Norm · q, k, v · q/k norm, rope, append · attention and gate · output projection, residual.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let config = b.config;
    let (rows, capacity, hidden) = (b.rows, b.options.capacity, config.hidden_size);
    let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
    let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);

    let norm = format!("{path}.input_layernorm");
    let h = b.norm(&norm, &norm, x, rows)?;
    let q_gate = b.project(&format!("{path}.self_attn.q_proj"), &h, 2 * q_dim, hidden)?;
    let k = b.project(&format!("{path}.self_attn.k_proj"), &h, kv_dim, hidden)?;
    let v = b.project(&format!("{path}.self_attn.v_proj"), &h, kv_dim, hidden)?;

    let cache = [n_kv_heads, capacity, head_dim];
    let kv = b.options.kv;
    let k_cache = b.buffer(format!("{path}.k_cache"), kv, &cache, BufferClass::KvCache);
    let v_cache = b.buffer(format!("{path}.v_cache"), kv, &cache, BufferClass::KvCache);
    let q_norm = b.vector(&format!("{path}.self_attn.q_norm"), head_dim)?;
    let k_norm = b.vector(&format!("{path}.self_attn.k_norm"), head_dim)?;
    let q = b.scratch(format!("{path}.self_attn.q"), rows, q_dim);
    let control = b.control.clone();
    let op = RopeAppend {
        control: control.clone(),
        q_gate: q_gate.clone(),
        k,
        v,
        q_norm,
        k_norm,
        q: q.clone(),
        k_cache: k_cache.clone(),
        v_cache: v_cache.clone(),
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        inv_freq: b.rope.inv_freq.clone(),
        rope_scale: b.rope.scale,
        eps: config.rms_norm_eps,
    };
    b.push(format!("{path}.self_attn.rope_append"), Op::RopeAppend(op));

    let fused = b.options.fusions.attention_gate;
    let out = b.scratch(format!("{path}.self_attn.out"), rows, q_dim);
    let op = Attention {
        control,
        q,
        k_cache,
        v_cache,
        q_gate: fused.then(|| q_gate.clone()),
        out: out.clone(),
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        scale: (head_dim as f64).powf(-0.5) as f32,
    };
    b.push(format!("{path}.self_attn.attention"), Op::Attention(op));
    if !fused {
        let op = OutputGate { x: out.clone(), q_gate, rows, n_heads, head_dim };
        b.push(format!("{path}.self_attn.output_gate"), Op::OutputGate(op));
    }
    b.project_residual(&format!("{path}.self_attn.o_proj"), &out, x, q_dim)
}
