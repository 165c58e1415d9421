//! The compiler that turns translated kernels into shared objects.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the compiler; otherwise `clang++-19`, then `clang++`.
pub(crate) const COMPILER_VARIABLE: &str = "CLANGXX";

/// What every object is compiled with. Products and sums are not contracted, so that all machines
/// compute the same.
const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O1",
    "-g1",
    "-fdebug-compilation-dir=.",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-Wno-everything",
    "-ferror-limit=20",
];

/// Why kernels could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No compiler.
    #[error("no C++ compiler: neither {COMPILER_VARIABLE}, clang++-19 nor clang++ can be started")]
    NoCompiler,
    /// The compiler could not be started, or a file not be written.
    #[error("cannot compile kernels in {}", folder.display())]
    Io {
        /// Where objects go.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The compiler refused the translated source.
    #[error("the translated kernels do not compile:\n{log}")]
    Refused {
        /// What the compiler said.
        log: String,
    },
    /// The object could not be loaded.
    #[error("cannot load {}", object.display())]
    Load {
        /// The object.
        object: PathBuf,
        /// What the linker said.
        source: libloading::Error,
    },
}

/// A C++ compiler.
#[derive(Clone, Debug)]
pub struct Toolchain {
    compiler: String,
    target: Vec<&'static str>,
    defines: Vec<String>,
}

impl Toolchain {
    /// The compiler that `CLANGXX` names, else the first of `clang++-19` and `clang++` that starts.
    ///
    /// # Errors
    /// [`CompileError::NoCompiler`].
    pub fn find() -> Result<Toolchain, CompileError> {
        let named = std::env::var(COMPILER_VARIABLE).into_iter();
        let starts = |program: &String| {
            Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
        };
        let usual = ["clang++-19", "clang++"].map(str::to_owned);
        let compiler = named.chain(usual).find(starts).ok_or(CompileError::NoCompiler)?;
        Ok(Toolchain { compiler, target: target_flags(), defines: Vec::new() })
    }

    /// With these names defined in every source, such as
    /// [`Tuning::defines`](lily_kernels::lower::Tuning::defines).
    #[must_use]
    pub fn with_defines(mut self, names: &[&str]) -> Toolchain {
        self.defines.extend(names.iter().map(|name| format!("-D{name}")));
        self
    }

    /// Everything but the source that decides about an object.
    pub(crate) fn identity(&self) -> String {
        format!("{} {:?} {FLAGS:?} {:?}", self.compiler, self.target, self.defines)
    }

    /// Compiles one source into a shared object.
    pub(crate) fn compile(&self, source: &Path, object: &Path) -> Result<(), CompileError> {
        let mut command = Command::new(&self.compiler);
        command.args(FLAGS).args(&self.target).args(&self.defines).arg("-x").arg("c++").arg(source);
        command.arg("-o").arg(object);
        let out = command.output().map_err(|source| CompileError::Io {
            folder: object.parent().unwrap_or(object).to_owned(),
            source,
        })?;
        if out.status.success() {
            return Ok(());
        }
        Err(CompileError::Refused { log: String::from_utf8_lossy(&out.stderr).into_owned() })
    }
}

/// Instructions for half and fused multiply-add, where this machine has them: without, both are
/// calls into a library.
fn target_flags() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let has = [is_x86_feature_detected!("fma"), is_x86_feature_detected!("f16c")];
        if has == [true, true] && is_x86_feature_detected!("avx2") {
            return vec!["-march=x86-64-v3"];
        }
    }
    Vec::new()
}
