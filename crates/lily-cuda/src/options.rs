//! Choices for a CUDA device, each of them a switch for measuring or for finding a fault.

use std::path::PathBuf;
use std::str::FromStr;

use lily_device::DeviceFacts;
use lily_kernels::lower::Tuning;
use lily_plan::buffer::Elem;

/// How the steps of a plan reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submission {
    /// One graph with the edges of the plan, launched as a whole.
    #[default]
    Graph,
    /// One graph whose steps follow each other in a chain.
    Chain,
    /// One launch after the other on a stream.
    Stream,
    /// As [`Submission::Stream`], waiting for each step: an error then names its step.
    Checked,
}

/// Where a step may start before the step that it waits for has ended (programmatic dependent
/// launch); its kernel then waits at `LILY_WAIT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Programmatic {
    /// Nowhere.
    Off,
    /// In plans of one row, where it waits for one step only. Steps of many rows fill the machine by
    /// themselves; starting their successors early takes multiprocessors from them.
    #[default]
    Decode,
    /// In every plan, where it waits for one step only.
    Chains,
    /// Everywhere.
    All,
}

impl Programmatic {
    /// What it comes to in a plan of that many rows.
    pub(crate) fn of_plan(self, rows: usize) -> Programmatic {
        match self {
            Programmatic::Decode if rows == 1 => Programmatic::Chains,
            Programmatic::Decode => Programmatic::Off,
            chosen => chosen,
        }
    }
}

/// Where compiled kernels are kept between runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KernelCache {
    /// `lily/cuda` in the user's cache folder, or nowhere where there is none.
    #[default]
    User,
    /// This folder.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// Choices for a [`crate::CudaDevice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which device, as the driver counts them.
    pub ordinal: usize,
    /// How steps are submitted.
    pub submission: Submission,
    /// Where steps may start early.
    pub programmatic: Programmatic,
    /// In plans of one row every step asks for the weights of the step so many steps later; 0: none
    /// does.
    pub ahead: usize,
    /// What feeds matrix products of several rows: `Bf16`, on the tensor cores, or exact and slow
    /// `F32`.
    pub activations: Elem,
    /// Where compiled kernels are kept.
    pub cache: KernelCache,
    /// Every block of a kernel writes down when it began, had waited and ended; see
    /// [`crate::CudaModel::trace`].
    pub trace: bool,
    /// Percent of a multiprocessor's memory that is shared memory, the rest being cache, for all kernels
    /// of plans of one row alike: one that wants another share than those that run cannot start beside
    /// them. `None`: as the driver chooses for each. The default was measured on an H200;
    /// chips without its 228 KB or early starts do as the driver chooses.
    pub carveout: Option<u8>,
    /// Percent of a multiprocessor's shared memory that a block takes at least where a grid has about as
    /// many blocks as there are multiprocessors, in plans of one row: so that fewer of them go to one
    /// multiprocessor, which they do when they start early and find it free. 0: what the kernel declares.
    /// The default was measured on an H200; as for `carveout`, other chips take what is declared.
    pub spread: u8,
    /// How kernels are shaped.
    pub tuning: Tuning,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions {
            ordinal: 0,
            submission: Submission::default(),
            programmatic: Programmatic::default(),
            ahead: 2,
            activations: Elem::Bf16,
            cache: KernelCache::default(),
            trace: false,
            carveout: Some(33),
            spread: 17,
            tuning: Tuning::nvidia(),
        }
    }
}

impl CudaOptions {
    /// How kernels are shaped, where exact products leave no choice.
    pub(crate) fn tuning(&self) -> Tuning {
        let tuning = self.tuning.clone();
        match self.activations {
            // Chunks multiply through bf16.
            Elem::F32 => Tuning { scan_chunks: false, ..tuning },
            _ => tuning,
        }
    }

    /// What a device with these choices says of itself. Plans depend on no more of it than this, so
    /// they can be built where there is no such device.
    pub fn facts(&self, name: String, multiprocessors: usize) -> DeviceFacts {
        DeviceFacts {
            kind: "cuda",
            name,
            parallelism: multiprocessors,
            activations: self.activations,
            // Measured: 30,700 tokens/s with chunks of 4096, 17,000 with 512.
            prefill_chunk: 4096,
            token_slot: true,
        }
    }
}

/// A word that names no choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{word:?} is no choice for the CUDA device; expected graph, chain, stream, checked, early=off, \
     early=decode, early=chains, early=all, ahead=N, activations=f32, gqa=off, gemm_rows=N, \
     matmul_block=RxCxMxN, expert_tile=N, matvec_rows=N, matvec_simdgroups=N, matvec_groups=N, \
     row_tiles=off, gated_rows=N, gated_simdgroups=N, down_rows=N, scan_block=N, scan_chunks=off, \
     delta_lanes=N, mix_lanes=N, delta_cluster=N, carveout=N, carveout=off, spread=N, trace, \
     cache=off, cache=FOLDER or device=N"
)]
pub struct OptionError {
    /// The word.
    pub word: String,
}

impl FromStr for CudaOptions {
    type Err = OptionError;

    /// Reads a comma list of words, such as `stream,early=off`; the empty text is the default.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options = CudaOptions::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word {
                "graph" => options.submission = Submission::Graph,
                "chain" => options.submission = Submission::Chain,
                "stream" => options.submission = Submission::Stream,
                "checked" => options.submission = Submission::Checked,
                "early=off" => options.programmatic = Programmatic::Off,
                "early=decode" => options.programmatic = Programmatic::Decode,
                "early=chains" => options.programmatic = Programmatic::Chains,
                "early=all" => options.programmatic = Programmatic::All,
                "activations=f32" => options.activations = Elem::F32,
                "gqa=off" => options.tuning.gqa_packing = false,
                "scan_chunks=off" => options.tuning.scan_chunks = false,
                "row_tiles=off" => options.tuning.row_tiles = false,
                "trace" => options.trace = true,
                "cache=off" => options.cache = KernelCache::Off,
                _ => options.set(word)?,
            }
        }
        Ok(options)
    }
}

impl CudaOptions {
    fn set(&mut self, word: &str) -> Result<(), OptionError> {
        let refused = || OptionError { word: word.to_owned() };
        match word.split_once('=') {
            Some(("cache", folder)) if !folder.is_empty() => {
                self.cache = KernelCache::Folder(folder.into());
            }
            Some(("matmul_block", block)) => {
                let numbers: Result<Vec<usize>, _> = block.split('x').map(str::parse).collect();
                let Ok([rows, columns, m, n]) = numbers.as_deref() else { return Err(refused()) };
                let whole = |extent: usize, parts: usize, tile: usize| {
                    (1..=16).contains(&parts)
                        && (1..=256).contains(&extent)
                        && extent.is_multiple_of(parts * tile)
                };
                if !whole(*rows, *m, 16) || !whole(*columns, *n, 32) || m * n > 32 {
                    return Err(refused());
                }
                let block = &mut self.tuning.matmul_block;
                (block.rows, block.columns, block.simdgroups) = (*rows, *columns, (*m, *n));
            }
            Some(("ahead", n)) => self.ahead = n.parse().map_err(|_| refused())?,
            Some(("carveout", "off")) => self.carveout = None,
            Some(("carveout", n)) => {
                let percent = n.parse().ok().filter(|&percent: &u8| percent <= 100);
                self.carveout = Some(percent.ok_or_else(refused)?);
            }
            Some(("spread", n)) => {
                let percent = n.parse().ok().filter(|&percent: &u8| percent <= 50);
                self.spread = percent.ok_or_else(refused)?;
            }
            Some(("device", n)) => self.ordinal = n.parse().map_err(|_| refused())?,
            Some((name, n)) => {
                let n: usize = n.parse().map_err(|_| refused())?;
                let tuning = &mut self.tuning;
                let (field, allowed): (_, &[usize]) = match name {
                    "gemm_rows" => (&mut tuning.gemm_rows, &[]),
                    "expert_tile" => (&mut tuning.expert_tile_rows, &[16, 32, 64, 128]),
                    "matvec_rows" => (&mut tuning.matvec_rows, &[1, 2, 4, 8]),
                    "matvec_simdgroups" => (&mut tuning.matvec_simdgroups, &[2, 4, 8, 16]),
                    "matvec_groups" => (&mut tuning.matvec_groups, &[]),
                    "gated_rows" => (&mut tuning.routed_gated.0, &[1, 2, 4]),
                    "gated_simdgroups" => (&mut tuning.routed_gated.1, &[2, 4, 8, 16]),
                    "down_rows" => (&mut tuning.routed_down_rows, &[1, 2, 4, 8]),
                    "scan_block" => (&mut tuning.scan_block, &[1, 2, 4, 8]),
                    "delta_cluster" => (&mut tuning.delta_cluster, &[1, 2, 4, 8]),
                    "mix_lanes" => (&mut tuning.mix_lanes, &[4, 8, 16]),
                    "delta_lanes" => (&mut tuning.delta_lanes, &[4, 8, 16]),
                    _ => return Err(refused()),
                };
                if !allowed.is_empty() && !allowed.contains(&n) {
                    return Err(refused());
                }
                *field = n;
            }
            _ => return Err(refused()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_set_their_choice_and_leave_the_others() {
        let options: CudaOptions = "stream,early=off,device=1,expert_tile=64".parse().unwrap();
        assert_eq!(options.submission, Submission::Stream);
        assert_eq!(options.programmatic, Programmatic::Off);
        assert_eq!(options.ordinal, 1);
        assert_eq!(options.tuning.expert_tile_rows, 64);
        assert_eq!(options.cache, KernelCache::User);
        assert_eq!("".parse(), Ok(CudaOptions::default()));
    }

    #[test]
    fn steps_start_early_in_decode_plans_alone_unless_asked_otherwise() {
        let of =
            |words: &str, rows| words.parse::<CudaOptions>().unwrap().programmatic.of_plan(rows);
        assert_eq!((of("", 1), of("", 2)), (Programmatic::Chains, Programmatic::Off));
        assert_eq!(of("early=chains", 512), Programmatic::Chains);
        assert_eq!(of("early=off", 1), Programmatic::Off);
    }

    #[test]
    fn row_tiles_off_leaves_their_form_out_of_the_kernels() {
        let defines = |words: &str| words.parse::<CudaOptions>().unwrap().tuning.defines().to_vec();
        assert_eq!((defines(""), defines("row_tiles=off")), (vec!["LILY_ROW_TILES"], vec![]));
    }

    #[test]
    fn exact_products_leave_the_scan_no_chunks() {
        let of = |words: &str| words.parse::<CudaOptions>().unwrap().tuning().scan_chunks;
        assert_eq!((of(""), of("scan_chunks=off")), (true, false));
        assert!(!of("activations=f32"));
    }

    #[test]
    fn a_word_that_means_nothing_is_refused_by_name() {
        for word in [
            "fast",
            "cache=",
            "device=x",
            "graph ",
            "expert_tile=8",
            "row_tiles=on",
            "carveout=101",
            "spread=51",
            "scan_block=3",
            "scan_chunks=16",
            "ahead=-1",
            "matmul_block=64x128",
            "matmul_block=64x128x0x4",
            "matmul_block=72x128x1x4",
        ] {
            assert_eq!(word.parse::<CudaOptions>(), Err(OptionError { word: word.into() }));
        }
    }
}
