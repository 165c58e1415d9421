//! Writes the table of everything under `kernels/`, so that the sources travel inside the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = manifest.join("../../kernels").canonicalize()?;
    // A folder stands for everything below it: a file that is added is noticed.
    println!("cargo:rerun-if-changed={}", root.display());

    let mut names = Vec::new();
    collect(&root, "", &mut names)?;
    names.sort();
    let mut table = String::from("&[\n");
    for name in names {
        let path = root.join(&name);
        writeln!(table, "    ({name:?}, include_str!({:?})),", path.display().to_string())
            .expect("writing to a string");
    }
    table.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("kernel_files.rs"), table)
}

/// Adds the names of the source files below `folder`, relative to `kernels/` and with `/`.
fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) -> io::Result<()> {
    const EXTENSIONS: [&str; 8] = ["metal", "h", "hpp", "cpp", "cu", "cuh", "clh", "md"];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), names)?;
        } else if EXTENSIONS.iter().any(|e| name.ends_with(&format!(".{e}"))) {
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}
