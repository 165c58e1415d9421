//! The dialect check: whether Metal would take the kernels, as far as that can be known without Metal.
//!
//! Three parts. The translation refuses what is outside the dialect: unknown attributes, buffer indices
//! with gaps, host names that come twice, pointers without an address space, methods without `thread`.
//! [`Clang`] parses the kernels as C++ for OpenCL, which has Metal's address spaces: it finds wrong
//! types, a pointer that goes to another space, writes through `const`, implicit conversions between
//! 16-bit floats, and threadgroup memory beyond 32 KiB. [`bindings`] compares an entry with its launch.
//!
//! Out of reach: early returns before a barrier (the emulator finds barriers that not all threads
//! reach), and whether Metal's own compiler has further objections.

mod bindings;

use std::io::Write as _;
use std::process::{Command, Stdio};

pub use bindings::{BindingError, bindings};

use crate::sources::{self, SourceError};
use crate::translate::{self, Target, TranslateError, Translated};

/// The environment's name for the compiler.
pub const CLANG_VARIABLE: &str = "CLANG";

/// How the kernels are parsed. Extensions that Metal has as well make no noise; a warning is an error.
const FLAGS: [&str; 17] = [
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-Xclang",
    "-cl-ext=+all",
    "-target",
    "x86_64-linux-gnu",
    "-fsyntax-only",
    "-Wall",
    "-Werror",
    "-Wno-c++20-extensions",
    "-Wno-unused",
    "-Wno-undefined-internal",
    "-Wno-undefined-inline",
    "-Wno-psabi",
    "-",
];

/// Why kernels are not accepted.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The run-time text of the check.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Outside the dialect.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The compiler did not start or broke off.
    #[error("cannot run {program}")]
    Run {
        /// What was started.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The compiler found something.
    #[error("the kernels are not Metal:\n{log}")]
    Rejected {
        /// The compiler's messages, with file and line of the kernels.
        log: String,
    },
}

/// A clang that knows C++ for OpenCL 2021: version 17 or later.
#[derive(Clone, Debug)]
pub struct Clang {
    program: String,
    native: bool,
}

impl Clang {
    /// The compiler that `CLANG` names, or `clang-19`.
    ///
    /// # Errors
    /// [`CheckError::Run`] where it does not start.
    pub fn find() -> Result<Self, CheckError> {
        let program = std::env::var(CLANG_VARIABLE).unwrap_or_else(|_| "clang-19".to_owned());
        let version = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
        match version {
            Ok(_) => Ok(Clang { program, native: false }),
            Err(source) => Err(CheckError::Run { program, source }),
        }
    }

    /// For kernels that only other machines run: with their forms (`LILY_NATIVE_...`) of what Metal has
    /// none of.
    #[must_use]
    pub fn with_native_forms(self) -> Self {
        Clang { native: true, ..self }
    }

    /// Checks a library, that is a source with its instantiations.
    ///
    /// # Errors
    /// [`CheckError::Translate`] and [`CheckError::Rejected`] where the library leaves the dialect.
    pub fn check(&self, library: &str) -> Result<Translated, CheckError> {
        let translated = translate::translate(library, Target::Check)?;
        let text = format!("{}\n{}", sources::flatten("runtime/check.clh")?, translated.code);
        let failed = |source| CheckError::Run { program: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .args(self.native.then_some("-DLILY_CHECK_NATIVE"))
            .args(FLAGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // Clang reads everything before it writes anything.
        let written = child.stdin.take().expect("it is piped").write_all(text.as_bytes());
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(CheckError::Rejected { log });
        }
        written.map_err(failed)?;
        Ok(translated)
    }
}
