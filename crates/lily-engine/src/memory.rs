//! What the machine has.

/// Memory that can be taken without swapping, in bytes; `None` where the system does not say.
///
/// Linux: `MemAvailable`, which counts the page cache as free.
pub fn available_memory() -> Option<u64> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   24041764 kB\nBuffers: 2 kB\n";
        assert_eq!(parse_meminfo(text), Some(24_041_764 * 1024));
    }

    #[test]
    fn unknown_forms_of_meminfo_give_no_figure() {
        for text in ["", "MemAvailable: 12 MB\n", "MemAvailable: x kB\n", "MemFree: 3 kB\n"] {
            assert_eq!(parse_meminfo(text), None, "{text:?}");
        }
    }
}
