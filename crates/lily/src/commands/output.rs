//! Writing results: standard output, with errors instead of panics when it is closed.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes a text as it is and lets it be seen at once.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a value as one line.
pub(crate) fn print_line(value: &Value) -> io::Result<()> {
    print(&format!("{value}\n"))
}

/// Writes a value over several lines.
pub(crate) fn print_pretty(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Reads a text file, or standard input when the path is `-`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}

/// Text that was piped in; `None` on a terminal, and when there is none.
pub(crate) fn piped_text() -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    Ok(Some(read_text(Path::new("-"))?).filter(|text| !text.is_empty()))
}

/// A byte count for people, in decimal units as disks and papers count.
pub(crate) fn bytes(n: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|&(size, _)| n >= size) {
        Some((size, unit)) => format!("{:.2} {unit}", n as f64 / size as f64),
        None => format!("{n} B"),
    }
}

/// A count for people.
pub(crate) fn count(n: u64) -> String {
    let units = [(1_000_000_000, "billion"), (1_000_000, "million")];
    match units.into_iter().find(|&(size, _)| n >= size) {
        Some((size, unit)) => format!("{:.2} {unit}", n as f64 / size as f64),
        None => n.to_string(),
    }
}

/// A number of things, with their name in the right number.
pub(crate) fn counted(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(0, "token"), "0 tokens");
    }

    #[test]
    fn byte_counts_use_decimal_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(20_480), "20.48 kB");
        assert_eq!(bytes(19_508_787_456), "19.51 GB");
    }
}
