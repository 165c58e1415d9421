//! The shared folder's goldens, and what a machine needs to run tests of the emulator.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lily_checkpoint::Checkpoint;
use lily_emulator::Toolchain;
use serde_json::Value;

/// One golden checkpoint with what it should give.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) short: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    tensors: Value,
    data: Vec<u8>,
}

/// Whether tests can run here; says so on stderr where not, past the capture of passing tests.
fn available(what: &str, variable: &str, found: bool) -> bool {
    if !found {
        assert!(std::env::var_os(variable).is_none_or(|value| value != "1"), "{what} is missing");
        drop(writeln!(std::io::stderr(), "skipped: {what} is missing"));
    }
    found
}

/// Whether kernels can be compiled here.
pub(crate) fn has_compiler() -> bool {
    available("clang", "LILY_REQUIRE_CLANG", Toolchain::find().is_ok())
}

/// All golden checkpoints, or `None` where the shared folder or the compiler is missing.
pub(crate) fn goldens() -> Option<Vec<Golden>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("LILY_SHARED").map_or_else(beside, PathBuf::from);
    let folder = shared.join("goldens");
    if !available("shared/", "LILY_REQUIRE_SHARED", folder.is_dir()) || !has_compiler() {
        return None;
    }
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
}
