//! One dispatch: all threadgroups of a grid, or clusters of them, in random order, over system threads.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::abi::{Binding, Launch, Report};
use crate::cache::Entry;
use crate::fault::Fault;
use crate::memory::AlignedBytes;

/// Size of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Threadgroups in x, y, z.
    pub grid: [u32; 3],
    /// Threads per threadgroup: a multiple of 32, at most 1024.
    pub threads: u32,
}

/// How the work is spread and ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Decides the order of threadgroups and of threads.
    pub seed: u64,
    /// System threads that run threadgroups.
    pub workers: usize,
}

/// Runs a kernel on these buffers, bound by their position.
///
/// # Errors
/// What the kernel did wrong.
///
/// # Panics
/// When the grid is larger than 2³² threadgroups or no multiple of the kernel's clusters in x, or the
/// threads are no multiple of 32 or, of a cluster, more than 1024.
pub fn run(
    entry: &Entry,
    dispatch: &Dispatch,
    buffers: &mut [&mut AlignedBytes],
    schedule: &Schedule,
) -> Result<(), Fault> {
    let bindings: Vec<Binding> =
        buffers.iter().map(|b| (b.base(), b.len())).enumerate().map(bind).collect();
    // SAFETY: the exclusive borrows keep every buffer alive and from other hands during the call.
    unsafe { dispatch_raw(entry, dispatch, &bindings, schedule) }
}

fn bind((index, (base, len)): (usize, (*mut u8, usize))) -> Binding {
    Binding { base, bytes: len as u64, index: index as u32 }
}

/// As [`run`], on addresses.
///
/// # Safety
/// Every binding must be valid for reads and writes for the time of the call, and reached in no other
/// way where the kernel writes.
pub(crate) unsafe fn dispatch_raw(
    entry: &Entry,
    dispatch: &Dispatch,
    bindings: &[Binding],
    schedule: &Schedule,
) -> Result<(), Fault> {
    let Dispatch { grid, threads } = *dispatch;
    assert!(threads > 0 && threads.is_multiple_of(32) && threads <= 1024, "{threads} threads");
    let groups = grid.iter().try_fold(1u32, |n, &g| n.checked_mul(g)).expect("fewer than 2^32");
    let cluster = entry.cluster;
    assert!(grid[0].is_multiple_of(cluster), "clusters of {cluster} threadgroups in {grid:?}");
    assert!(threads * cluster <= 1024, "clusters of {cluster} times {threads} threads");
    let mut random = Random(schedule.seed);
    let mut order: Vec<u32> = (0..groups / cluster).collect();
    random.shuffle(&mut order);
    let part = order.len().div_ceil(schedule.workers.max(1)).max(1);
    let jobs: Vec<(&[u32], u64)> = order.chunks(part).map(|part| (part, random.next())).collect();
    let shared = Shared { entry, bindings, grid, threads };
    if let [(order, seed)] = jobs[..] {
        return shared.run(order, seed);
    }
    std::thread::scope(|scope| {
        let shared = &shared;
        let jobs: Vec<_> = jobs
            .into_iter()
            .map(|(order, seed)| scope.spawn(move || shared.run(order, seed)))
            .collect();
        let done = jobs.into_iter().map(|job| job.join().expect("does not panic"));
        done.fold(Ok(()), Result::and)
    })
}

struct Shared<'a> {
    entry: &'a Entry,
    bindings: &'a [Binding],
    grid: [u32; 3],
    threads: u32,
}

// SAFETY: the caller of `dispatch_raw` answers for the addresses; kernels meet in memory as on a GPU.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn run(&self, order: &[u32], seed: u64) -> Result<(), Fault> {
        let Entry { name, object, function, cluster } = self.entry;
        let machine = Machine::take(self.entry)?;
        let launch = Launch {
            entry: *function,
            bindings: self.bindings.as_ptr(),
            n_bindings: self.bindings.len() as u32,
            threads: self.threads,
            grid: self.grid,
            n_order: order.len() as u32,
            cluster: *cluster,
            order: order.as_ptr(),
            seed,
        };
        let mut report = Report::EMPTY;
        // SAFETY: `launch` and what it points to outlive the call, the machine is used by this thread
        // only, and the entry belongs to this object.
        match unsafe { (object.run)(machine.0, &launch, &mut report) } {
            0 => Ok(()),
            _ => Err(Fault::of(name, &object.path, &report)),
        }
    }
}

/// Memory for the fibres of one threadgroup; kept for the next launch.
struct Machine(*mut c_void);

static IDLE: Mutex<Vec<Machine>> = Mutex::new(Vec::new());

// SAFETY: plain memory that one launch at a time uses.
unsafe impl Send for Machine {}

impl Machine {
    fn take(entry: &Entry) -> Result<Taken, Fault> {
        let idle = IDLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        // SAFETY: the function has no preconditions.
        let machine = idle.unwrap_or_else(|| Machine(unsafe { (entry.object.machine_new)() }));
        if machine.0.is_null() {
            return Err(Fault::NoMachine { kernel: entry.name.clone() });
        }
        Ok(Taken(machine.0))
    }
}

struct Taken(*mut c_void);

impl Drop for Taken {
    fn drop(&mut self) {
        IDLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Machine(self.0));
    }
}

/// Numbers that look random; the same for the same seed on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}
