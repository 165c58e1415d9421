//! Facts about the machine and the day, for reports.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::commands::output::bytes;

/// What figures depend on besides the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) os: String,
    pub(super) arch: &'static str,
    pub(super) processor: Option<String>,
    pub(super) memory: Option<u64>,
}

impl Machine {
    pub(super) fn this() -> Self {
        let os = std::env::consts::OS;
        let (version, processor, memory) =
            if os == "macos" { macos() } else { (None, cpu_model(), memory_total()) };
        Machine {
            os: version.map_or_else(|| os.to_owned(), |version| format!("{os} {version}")),
            arch: std::env::consts::ARCH,
            processor,
            memory,
        }
    }

    pub(super) fn text(&self) -> String {
        let memory = self.memory.map(|memory| format!("{} of memory", bytes(memory)));
        let parts = [self.processor.clone(), memory, Some(format!("{} {}", self.os, self.arch))];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "os": self.os,
            "arch": self.arch,
            "processor": self.processor,
            "memory_bytes": self.memory,
        })
    }
}

/// Version, processor and memory of a Mac.
fn macos() -> (Option<String>, Option<String>, Option<u64>) {
    let sysctl = |name| said("/usr/sbin/sysctl", &["-n", name]);
    (
        said("/usr/bin/sw_vers", &["-productVersion"]),
        sysctl("machdep.cpu.brand_string"),
        sysctl("hw.memsize").and_then(|bytes| bytes.parse().ok()),
    )
}

/// The one line that a program of the system prints.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty() && line.len() < 100).then_some(line)
}

/// The processor, where the system tells (Linux on x86).
fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_total() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Now, in UTC, as `2026-09-02 17:04`.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs())
}

/// The proleptic Gregorian calendar, counted in eras of 400 years that begin in March.
fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds / 60 % 1440);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let day = day - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_798_761_599, "2026-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn a_machine_is_told_by_what_is_known() {
        let machine = Machine { os: "linux".into(), arch: "x86_64", ..Machine::default() };
        assert_eq!(machine.text(), "linux x86_64");
        let machine =
            Machine { processor: Some("Apple M5 Max".into()), memory: Some(128 << 30), ..machine };
        assert_eq!(machine.text(), "Apple M5 Max, 137.44 GB of memory, linux x86_64");
    }
}
