//! What was measured, for people and for programs.

use std::fmt::Write as _;

use lily_device::DeviceFacts;
use serde_json::{Value, json};

use super::contract::{Measured, Round};
use super::machine::Machine;
use super::peers::Facts;
use crate::args::BenchArgs;

/// A whole run: what its figures are, and what they depend on.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) version: &'static str,
    pub(super) device: String,
    pub(super) machine: Machine,
    pub(super) date: String,
    pub(super) settings: Settings,
    pub(super) peer: Option<Facts>,
    /// What a reader of the figures has to know.
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) peak_memory: Option<u64>,
}

/// What was asked for.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) kv_cache: String,
    pub(super) prefill_chunk: usize,
    pub(super) steps: usize,
    pub(super) rounds: usize,
}

impl Settings {
    pub(super) fn of(args: &BenchArgs, device: &DeviceFacts) -> Self {
        let planning = &args.engine.planning;
        Settings {
            kv_cache: format!("{:?}", planning.kv(device)).to_lowercase(),
            prefill_chunk: planning.prefill_chunk(device),
            steps: args.steps,
            rounds: args.rounds,
        }
    }
}

/// One prompt length.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) lily: Measured,
    pub(super) peer: Option<Measured>,
}

impl Row {
    pub(super) fn length(&self) -> usize {
        self.lily.shape.length
    }

    /// lily's prefill rate over the peer's.
    pub(super) fn prefill_ratio(&self) -> Option<f64> {
        self.peer.as_ref().map(|peer| self.lily.prefill_rate() / peer.prefill_rate())
    }

    /// lily's decode rate over the peer's.
    pub(super) fn decode_ratio(&self) -> Option<f64> {
        self.peer.as_ref().map(|peer| self.lily.decode_rate() / peer.decode_rate())
    }

    /// How many of the first tokens are the same, of how many, where both engines tell theirs.
    pub(super) fn equal_tokens(&self) -> Option<(usize, usize)> {
        let lily = self.lily.tokens.as_ref()?;
        let peer = self.peer.as_ref()?.tokens.as_ref()?;
        let equal = lily.iter().zip(peer).take_while(|(a, b)| a == b).count();
        Some((equal, lily.len()))
    }
}

impl Report {
    /// The comparison as one object.
    pub(super) fn json(&self) -> Value {
        json!({
            "lily": self.version,
            "model": self.model,
            "device": self.device,
            "machine": self.machine.json(),
            "date": format!("{} UTC", self.date),
            "batch": 1,
            "kv_cache": self.settings.kv_cache,
            "prefill_chunk": self.settings.prefill_chunk,
            "decode_steps": self.settings.steps,
            "rounds": self.settings.rounds,
            "peer": self.peer.as_ref().map(facts),
            "notes": self.notes,
            "results": self.rows.iter().map(row).collect::<Vec<_>>(),
            "peak_memory_bytes": self.peak_memory,
        })
    }

    /// The comparison as a table.
    pub(super) fn table(&self) -> String {
        let name = self.peer.as_ref().map_or("", |peer| peer.name);
        let mut text = format!("{} on {}, lily {}", self.model, self.device, self.version);
        if let Some(peer) = &self.peer {
            let _ = write!(text, " beside {} {}", peer.name, peer.model);
        }
        text.push('\n');
        for line in self.peer.iter().map(versions).chain(self.notes.iter().cloned()) {
            let _ = writeln!(text, "{line}");
        }
        let tells = self.rows.iter().any(|row| row.equal_tokens().is_some());
        let _ = write!(text, "prompt    prefill {name:>10}  ratio     decode {name:>10}  ratio");
        text += if tells { "  equal tokens\n" } else { "\n" };
        for row in &self.rows {
            let peer = row.peer.as_ref();
            let _ = write!(
                text,
                "{:>6} {:>10.1} {:>10.1} {:>6.2} {:>10.1} {:>10.1} {:>6.2}",
                row.length(),
                row.lily.prefill_rate(),
                peer.map_or(0.0, Measured::prefill_rate),
                row.prefill_ratio().unwrap_or_default(),
                row.lily.decode_rate(),
                peer.map_or(0.0, Measured::decode_rate),
                row.decode_ratio().unwrap_or_default(),
            );
            if let Some((equal, of)) = row.equal_tokens() {
                let _ = write!(text, "  {equal} of {of}");
            }
            text.push('\n');
        }
        text += "tokens per second, medians; a ratio above 1 means that lily is faster\n";
        text
    }
}

/// Versions of a peer in a line.
pub(super) fn versions(peer: &Facts) -> String {
    let pairs = peer.versions.iter().map(|(name, version)| format!("{name} {version}"));
    format!("{}: {}", peer.name, pairs.collect::<Vec<_>>().join(", "))
}

fn facts(peer: &Facts) -> Value {
    let versions = peer.versions.iter().map(|(name, version)| (name.clone(), json!(version)));
    json!({
        "name": peer.name,
        "model": peer.model,
        "command": peer.command,
        "versions": versions.collect::<serde_json::Map<_, _>>(),
    })
}

fn row(row: &Row) -> Value {
    json!({
        "prompt_tokens": row.length(),
        "decode_steps": row.lily.shape.steps,
        "lily": measured(&row.lily),
        "peer": row.peer.as_ref().map(measured),
        "prefill_ratio": row.prefill_ratio(),
        "decode_ratio": row.decode_ratio(),
        "equal_tokens": row.equal_tokens().map(|(equal, _)| equal),
    })
}

/// The figures of one engine at one length.
pub(super) fn measured(m: &Measured) -> Value {
    json!({
        "prefill_tokens_per_second": m.prefill_rate(),
        "first_token_ms": m.first_token_s() * 1e3,
        "decode_tokens_per_second": m.decode_rate(),
        "decode_ms_per_token": m.decode_s() * 1e3 / m.shape.steps as f64,
        "digest": m.digest(),
        "rounds": rounds(&m.rounds),
    })
}

pub(super) fn rounds(rounds: &[Round]) -> Value {
    let round =
        |r: &Round| json!({"first_token_ms": r.first_token_s * 1e3, "decode_ms": r.decode_s * 1e3});
    rounds.iter().map(round).collect()
}
