//! Which system and which GPU: parsed once, decided here.

use std::fmt;

use crate::MetalError;
use crate::options::TensorUnits;

/// A version of macOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OsVersion {
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

impl OsVersion {
    /// Residency sets, MSL 3.2 and explicit math modes came with it.
    const MINIMUM: OsVersion = OsVersion { major: 15, minor: 0 };
    /// The first release whose tensor operations take the forms that the kernels use.
    const TENSOR: OsVersion = OsVersion { major: 26, minor: 2 };

    /// The version that the system reports.
    pub(crate) fn new(major: u64, minor: u64) -> OsVersion {
        // A program linked with an older SDK is told 16 for 26; no macOS 16 exists.
        OsVersion { major: if major == 16 { 26 } else { major }, minor }
    }

    /// Refuses systems that lack what the device needs.
    pub(crate) fn check(self) -> Result<(), MetalError> {
        match self >= OsVersion::MINIMUM {
            true => Ok(()),
            false => Err(MetalError::TooOld { major: self.major, minor: self.minor }),
        }
    }
}

impl fmt::Display for OsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The number in an architecture's name: 13 for M1, 17 for M5. `applegpu_g16s` is generation 16.
pub(crate) fn generation(architecture: &str) -> Option<u32> {
    let digits = architecture.strip_prefix("applegpu_g")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// GPUs of virtual machines offer neither heaps nor residency sets.
pub(crate) fn is_paravirtual(name: &str) -> bool {
    name.contains("Paravirtual")
}

/// The first generation with tensor units.
const TENSOR_GENERATION: u32 = 17;

/// Whether the tensor units are used, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The trial was right.
    Used,
    /// To be tried.
    Try,
    /// Switched off by the user.
    SwitchedOff,
    /// The system is older than the operations.
    System(OsVersion),
    /// The GPU has none, or says nothing that could tell.
    Gpu,
    /// They do not compile or give wrong numbers here; the simdgroup kernels are used.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Used => write!(f, "tensor units used"),
            Verdict::Try => write!(f, "tensor units not tried yet"),
            Verdict::SwitchedOff => write!(f, "tensor units switched off"),
            Verdict::System(found) => {
                write!(f, "no tensor units before macOS {}, this is {found}", OsVersion::TENSOR)
            }
            Verdict::Gpu => write!(f, "no tensor units"),
            Verdict::Failed(why) => write!(f, "tensor units refused: {why}"),
        }
    }
}

/// Whether the tensor kernels are worth a trial.
pub(crate) fn tensor(choice: TensorUnits, os: OsVersion, generation: Option<u32>) -> Verdict {
    match choice {
        TensorUnits::Off => Verdict::SwitchedOff,
        // The library does not compile on older systems, whatever the user wants.
        TensorUnits::Auto | TensorUnits::On if os < OsVersion::TENSOR => Verdict::System(os),
        TensorUnits::On => Verdict::Try,
        TensorUnits::Auto if generation.is_some_and(|g| g >= TENSOR_GENERATION) => Verdict::Try,
        TensorUnits::Auto => Verdict::Gpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macos_15_is_the_least_and_16_is_another_word_for_26() {
        for (major, minor) in [(15, 0), (15, 7), (16, 0), (26, 0), (27, 1)] {
            OsVersion::new(major, minor).check().unwrap();
        }
        for (major, minor) in [(10, 16), (13, 6), (14, 7)] {
            let error = OsVersion::new(major, minor).check().unwrap_err();
            assert!(error.to_string().contains(&format!("macOS {major}.{minor}")), "{error}");
        }
        assert_eq!(OsVersion::new(16, 2), OsVersion::new(26, 2));
    }

    #[test]
    fn the_generation_is_the_number_in_the_architecture() {
        for (name, expected) in [
            ("applegpu_g13g", Some(13)),
            ("applegpu_g16s", Some(16)),
            ("applegpu_g17d", Some(17)),
            ("applegpu_g18", Some(18)),
            ("applegpu_g", None),
            ("applegpu_gx", None),
            ("", None),
            ("intel", None),
        ] {
            assert_eq!(generation(name), expected, "{name}");
        }
    }

    #[test]
    fn tensor_units_need_the_system_the_gpu_and_consent() {
        use TensorUnits::{Auto, Off, On};
        let (old, just, new) =
            (OsVersion::new(26, 1), OsVersion::new(26, 2), OsVersion::new(27, 0));
        for (choice, os, generation, expected) in [
            (Auto, just, Some(17), Verdict::Try),
            (Auto, new, Some(18), Verdict::Try),
            (Auto, old, Some(17), Verdict::System(old)),
            (Auto, just, Some(16), Verdict::Gpu),
            (Auto, just, None, Verdict::Gpu),
            (On, just, Some(13), Verdict::Try),
            (On, just, None, Verdict::Try),
            (On, old, Some(17), Verdict::System(old)),
            (Off, new, Some(18), Verdict::SwitchedOff),
        ] {
            assert_eq!(tensor(choice, os, generation), expected, "{choice:?} {os} {generation:?}");
        }
    }

    #[test]
    fn a_virtual_machine_is_known_by_its_gpu() {
        assert!(is_paravirtual("Apple Paravirtual device"));
        assert!(!is_paravirtual("Apple M4 Max"));
    }
}
