//! What can go wrong with Metal.

use lily_device::DeviceError;
use lily_kernels::launch::Module;
use lily_kernels::limits::LimitError;
use lily_kernels::sources::SourceError;

/// Why there is no Metal device, or why it stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetalError {
    /// Another system.
    #[error("the metal device exists on macOS only")]
    NotMacOs,
    /// A system without the calls that the device needs.
    #[error("the metal device needs macOS 15, this is macOS {major}.{minor}")]
    TooOld {
        /// Version found.
        major: u64,
        /// Version found.
        minor: u64,
    },
    /// The system shows no GPU, as in a sandbox or in a session without a display.
    #[error("the system shows no GPU")]
    NoDevice,
    /// A variable of the environment.
    #[error("{variable} is {found:?}, expected 0 or 1")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// Its value.
        found: String,
    },
    /// Metal made no object of that kind.
    #[error("metal makes no {what}")]
    Object {
        /// Kind.
        what: &'static str,
    },
    /// A kernel source that cannot be put together.
    #[error("kernel sources: {0}")]
    Source(#[from] SourceError),
    /// Metal's compiler refuses a library; the whole log.
    #[error("the library {module:?} does not compile:\n{log}")]
    Compile {
        /// Which one.
        module: Module,
        /// What the compiler said.
        log: String,
    },
    /// A kernel that its library lacks, or of which Metal makes no pipeline.
    #[error("no pipeline for kernel {kernel}: {message}")]
    Pipeline {
        /// Host name.
        kernel: String,
        /// What Metal said.
        message: String,
    },
    /// The plan needs what this device does not grant.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A plan that has no kernels.
    #[error("no kernels for the plan: {message}")]
    Lower {
        /// What is missing.
        message: String,
    },
    /// Memory ran out.
    #[error("not enough memory for {what}: {bytes} bytes")]
    Memory {
        /// What was to be allocated.
        what: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// A command buffer ended with an error.
    #[error("step {steps}: metal error {code}: {message}")]
    Commands {
        /// The step, or the first and the last step of the command buffer.
        steps: String,
        /// Code of `MTLCommandBufferError`.
        code: isize,
        /// What Metal said.
        message: String,
    },
    /// A command buffer did not end in time.
    #[error("step {steps}: no answer from the GPU for {seconds} s")]
    Silent {
        /// The step, or the first and the last step of the command buffer.
        steps: String,
        /// How long was waited.
        seconds: u64,
    },
}

impl MetalError {
    /// The error as the engine knows it; `at` names what was being done.
    pub(crate) fn at(self, at: &str) -> DeviceError {
        let lost = |step: &str, message| {
            let step = step.to_owned();
            DeviceError::Lost { device: "metal", step, message }
        };
        match self {
            MetalError::Memory { what, bytes } => DeviceError::Memory { what, bytes },
            MetalError::Commands { ref steps, code, ref message } => {
                lost(steps, format!("{message} ({})", code_name(code)))
            }
            MetalError::Silent { ref steps, seconds } => {
                lost(steps, format!("no answer from the GPU for {seconds} s"))
            }
            other => lost(at, other.to_string()),
        }
    }
}

/// What a code of `MTLCommandBufferError` means to the user.
fn code_name(code: isize) -> &'static str {
    match code {
        2 => "time-out: the system's watchdog ended the work",
        3 => "page fault: a kernel read or wrote outside of its buffers",
        4 => "access revoked after earlier failures",
        7 => "not permitted in the background",
        8 => "out of memory",
        9 => "invalid resource",
        12 => "stack overflow",
        _ => "unknown code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_step_and_the_meaning_of_the_code() {
        let (steps, message) = ("layers.3.mlp.experts".to_owned(), "Caused GPU Timeout".to_owned());
        let error = MetalError::Commands { steps, code: 2, message }.at("run");
        let text = error.to_string();
        assert!(text.contains("metal") && text.contains("layers.3.mlp.experts"), "{text}");
        assert!(text.contains("Caused GPU Timeout") && text.contains("watchdog"), "{text}");
    }

    #[test]
    fn memory_stays_memory_and_the_rest_names_what_was_being_done() {
        let memory = MetalError::Memory { what: "scratch".into(), bytes: 7 }.at("prepare");
        assert!(matches!(memory, DeviceError::Memory { bytes: 7, .. }), "{memory}");
        let log = "kernels/moe/moe.metal:7: error".to_owned();
        let compile = MetalError::Compile { module: Module::Moe, log }.at("prepare").to_string();
        assert!(compile.contains("prepare") && compile.contains("moe.metal:7"), "{compile}");
    }
}
