//! Gated softmax attention: the layers with a KV cache.

use lily_plan::buffer::{BufferClass, Region};
use lily_plan::op::{Attention, AttentionMerge, AttentionSplit, Op, OutputGate, RopeAppend};

use crate::build::Builder;
use crate::error::ModelError;

/// Threadgroups that keep a large GPU busy, and splits beyond which merging costs more than it saves.
const MOST_THREADGROUPS: usize = 128;
const MOST_SPLITS: usize = 64;

/// Splits of the positions: enough to occupy a device at long contexts, few where the cache is short.
fn n_splits(capacity: usize, n_kv_heads: usize) -> usize {
    let most = (MOST_THREADGROUPS / n_kv_heads).clamp(8, MOST_SPLITS);
    if capacity > 4096 { most } else { capacity.div_ceil(32).clamp(1, most / 2) }
}

/// What the projections give, and the cache of one layer.
struct Heads {
    q_gate: Region,
    k: Region,
    v: Region,
    k_cache: Region,
    v_cache: Region,
}

/// Norm · q, k, v · q/k norm, rope, append · attention and gate · output projection, residual.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let config = b.config;
    let (rows, capacity) = (b.rows, b.options.capacity);
    let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
    let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
    let attn = format!("{path}.self_attn");
    let name = |part: &str| format!("{attn}.{part}");

    let h = b.normed(&format!("{path}.input_layernorm"), x, rows, true)?;
    let projections =
        [(name("q_proj"), 2 * q_dim), (name("k_proj"), kv_dim), (name("v_proj"), kv_dim)];
    let [q_gate, k, v] = b.project_all(&name("qkv_proj"), &h, projections)?;

    let cache = [n_kv_heads, capacity, head_dim];
    let kv = b.options.kv;
    let k_cache = b.buffer(format!("{path}.k_cache"), kv, &cache, BufferClass::KvCache);
    let v_cache = b.buffer(format!("{path}.v_cache"), kv, &cache, BufferClass::KvCache);
    let heads = Heads { q_gate: q_gate.clone(), k, v, k_cache, v_cache };
    let out = if b.fusions().attention {
        b.scratch(name("out"), rows, q_dim)
    } else {
        b.activations(name("out"), rows, q_dim)
    };
    if b.fusions().attention {
        split_and_merge(b, &attn, heads, out.clone())?;
    } else {
        append_and_attend(b, &attn, heads, out.clone())?;
    }
    if !b.fusions().attention_gate {
        let op = OutputGate { x: out.clone(), q_gate, rows, n_heads, head_dim };
        b.push(name("output_gate"), Op::OutputGate(op));
    }
    b.project_residual(&name("o_proj"), &out, x, q_dim)
}

/// Multiplies `q · k`.
fn scale(head_dim: usize) -> f32 {
    (head_dim as f64).powf(-0.5) as f32
}

fn split_and_merge(
    b: &mut Builder<'_>,
    path: &str,
    heads: Heads,
    out: Region,
) -> Result<(), ModelError> {
    let (config, rows, capacity) = (b.config, b.rows, b.options.capacity);
    let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
    let n_splits = n_splits(capacity, n_kv_heads);
    let partial = b.scratch(format!("{path}.partial"), n_splits, n_heads * head_dim);
    let stats = b.scratch(format!("{path}.stats"), n_splits, 2 * n_heads);
    let op = AttentionSplit {
        control: b.control.clone(),
        q_gate: heads.q_gate.clone(),
        k: heads.k,
        v: heads.v,
        q_norm: b.vector(&format!("{path}.q_norm"), head_dim)?,
        k_norm: b.vector(&format!("{path}.k_norm"), head_dim)?,
        k_cache: heads.k_cache,
        v_cache: heads.v_cache,
        partial: partial.clone(),
        stats: stats.clone(),
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        n_splits,
        inv_freq: b.rope.inv_freq.clone(),
        rope_scale: b.rope.scale,
        eps: config.rms_norm_eps,
        scale: scale(head_dim),
    };
    b.push(format!("{path}.split"), Op::AttentionSplit(op));
    let q_gate = b.fusions().attention_gate.then_some(heads.q_gate);
    let op = AttentionMerge { partial, stats, q_gate, out, rows, n_heads, head_dim, n_splits };
    b.push(format!("{path}.merge"), Op::AttentionMerge(op));
    Ok(())
}

fn append_and_attend(
    b: &mut Builder<'_>,
    path: &str,
    heads: Heads,
    out: Region,
) -> Result<(), ModelError> {
    let (config, rows, capacity) = (b.config, b.rows, b.options.capacity);
    let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
    let q = b.scratch(format!("{path}.q"), rows, n_heads * head_dim);
    let op = RopeAppend {
        control: b.control.clone(),
        q_gate: heads.q_gate.clone(),
        k: heads.k,
        v: heads.v,
        q_norm: b.vector(&format!("{path}.q_norm"), head_dim)?,
        k_norm: b.vector(&format!("{path}.k_norm"), head_dim)?,
        q: q.clone(),
        k_cache: heads.k_cache.clone(),
        v_cache: heads.v_cache.clone(),
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        inv_freq: b.rope.inv_freq.clone(),
        rope_scale: b.rope.scale,
        eps: config.rms_norm_eps,
    };
    b.push(format!("{path}.rope_append"), Op::RopeAppend(op));
    let op = Attention {
        control: b.control.clone(),
        q,
        k_cache: heads.k_cache,
        v_cache: heads.v_cache,
        q_gate: b.fusions().attention_gate.then_some(heads.q_gate),
        out,
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        scale: scale(head_dim),
    };
    b.push(format!("{path}.attention"), Op::Attention(op));
    Ok(())
}
