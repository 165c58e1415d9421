//! From CUDA C++ to machine code: NVRTC, several kernels at a time, and a cache on disk.
//!
//! Each kernel is compiled on its own: so all cores work, and what two plans share is compiled once.

use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::result as nvrtc;
use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use crate::error::CudaError;
use crate::options::KernelCache;

/// How PTX spells the wait of a kernel that may start early.
const WAIT: &str = "griddepcontrol.wait";

/// First bytes of a cache file: what it is, and the form of the rest.
const MAGIC: &[u8; 8] = b"lilycu2\n";

/// Machine code of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Whether it waits for the steps before it by itself (`LILY_WAIT`).
    pub(crate) waits: bool,
    pub(crate) resources: Resources,
    pub(crate) cubin: Vec<u8>,
}

/// What a kernel takes of a multiprocessor, as the assembler reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of stack per thread: arrays that are not in registers, and what was spilled.
    pub stack_bytes: u32,
    /// Bytes per thread that are stored and loaded because registers ran out.
    pub spilled_bytes: u32,
}

impl Resources {
    /// Reads the assembler's log of one kernel and the functions that it calls.
    fn parse(log: &str) -> Resources {
        let mut resources = Resources::default();
        let words: Vec<&str> = log.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            let Ok(number) = word.parse::<u32>() else { continue };
            let after = |n: usize| words.get(at + n).copied().unwrap_or_default();
            match (after(1), after(2), after(3).trim_end_matches(',')) {
                ("registers,", ..) => resources.registers = resources.registers.max(number),
                ("bytes", "stack", "frame") => {
                    resources.stack_bytes = resources.stack_bytes.max(number);
                }
                ("bytes", "spill", "stores" | "loads") => resources.spilled_bytes += number,
                _ => {}
            }
        }
        resources
    }
}

/// One kernel to compile.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Folder of its sources, for messages.
    pub(crate) module: &'static str,
    /// CUDA C++.
    pub(crate) source: String,
}

/// Compiles for one chip.
#[derive(Debug)]
pub(crate) struct Compiler {
    options: Vec<String>,
    version: (i32, i32),
    folder: Option<PathBuf>,
}

impl Compiler {
    /// `defines`: names that every source finds defined.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`].
    pub(crate) fn new(
        arch: &str,
        cache: &KernelCache,
        defines: &[&str],
    ) -> Result<Self, CudaError> {
        let options = [
            &format!("-arch={arch}"),
            "-default-device",
            "-std=c++17",
            // So that compute-sanitizer names lines of the Metal sources.
            "-lineinfo",
            // Registers and spills, in the log.
            "--ptxas-options=-v",
        ];
        let folder = match cache {
            KernelCache::Off => None,
            KernelCache::Folder(folder) => Some(folder.clone()),
            KernelCache::User => user_folder(),
        };
        let options = options.into_iter().map(str::to_owned);
        let options = options.chain(defines.iter().map(|name| format!("-D{name}"))).collect();
        Ok(Compiler { options, version: nvrtc_version()?, folder })
    }

    /// Compiles units on all cores; the results are in their order.
    pub(crate) fn compile_all(&self, units: &[Unit]) -> Result<Vec<Compiled>, CudaError> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(unit) = units.get(index) else { return Ok(made) };
                made.push((index, self.compile(unit)?));
            }
        };
        let mut made = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..threads.min(units.len())).map(|_| scope.spawn(work)).collect();
            let mut all = Vec::with_capacity(units.len());
            for thread in threads {
                let part: Result<_, CudaError> =
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.extend(part?);
            }
            Ok::<_, CudaError>(all)
        })?;
        made.sort_unstable_by_key(|(index, _)| *index);
        Ok(made.into_iter().map(|(_, compiled)| compiled).collect())
    }

    /// From the cache, or compiled and kept there.
    fn compile(&self, unit: &Unit) -> Result<Compiled, CudaError> {
        let file = self.file(&unit.source);
        if let Some(compiled) = file.as_ref().and_then(|file| decode(&fs::read(file).ok()?)) {
            return Ok(compiled);
        }
        let compiled = self.compile_source(unit)?;
        if let Some(file) = file {
            // A cache that cannot be written costs time at the next start and nothing else.
            let _ = keep(&file, &encode(&compiled));
        }
        Ok(compiled)
    }

    /// The cache file of a source.
    fn file(&self, source: &str) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        hash.update(format!("{:?} {:?}\n", self.options, self.version));
        hash.update(source);
        Some(self.folder.as_ref()?.join(format!("{}.cubin", hex(&hash.finalize()))))
    }

    fn compile_source(&self, unit: &Unit) -> Result<Compiled, CudaError> {
        let failed =
            |log: String| CudaError::Compile { module: unit.module, log: log.trim().to_owned() };
        let source = CString::new(unit.source.as_str())
            .map_err(|_| failed("the source has a zero byte".to_owned()))?;
        let name = CString::new(format!("{}.cu", unit.module))
            .map_err(|_| failed("the name has a zero byte".to_owned()))?;
        let program = Program::new(&source, &name).map_err(|e| failed(e.to_string()))?;
        match program.compile(&self.options) {
            Ok(()) => {}
            Err(_) => return Err(failed(program.log())),
        }
        let cubin = program.cubin().map_err(|e| failed(e.to_string()))?;
        let waits = program.ptx().is_ok_and(|ptx| contains(&ptx, WAIT.as_bytes()));
        Ok(Compiled { waits, resources: Resources::parse(&program.log()), cubin })
    }
}

/// Version of the run-time compiler.
///
/// # Errors
/// [`CudaError::NoCompiler`] where it is missing or does not answer.
pub(crate) fn nvrtc_version() -> Result<(i32, i32), CudaError> {
    // SAFETY: opens and closes the library, whose initialisers have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoCompiler);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; the call writes two `int`s.
    let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    status.result().map_err(|_| CudaError::NoCompiler)?;
    Ok((major, minor))
}

/// One compilation; refers to its source until it is dropped.
struct Program<'a> {
    handle: sys::nvrtcProgram,
    _source: &'a CStr,
}

impl<'a> Program<'a> {
    fn new(source: &'a CStr, name: &'a CStr) -> Result<Self, nvrtc::NvrtcError> {
        Ok(Program { handle: nvrtc::create_program(source, Some(name))?, _source: source })
    }

    fn compile(&self, options: &[String]) -> Result<(), nvrtc::NvrtcError> {
        // SAFETY: the handle is alive until `drop`.
        unsafe { nvrtc::compile_program(self.handle, options) }
    }

    fn log(&self) -> String {
        // SAFETY: as above.
        let log = unsafe { nvrtc::get_program_log(self.handle) };
        let bytes: Vec<u8> = log.unwrap_or_default().into_iter().map(|c| c as u8).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn ptx(&self) -> Result<Vec<u8>, nvrtc::NvrtcError> {
        // SAFETY: as above; it has been compiled.
        let ptx = unsafe { nvrtc::get_ptx(self.handle) }?;
        Ok(ptx.into_iter().map(|c| c as u8).collect())
    }

    fn cubin(&self) -> Result<Vec<u8>, nvrtc::NvrtcError> {
        let mut size = 0usize;
        // SAFETY: the handle is alive and compiled; the call writes one `size_t`.
        unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut size) }.result()?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has the size that the compiler asked for.
        unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast::<c_char>()) }.result()?;
        Ok(cubin)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from `create_program` and is destroyed once.
        let _ = unsafe { nvrtc::destroy_program(self.handle) };
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Magic, checksum of the rest, the facts, the code.
fn encode(compiled: &Compiled) -> Vec<u8> {
    let Resources { registers, stack_bytes, spilled_bytes } = compiled.resources;
    let facts = [u32::from(compiled.waits), registers, stack_bytes, spilled_bytes];
    let mut rest: Vec<u8> = facts.iter().flat_map(|fact| fact.to_le_bytes()).collect();
    rest.extend_from_slice(&compiled.cubin);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&Sha256::digest(&rest));
    bytes.extend_from_slice(&rest);
    bytes
}

/// `None` for a file that is not whole.
fn decode(bytes: &[u8]) -> Option<Compiled> {
    let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_at_checked(32)?;
    if Sha256::digest(rest)[..] != *sum {
        return None;
    }
    let (facts, cubin) = rest.split_at_checked(16)?;
    let fact = |i: usize| Some(u32::from_le_bytes(facts.get(4 * i..4 * i + 4)?.try_into().ok()?));
    let resources =
        Resources { registers: fact(1)?, stack_bytes: fact(2)?, spilled_bytes: fact(3)? };
    Some(Compiled { waits: fact(0)? != 0, resources, cubin: cubin.to_vec() })
}

/// Writes beside the file and renames, so that nobody reads half of it.
fn keep(file: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = file.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = file.with_extension(format!("{}-{number}", std::process::id()));
    fs::write(&beside, bytes)?;
    fs::rename(&beside, file)
}

/// `lily/cuda` in the user's cache folder.
fn user_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("LOCALAPPDATA"))
        .or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("lily").join("cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler for a Hopper chip, or `None` where NVRTC is missing.
    fn compiler(cache: &KernelCache) -> Option<Compiler> {
        match Compiler::new("sm_90a", cache, &[]) {
            Ok(compiler) => Some(compiler),
            Err(error) => {
                assert!(std::env::var_os("LILY_REQUIRE_NVRTC").is_none_or(|v| v != "1"), "{error}");
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    fn unit(body: &str) -> Unit {
        let source = format!("extern \"C\" __global__ void kernel(float *x) {{ {body} }}\n");
        Unit { module: "test", source }
    }

    #[test]
    fn a_kernel_that_waits_is_told_from_one_that_does_not() {
        let Some(compiler) = compiler(&KernelCache::Off) else { return };
        let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");";
        let units = [unit("x[0] = 1.0f;"), unit(&format!("{wait} x[0] = 1.0f;"))];
        let compiled = compiler.compile_all(&units).unwrap();
        assert_eq!(compiled.iter().map(|c| c.waits).collect::<Vec<_>>(), [false, true]);
        assert!(compiled.iter().all(|c| c.cubin.starts_with(b"\x7fELF")));
    }

    #[test]
    fn registers_and_spills_are_read_from_the_log() {
        let log = "ptxas info    : Function properties for k\n\
            ptxas         .     664 bytes stack frame, 776 bytes spill stores, 1156 bytes spill loads\n\
            ptxas info    : Used 64 registers, used 0 barriers, 664 bytes cumulative stack size\n";
        let resources = Resources { registers: 64, stack_bytes: 664, spilled_bytes: 1932 };
        assert_eq!(Resources::parse(log), resources);
        let Some(compiler) = compiler(&KernelCache::Off) else { return };
        let compiled = compiler.compile_all(&[unit("x[0] = 1.0f;")]).unwrap();
        assert!(compiled[0].resources.registers > 0);
        assert_eq!(compiled[0].resources.spilled_bytes, 0);
    }

    /// The compiler's messages about a translated Metal kernel with that body, if it has any.
    fn log_of(compiler: &Compiler, body: &str) -> Option<String> {
        let metal = format!(
            "#line 1 \"k.metal\"\ntemplate <int N> [[kernel]] void k(device float4* y [[buffer(0)]]) {{\n\
             {body}\n}}\ntemplate [[host_name(\"k\")]] [[kernel]] decltype(k<1>) k<1>;\n"
        );
        let mut source = lily_kernels::sources::flatten("runtime/cuda.cuh").unwrap();
        source.push_str(&lily_kernels::translate::cuda(&metal).unwrap().code);
        match compiler.compile_all(&[Unit { module: "test", source }]) {
            Ok(_) => None,
            Err(CudaError::Compile { log, .. }) => Some(log),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_metal_refuses_or_means_otherwise_does_not_compile_for_cuda() {
        let Some(compiler) = compiler(&KernelCache::Off) else { return };
        let right = [
            "float2 a = y[0].zw; y[1] = float4(a, y[0].xy);",
            "bfloat b = bfloat(y[0].x); y[0].y = b;",
            "half h = half(y[0].x); y[0].y = h * 2.0f;",
            "y[0] = float4(bfloat4(y[1])) * 2 + simd_sum(y[2]);",
        ];
        for body in right {
            assert_eq!(log_of(&compiler, body), None, "{body}");
        }
        let wrong = [
            "y[0].zw = float2(1.0f);",
            "bfloat b = y[0].x;",
            "bfloat b = bfloat(1.0f); half h = b;",
        ];
        for body in wrong {
            let log = log_of(&compiler, body).unwrap_or_else(|| panic!("accepted: {body}"));
            assert!(log.contains("k.metal(2): error"), "{body}\n{log}");
        }
    }

    #[test]
    fn a_source_that_does_not_compile_gives_the_log_with_its_line() {
        let Some(compiler) = compiler(&KernelCache::Off) else { return };
        let error = compiler.compile_all(&[unit("x[0] = nonsense;")]).unwrap_err();
        let CudaError::Compile { module: "test", log } = error else { panic!("{error}") };
        assert!(log.contains("test.cu(1)") && log.contains("nonsense"), "{log}");
    }

    #[test]
    fn the_cache_is_used_and_a_damaged_file_in_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let Some(compiler) = compiler(&KernelCache::Folder(folder.path().into())) else { return };
        let units = [unit("x[0] = 2.0f;")];
        let first = compiler.compile_all(&units).unwrap();
        let file = compiler.file(&units[0].source).unwrap();
        // Another flag shows that the second run reads the file.
        fs::write(&file, encode(&Compiled { waits: true, ..first[0].clone() })).unwrap();
        assert!(compiler.compile_all(&units).unwrap()[0].waits);
        fs::write(&file, &fs::read(&file).unwrap()[..100]).unwrap();
        assert_eq!(compiler.compile_all(&units).unwrap(), first);
    }

    #[test]
    fn a_cache_file_is_read_back_only_when_it_is_whole() {
        let resources = Resources { registers: 7, stack_bytes: 8, spilled_bytes: 9 };
        let compiled = Compiled { waits: true, resources, cubin: vec![1, 2, 3] };
        let bytes = encode(&compiled);
        assert_eq!(decode(&bytes), Some(compiled));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None);
        }
    }
}
