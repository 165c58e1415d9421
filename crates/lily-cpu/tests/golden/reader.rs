//! The golden checkpoints of the reference folder with what they should give.
//!
//! The tests of other crates include this file by its path.
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lily_checkpoint::Checkpoint;
use serde_json::Value;

/// One golden checkpoint with what it should give.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) short: Vec<u32>,
    pub(crate) long: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    tensors: Value,
    data: Vec<u8>,
}

/// Whether tests have `what` they need; where not, fails if the variable demands it, else says so
/// past the capture of passing tests, so that a skip is seen.
pub(crate) fn available(what: &str, variable: &str, found: bool) -> bool {
    if !found {
        assert!(std::env::var_os(variable).is_none_or(|value| value != "1"), "{what} is missing");
        drop(writeln!(std::io::stderr(), "skipped: {what} is missing"));
    }
    found
}

/// The folder of golden checkpoints, or `None` where the shared folder is missing.
pub(crate) fn folder() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("LILY_SHARED").map_or_else(beside, PathBuf::from);
    let folder = shared.join("goldens");
    available("shared/", "LILY_REQUIRE_SHARED", folder.is_dir()).then_some(folder)
}

/// All golden checkpoints, or `None` where the shared folder is missing.
pub(crate) fn goldens() -> Option<Vec<Golden>> {
    let folder = folder()?;
    let names =
        ["moe_hybrid_4bit_gs64", "dense_tied_4bit_gs64", "moe_mixed_bits_gs32", "moe_bf16_hf"];
    Some(names.iter().map(|name| Golden::read(&folder.join(name), name)).collect())
}

impl Golden {
    fn read(dir: &Path, name: &str) -> Golden {
        let text = std::fs::read_to_string(dir.join("golden.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let ids = |value: &Value| -> Vec<u32> {
            value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let file = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        Golden {
            name: name.to_owned(),
            checkpoint: Checkpoint::open(dir).unwrap(),
            short: ids(&json["prompts"]["short"]),
            long: ids(&json["prompts"]["long"]),
            greedy: ids(&json["greedy"]["tokens"]),
            tensors: serde_json::from_slice(&file[8..8 + header]).unwrap(),
            data: file[8 + header..].to_vec(),
        }
    }

    /// An `F32` tensor of the golden file.
    pub(crate) fn tensor(&self, key: &str) -> Vec<f32> {
        let offsets = &self.tensors[key]["data_offsets"];
        let at = |i: usize| offsets[i].as_u64().unwrap() as usize;
        let bytes = self.data[at(0)..at(1)].chunks_exact(4);
        bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub(crate) fn vocab(&self) -> usize {
        self.checkpoint.config().vocab_size
    }
}
